"""Image files that programs tend to misread, to compare two readers on."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageCms

_WIDTH, _HEIGHT = 53, 37


def write_odd_files(folder: Path, brightest: int = 65535) -> list[Path]:
    """Write small images of every mode, depth and orientation, and some that a reader must reject; return their paths.

    Args:
        folder: the folder to create.
        brightest: largest pixel value in files of more than 8 bits.
    """
    folder.mkdir()
    random = np.random.default_rng(0)
    colour = Image.fromarray(random.integers(0, 256, (_HEIGHT, _WIDTH, 3), dtype=np.uint8))
    grey, alpha = colour.convert("L"), Image.fromarray(random.integers(0, 256, (_HEIGHT, _WIDTH), dtype=np.uint8))
    deep = random.integers(0, brightest, (_HEIGHT, _WIDTH, 3), endpoint=True)
    deep_grey = Image.fromarray(deep[..., 0].astype(np.uint16))
    on_its_side = Image.Exif()
    on_its_side[ExifTags.Base.Orientation] = 6
    clear, palette = colour.copy(), colour.quantize(16)
    clear.putalpha(alpha)
    images: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "side.jpg": (colour, {"exif": on_its_side}),
        "side.webp": (colour, {"exif": on_its_side, "lossless": True}),
        "side.png": (colour, {"exif": on_its_side}),
        "side.tif": (colour, {"tiffinfo": {ExifTags.Base.Orientation: 8}}),
        "profile.png": (colour, {"icc_profile": _swapped_profile()}),
        "clear profile.png": (clear, {"icc_profile": _swapped_profile()}),
        "profile of nothing.png": (colour, {"icc_profile": b"no profile"}),
        "clear.png": (clear, {}),
        "clear.webp": (clear, {}),
        "clear grey.png": (Image.merge("LA", (grey, alpha)), {}),
        "key.png": (colour, {"transparency": colour.getpixel((0, 0))}),
        "palette.png": (palette, {}),
        "clear palette.png": (palette, {"transparency": 3}),
        "palette.gif": (palette, {"transparency": 3}),
        "grey.gif": (grey, {}),
        "one bit.png": (grey.convert("1"), {}),
        "grey.bmp": (grey, {}),
        "four colours.jpg": (colour.convert("CMYK"), {}),
        "luma.tif": (colour.convert("YCbCr"), {}),
        "deep.png": (deep_grey, {}),
        "deep side.tif": (
            deep_grey,
            {"tiffinfo": {ExifTags.Base.Orientation: 3}},
        ),
        "float.tif": (Image.fromarray(deep[..., 0].astype(np.float32)), {}),
        "long.tif": (Image.fromarray(deep[..., 0].astype(np.int32)), {}),
        "not finite.tif": (Image.fromarray(np.full((9, 9), np.nan, np.float32)), {}),
        "pages.tif": (grey, {"save_all": True, "append_images": [alpha]}),
        "moving.gif": (grey, {"save_all": True, "append_images": [alpha]}),
    }
    for name, (image, options) in images.items():
        image.save(folder / name, **options)
    levels = np.asarray(grey) % 16
    packed = (levels[:, :-1:2] << 4 | levels[:, 1::2]).astype(np.uint8)
    contents = {
        "deep colour.png": _png(deep.astype(">u2"), _WIDTH, 16, 2),
        "four bits with a key.png": _png(packed, _WIDTH - 1, 4, 0, (b"tRNS", struct.pack(">H", 9))),
        "cut.jpg": (folder / "side.jpg").read_bytes()[:-400],
        "text.png": b"an image, it says",
        "empty.png": b"",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in (*images, *contents)]


def _swapped_profile() -> bytes:
    """Return an sRGB profile with red and blue swapped."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return profile.replace(b"rXYZ", b"\0tmp").replace(b"bXYZ", b"rXYZ").replace(b"\0tmp", b"bXYZ")


def _png(rows: np.ndarray, width: int, bits: int, colours: int, *more: tuple[bytes, bytes]) -> bytes:
    """Return the bytes of a PNG file in a format that Pillow does not write."""
    header = struct.pack(">IIBBBBB", width, len(rows), bits, colours, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    file = io.BytesIO(b"\x89PNG\r\n\x1a\n")
    file.seek(0, io.SEEK_END)
    for name, content in ((b"IHDR", header), *more, (b"IDAT", body), (b"IEND", b"")):
        file.write(struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content)))
    return file.getvalue()

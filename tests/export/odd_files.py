"""Image files that programs tend to misread, to compare two readers on."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageCms

from tests.data.deep_files import png16

_WIDTH, _HEIGHT = 53, 37


def write_odd_files(folder: Path, brightest: int = 65535) -> list[Path]:
    """Write small images of several modes and depths, and some that a reader must reject; return their paths.

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
        "side.tif": (colour, {"tiffinfo": {ExifTags.Base.Orientation: 8}}),
        "profile.png": (colour, {"icc_profile": _swapped_profile()}),
        "clear.png": (clear, {}),
        "palette.png": (palette, {}),
        "palette.gif": (palette, {"transparency": 3}),
        "one bit.png": (grey.convert("1"), {}),
        "grey.bmp": (grey, {}),
        "four colours.jpg": (colour.convert("CMYK"), {}),
        "deep.png": (deep_grey, {}),
        "deep side.tif": (deep_grey, {"tiffinfo": {ExifTags.Base.Orientation: 3}}),
        "float.tif": (Image.fromarray(deep[..., 0].astype(np.float32)), {}),
        "long.tif": (Image.fromarray(deep[..., 0].astype(np.int32)), {}),
        "not finite.tif": (Image.fromarray(np.full((9, 9), np.nan, np.float32)), {}),
        "pages.tif": (grey, {"save_all": True, "append_images": [alpha]}),
    }
    for name, (image, options) in images.items():
        image.save(folder / name, **options)
    contents = {
        "deep colour.png": png16(deep),
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

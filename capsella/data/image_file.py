"""Read an image file, and fit it to the colours and the size of a network. Exported folders hold a copy of this module.

A camera of 12 bits writes values up to 4095 into files of 16 bits, a camera of 16 bits up to 65535. No file of 16 bits,
or of floating-point numbers, tells by itself which value is white, so such files need a range of values.

The default for a user's own images is `pad`: nothing is lost, and shapes keep their proportions. The centre crop, usual
elsewhere, cuts off objects near the border; recipes of papers keep it.
"""

import sys
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageFile, ImageOps

FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp")
MOST_OUTSIDE = 0.5  # proportion of values outside the learned range above which a file is not predicted
MAX_PIXELS = 80_000_000  # a small file can unpack to enough pixels to exhaust the memory
_BITS_PER_SAMPLE, _COLOURS, _PLANES, _SAMPLE_FORMAT, _SIGNED = 258, 262, 284, 339, 2  # of TIFF files
_OTHER_ORDER = {
    "RGB;16B": "RGB;16L",
    "RGB;16L": "RGB;16B",
    "RGB;16N": "RGB;16B" if sys.byteorder == "little" else "RGB;16L",  # the machine's order
}


@dataclass(frozen=True, eq=False)
class ImageData:
    """An image file's pixels, upright and at their own size.

    Attributes:
        image: pixels of 8 bits per channel, grey ("L") or in sRGB colours ("RGB"), black where they are transparent.
        values: pixels of more than 8 bits per channel, [h w] or [h w 3]; then `image` is None.
        depth: depth of a file of more than 8 bits, e.g. "16 bits".
    """

    image: Image.Image | None
    values: np.ndarray | None = None
    depth: str | None = None

    def in_8_bits(self, value_range: tuple[float, float] | None) -> tuple[Image.Image, float]:
        """Return the image with 8 bits per channel, and the fraction of values outside the range, which clips them.

        Raises:
            ValueError: a file of more than 8 bits, and no range.
        """
        if self.image is not None:
            return self.image, 0.0
        assert self.values is not None
        if value_range is None:
            raise ValueError(
                f"it has {self.depth} per channel, and no range says which values are black and white; set one, e.g. "
                "--range 0 4095, or save it with 8 bits"
            )
        low, high = value_range
        outside = float(((self.values < low) | (self.values > high)).mean())
        scaled = (self.values.astype(np.float32) - np.float32(low)) * np.float32(255 / (high - low))
        return Image.fromarray(np.rint(scaled.clip(0, 255)).astype(np.uint8)), outside


def open_image(file: Path | BytesIO) -> ImageData:
    """Check an image file's header, and decode it once; Pillow's decoders raise errors of every kind."""
    with Image.open(file, formats=FORMATS) as image:
        _check_header(image)
        if (depth := depth_of(image)) is not None:
            return ImageData(None, read_values(file), depth)
        image.filename = ""  # no memory map, as in `read_values`
        level = image.info.get("transparency")  # Pillow scales grey levels of 2 and 4 bits to 8 bits, but not this one
        if image.format == "PNG" and isinstance(level, int) and image.tile:
            image.info["transparency"] = level * 255 // {"L;2": 3, "L;4": 15}.get(_raw_mode(image.tile[0]), 255)
        image.load()
        upright = to_grey_or_rgb(in_srgb(ImageOps.exif_transpose(image)))
        if image.format == "GIF":  # some programs write grey GIFs with a palette of colours
            upright = upright.convert("RGB")
        return ImageData(upright)


def _check_header(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width}×{height} pixels; at most {MAX_PIXELS:,} are read")
    pages = getattr(image, "n_frames", 1) if image.format in ("TIFF", "PNG", "GIF", "WEBP") else 1
    if pages > 1:
        raise ValueError(f"it has {pages} pages or pictures; save each as a file of its own")


# Files of more than 8 bits per channel


def depth_of(image: ImageFile.ImageFile) -> str | None:
    """Return the depth per channel of an opened image, from its header, e.g. "16 bits"; None for 8 bits."""
    bits = int(_tag(image, _BITS_PER_SAMPLE) or 8)
    if bits <= 8 and _tag(image, _SAMPLE_FORMAT) == _SIGNED:
        raise ValueError("its 8-bit values are signed; save it with black as 0")
    if image.mode == "F":
        return "floating-point numbers"
    if image.mode == "I":
        return "32 bits" if bits == 32 else "16 bits"
    deep = image.format in ("PNG", "TIFF") and any(";16" in _raw_mode(tile) for tile in image.tile)
    return "16 bits" if deep or bits > 8 or image.mode.startswith("I;") else None


def read_values(file: Path | BytesIO) -> np.ndarray:
    """Read the values of a file for which `depth_of` is not None, upright: [h w] grey or [h w 3] colour."""
    with Image.open(file, formats=FORMATS) as image:
        image.filename = ""  # prevents a memory map: Pillow maps a TIFF that lies on its side with the wrong row length
        colour = not image.mode.startswith(("I", "F"))
        is_odd = colour and (_tag(image, _PLANES) == 2 or {*map(_raw_mode, image.tile)} - _OTHER_ORDER.keys())
        if is_odd or image.has_transparency_data or _tag(image, _COLOURS) == 0:
            raise ValueError(
                "with more than 8 bits per channel it must be grey with black as 0, or interleaved RGB, without "
                "transparency; save it in such a form"
            )
        values = np.asarray(ImageOps.exif_transpose(image))
        if depth_of(image) == "32 bits" and _tag(image, _SAMPLE_FORMAT) != _SIGNED:
            values = np.ascontiguousarray(values).view(np.uint32)  # Pillow reads them as signed
    if colour:  # Pillow keeps the upper byte of each channel; the lower one is the upper one of the other byte order
        with Image.open(file, formats=FORMATS) as image:
            image.tile = [tile._replace(args=_other_order(tile)) for tile in image.tile]
            values = 256 * values.astype(np.int32) + np.asarray(ImageOps.exif_transpose(image))
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("it holds values that are not finite numbers")
    return values


def _other_order(tile: ImageFile._Tile) -> str | tuple[Any, ...]:
    """Return the arguments by which Pillow reads a tile in the other byte order."""
    raw = _OTHER_ORDER[_raw_mode(tile)]
    return (raw, *tile.args[1:]) if isinstance(tile.args, tuple) else raw


def _raw_mode(tile: ImageFile._Tile) -> str:
    """Return how a file stores its pixels, in Pillow's terms, e.g. "RGB;16B"."""
    return str(tile.args[0] if isinstance(tile.args, tuple) and tile.args else tile.args)


def _tag(image: Image.Image, number: int) -> float | None:
    """Return a TIFF tag's value; the largest of several."""
    value = getattr(image, "tag_v2", {}).get(number)
    return max(value, default=None) if isinstance(value, bytes | tuple) else value


# Colours and size


def fit_image(image: Image.Image, size: tuple[int, int], fit: str) -> Image.Image:
    """Resize a grey or RGB image to `size` with Pillow's antialiased bicubic filter.

    Args:
        image: the image.
        size: (height, width).
        fit: `crop` cuts off both ends of the longer side. `pad` keeps the whole image in the middle, and fills the rest
            with the median colour of its border. `squash` resizes each side by its own factor.
    """
    height, width = size
    if fit == "crop":
        return ImageOps.fit(image, (width, height), method=Image.Resampling.BICUBIC)
    if fit == "squash" or image.width * height == image.height * width:
        return image.resize((width, height), Image.Resampling.BICUBIC)
    scale = min(width / image.width, height / image.height)
    inner = image.resize(
        (max(1, int(image.width * scale + 0.5)), max(1, int(image.height * scale + 0.5))), Image.Resampling.BICUBIC
    )
    pixels = np.asarray(image)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    colour = np.sort(border, axis=0)[len(border) // 2].reshape(-1).tolist()
    padded = Image.new(image.mode, (width, height), tuple(colour))
    padded.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
    return padded


def cropped_share(image_size: tuple[int, int], size: tuple[int, int]) -> float:
    """Return the fraction of an image of (width, height) that `crop` to (height, width) cuts off."""
    ratio = (image_size[0] / image_size[1]) / (size[1] / size[0])
    return 1 - min(ratio, 1 / ratio)


def in_srgb(image: Image.Image) -> Image.Image:
    """Convert colours by the image's colour profile, as viewers and browsers do."""
    profile = image.info.get("icc_profile")
    if not profile or image.mode not in ("RGB", "RGBA", "P") or (transform := _srgb_transform(profile)) is None:
        return image
    image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    converted = ImageCms.applyTransform(image.convert("RGB"), transform)
    assert converted is not None  # None is for transforms in place
    if image.mode == "RGBA":
        converted.putalpha(image.getchannel("A"))
    return converted


@lru_cache(maxsize=32)
def _srgb_transform(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    """Return the transform from a profile to sRGB; None for sRGB itself, and for a profile that cannot be used."""
    try:
        source, srgb = ImageCms.ImageCmsProfile(BytesIO(profile)), ImageCms.createProfile("sRGB")
        transform = ImageCms.buildTransform(source, srgb, "RGB", "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None
    levels = np.arange(0, 256, 51)
    colours = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(36, 6, 3).astype(np.uint8)
    converted = np.asarray(ImageCms.applyTransform(Image.fromarray(colours), transform))
    return transform if np.abs(converted.astype(int) - colours).max() > 2 else None


def to_grey_or_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to grey or RGB, on a black background if it has transparency."""
    mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    return image.convert(mode)

"""Images of more than 8 bits per channel: their values, the range that a file states, and 8 bits by a range.

A camera of 12 bits writes values up to 4095 into files of 16 bits, a camera of 16 bits up to 65535. No file of 16 bits,
or of floating-point numbers, tells by itself which value is white.
"""

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image, ImageFile, ImageOps

from capsella.errors import CapsellaError
from capsella.image_options import ValueRange

FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP")
_BITS_PER_SAMPLE, _COLOURS, _PLANES, _SAMPLE_FORMAT, _SIGNED = 258, 262, 284, 339, 2
_OTHER_ORDER = {
    "RGB;16B": "RGB;16L",
    "RGB;16L": "RGB;16B",
    "RGB;16N": "RGB;16B" if sys.byteorder == "little" else "RGB;16L",  # the machine's order
}
_STATED = ((340, 341), (280, 281))  # SMinSampleValue and SMaxSampleValue, of any type; MinSampleValue, MaxSampleValue


def depth_of(image: ImageFile.ImageFile) -> str | None:
    """Return the depth per channel of an opened image, from its header, e.g. "16 bits"; None for 8 bits.

    Raises:
        CapsellaError: its values are signed 8-bit numbers.
    """
    bits = int(_tag(image, _BITS_PER_SAMPLE) or 8)
    if bits <= 8 and _tag(image, _SAMPLE_FORMAT) == _SIGNED:
        raise CapsellaError("its 8-bit values are signed; save it with black as 0")
    if image.mode == "F":
        return "floating-point numbers"
    if image.mode == "I":
        return "32 bits" if bits == 32 else "16 bits"
    if image.mode.startswith("I;"):
        return f"{_tag(image, _BITS_PER_SAMPLE) or 16:.0f} bits"
    deep = image.format in ("PNG", "TIFF") and any(";16" in raw_mode(tile) for tile in image.tile)
    return "16 bits" if deep or bits > 8 else None


def read_values(file: Path | BytesIO) -> Shaped[np.ndarray, "h w *c"]:
    """Read the values of a file for which `depth_of` is not None, upright: [h w] grey or [h w 3] colour.

    Raises:
        CapsellaError: the file's layout is not supported, or a value is not finite.
        Exception: any error of Pillow's decoders.
    """
    with Image.open(file, formats=FORMATS) as image:
        image.filename = ""  # prevents a memory map: Pillow maps a TIFF that lies on its side with the wrong row length
        colour = not image.mode.startswith(("I", "F"))
        is_odd = colour and (_tag(image, _PLANES) == 2 or {*map(raw_mode, image.tile)} - _OTHER_ORDER.keys())
        if is_odd or image.has_transparency_data or _tag(image, _COLOURS) == 0:
            raise CapsellaError(
                "with more than 8 bits per channel it must be grey with black as 0, or interleaved RGB, without "
                "transparency; save it in such a form"
            )
        values = np.asarray(ImageOps.exif_transpose(image))
        if depth_of(image) == "32 bits" and _tag(image, _SAMPLE_FORMAT) != _SIGNED:
            values = np.ascontiguousarray(values).view(np.uint32)  # Pillow reads them as signed
    if colour:  # Pillow keeps the upper byte of each channel; the lower one is the upper one of the other byte order
        values = 256 * values.astype(np.int32) + _lower_bytes(file)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise CapsellaError("it holds values that are not finite numbers")
    return values


def _lower_bytes(file: Path | BytesIO) -> UInt8[np.ndarray, "h w 3"]:
    with Image.open(file, formats=FORMATS) as image:
        image.tile = [tile._replace(args=_other_order(tile)) for tile in image.tile]
        return np.asarray(ImageOps.exif_transpose(image))


def _other_order(tile: ImageFile._Tile) -> str | tuple[Any, ...]:
    """Return the arguments by which Pillow reads a tile in the other byte order."""
    raw = _OTHER_ORDER[raw_mode(tile)]
    return (raw, *tile.args[1:]) if isinstance(tile.args, tuple) else raw


def to_8_bits(values: Shaped[np.ndarray, "h w *c"], value_range: ValueRange) -> UInt8[np.ndarray, "h w *c"]:
    """Convert values to 8 bits: the ends of the range become 0 and 255, values between are rounded to the nearest."""
    low, high = value_range
    scaled = (values.astype(np.float32) - np.float32(low)) * np.float32(255 / (high - low))
    return np.rint(scaled.clip(0, 255)).astype(np.uint8)


def stated_range(image: Image.Image) -> ValueRange | None:
    """Return the range that a TIFF file states by tags of its smallest and largest value, or by 9 to 15 bits."""
    for lowest, highest in _STATED:
        low, high = _tag(image, lowest), _tag(image, highest)
        if high is not None:
            return float(low or 0), float(high)
    bits = _tag(image, _BITS_PER_SAMPLE)
    return (0.0, 2.0**bits - 1) if bits is not None and 8 < bits < 16 else None


def _tag(image: Image.Image, number: int) -> float | None:
    """Return a TIFF tag's value; the largest of several."""
    value = getattr(image, "tag_v2", {}).get(number)
    if isinstance(value, bytes):  # Pillow returns numbers of one byte as bytes
        value = tuple(value)
    if isinstance(value, tuple):
        return max(value, default=None)
    return None if value is None else float(value)


def raw_mode(tile: ImageFile._Tile) -> str:
    """Return how a file stores its pixels, in Pillow's terms, e.g. "RGB;16B"."""
    return str(tile.args[0] if isinstance(tile.args, tuple) and tile.args else tile.args)

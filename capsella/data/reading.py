"""One image file to a tensor: decode, convert and resize, for training, prediction and .npz files alike.

A camera of 12 bits writes values up to 4095 into files of 16 bits, a camera of 16 bits up to 65535. No file of 16 bits,
or of floating-point numbers, tells by itself which value is white, so such files need a range of values.
"""

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError
from torch import Tensor

from capsella.data.cell_crop import cut_cell
from capsella.data.framing import cropped_share, fit_image, in_srgb, to_grey_or_rgb
from capsella.errors import CapsellaError, check_argument, pluralize
from capsella.image_options import CellCut, Fit, Preprocessing, ValueRange

FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp")
MAX_PIXELS = 80_000_000  # a small file can unpack to enough pixels to exhaust the memory
MAX_BYTES = 400_000_000  # MAX_PIXELS of four bytes are 320,000,000
MOST_OUTSIDE = 0.5  # proportion of values outside the learned range above which a file is not predicted
LEAST_LOSS = 0.01  # proportion of an image, or of its values, that is worth a note
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
    values: Shaped[np.ndarray, "h w *c"] | None = None
    depth: str | None = None

    def decode(self, preprocessing: Preprocessing) -> "Decoded":
        """Return the image in a network's format, and how much of it the network does not see."""
        value_range, outside = preprocessing.value_range, 0.0
        if (image := self.image) is None:
            assert self.values is not None
            if value_range is None:
                raise CapsellaError(
                    f"it has {self.depth} per channel, and no range says which values are black and white; set one, "
                    "e.g. --range 0 4095, or save it with 8 bits"
                )
            low, high = value_range
            outside = float(((self.values < low) | (self.values > high)).mean())
            scaled = (self.values.astype(np.float32) - np.float32(low)) * np.float32(255 / (high - low))
            image = Image.fromarray(np.rint(scaled.clip(0, 255)).astype(np.uint8))
        return Decoded(to_tensor(image, preprocessing), UnseenPart(cropped_by(preprocessing, image.size), outside))


class UnseenPart(NamedTuple):
    """The part of a file that a network does not see: fractions cropped away, and of values outside the range."""

    cropped: float = 0.0
    outside: float = 0.0

    def check(self, value_range: ValueRange | None, most_outside: float = MOST_OUTSIDE) -> None:
        """Raise `CapsellaError` if more than `most_outside` of the values lie outside the range."""
        if value_range is not None and self.outside > most_outside:
            low, high = value_range
            text = f"{self.outside:.0%} of its values lie outside the learned range {low:g} to {high:g}"
            raise CapsellaError(f"{text}; --range LOW HIGH sets another")


NOTHING_UNSEEN = UnseenPart()


class Decoded(NamedTuple):
    """An image in a network's format, [c h w], 0..255, and how much of the file it lacks."""

    pixels: UInt8[Tensor, "c h w"]
    loss: UnseenPart


def unseen_notes(parts: Sequence[UnseenPart]) -> tuple[str, ...]:
    """Return a line on cropped files and one on values outside the range, if networks miss 1 % or more of any file."""
    cropped = [part.cropped for part in parts if part.cropped >= LEAST_LOSS]
    outside = [part.outside for part in parts if part.outside >= LEAST_LOSS]
    lines = []
    if cropped:
        images, most = pluralize(len(cropped), "image"), f"up to {max(cropped):.0%} of an image"
        lines.append(f"the sides of {images} are cropped to the network's shape, {most}; --fit pad keeps them")
    if outside:
        files, most = pluralize(len(outside), "file"), f"up to {max(outside):.1%} of a file"
        lines.append(f"values of {files} lie outside the range that becomes black to white, {most}")
    return tuple(lines)


def read_image(
    path: Path,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    value_range: ValueRange | None = None,
    cut: CellCut | None = None,
    fit: Fit = "crop",
) -> UInt8[Tensor, "c h w"]:
    """Read a PNG, JPEG, BMP, TIFF, GIF or WebP image, turned upright by its EXIF data, in sRGB colours.

    Grey stays one channel, everything else, and every GIF, becomes RGB; transparent pixels become black.

    Args:
        path: the file.
        size: (height, width) to resize to, with Pillow's antialiased bicubic filter; None keeps the size.
        channels: 1 for grey (Rec. 601 luma), 3 for RGB, or None to keep the channels.
        value_range: (low, high), the values that become 0 and 255 in a file of more than 8 bits per channel. Files of
            8 bits are used unchanged.
        cut: crop the stained cell, see `cut_cell`; needs a size.
        fit: how an image of another aspect ratio is fitted into `size`, see `fit_image`.

    Returns:
        [c h w], 0..255.

    Raises:
        CapsellaError: the file is missing, unreadable, truncated, of an unsupported format, of several pages, larger
            than `MAX_PIXELS` or `MAX_BYTES`, or a folder, a pipe or a device; or it has more than 8 bits per channel
            and `value_range` is None; or it shows no stained cell to crop.
        ArgumentError: an invalid size, number of channels, range or crop.
    """
    check_argument(channels in (1, 3, None), "be 1, 3 or None", channels=channels)
    return decode(Path(path), str(path), Preprocessing(size, channels, value_range, cut, fit)).pixels


def decode(file: Path | BytesIO, name: str, preprocessing: Preprocessing) -> Decoded:
    """Decode an image file, or the bytes of one, like `read_image`; `name` is the file's name in errors."""
    with readable(file, name):
        return open_image(file).decode(preprocessing)


def cropped_by(preprocessing: Preprocessing, image_size: tuple[int, int]) -> float:
    """Return the fraction of an image of (width, height) that `fit` crops away; 0 if a stained cell is cropped."""
    crops = preprocessing.fit == "crop" and preprocessing.cut is None and preprocessing.size is not None
    return cropped_share(image_size, preprocessing.size or (1, 1)) if crops else 0.0


@contextmanager
def readable(file: Path | BytesIO, name: str) -> Iterator[None]:
    """Turn every error of reading an image file into a `CapsellaError` that begins with `name`."""
    try:
        yield
    except FileNotFoundError:
        raise CapsellaError(f"{name}: no such file") from None
    except MemoryError:
        raise
    except Exception as error:  # decoders raise errors of every kind on damaged bytes
        reason = str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            start = file.getvalue()[:12] if isinstance(file, BytesIO) else file.open("rb").read(12)
            is_phone = start[4:8] == b"ftyp"
            reason = "it is a HEIC or AVIF file; save it as PNG" if is_phone else "no image of a format that is read"
        raise CapsellaError(f"{name}: cannot be read as an image ({reason})") from error


def open_image(file: Path | BytesIO) -> ImageData:
    """Check an image file's header, and decode it once; Pillow's decoders raise errors of every kind."""
    if isinstance(file, Path):
        _check_file(file)
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


def _check_file(file: Path) -> None:
    # Before anything is read: a pipe would block without end, a device never ends.
    status = file.stat()
    if stat.S_ISDIR(status.st_mode):
        os.scandir(file).close()  # a folder that cannot be listed raises the reason
        raise CapsellaError("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise CapsellaError("it is a pipe or a device, not a file")
    if status.st_size == 0:
        raise CapsellaError("the file is empty")
    if status.st_size > MAX_BYTES:
        raise CapsellaError(f"{status.st_size:,} bytes; at most {MAX_BYTES:,} are read")


def _check_header(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise CapsellaError(f"{width}×{height} pixels; at most {MAX_PIXELS:,} are read")
    pages = getattr(image, "n_frames", 1) if image.format in ("TIFF", "PNG", "GIF", "WEBP") else 1
    if pages > 1:
        raise CapsellaError(f"it has {pages} pages or pictures; save each as a file of its own")


def to_tensor(image: Image.Image, preprocessing: Preprocessing) -> UInt8[Tensor, "c h w"]:
    """Convert, crop and resize an image of mode L or RGB; channels and size that fit are left unchanged."""
    size, channels, cut = preprocessing.size, preprocessing.channels, preprocessing.cut
    if cut is not None and size is not None:
        if image.mode == "L":
            raise CapsellaError("it is grey: stained cells are found by their colour")
        image = cut_cell(image, size, cut)
    if channels is not None and channels != len(image.getbands()):
        image = image.convert("L" if channels == 1 else "RGB")
    if size is not None and image.size != (size[1], size[0]):
        image = fit_image(image, size, preprocessing.fit)
    pixels = torch.from_numpy(np.array(image))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


# Files of more than 8 bits per channel


def depth_of(image: ImageFile.ImageFile) -> str | None:
    """Return the depth per channel of an opened image, from its header, e.g. "16 bits"; None for 8 bits."""
    bits = int(_tag(image, _BITS_PER_SAMPLE) or 8)
    if bits <= 8 and _tag(image, _SAMPLE_FORMAT) == _SIGNED:
        raise CapsellaError("its 8-bit values are signed; save it with black as 0")
    if image.mode == "F":
        return "floating-point numbers"
    if image.mode == "I":
        return "32 bits" if bits == 32 else "16 bits"
    deep = image.format in ("PNG", "TIFF") and any(";16" in _raw_mode(tile) for tile in image.tile)
    return "16 bits" if deep or bits > 8 or image.mode.startswith("I;") else None


def read_values(file: Path | BytesIO) -> Shaped[np.ndarray, "h w *c"]:
    """Read the values of a file for which `depth_of` is not None, upright: [h w] grey or [h w 3] colour."""
    with Image.open(file, formats=FORMATS) as image:
        image.filename = ""  # prevents a memory map: Pillow maps a TIFF that lies on its side with the wrong row length
        colour = not image.mode.startswith(("I", "F"))
        is_odd = colour and (_tag(image, _PLANES) == 2 or {*map(_raw_mode, image.tile)} - _OTHER_ORDER.keys())
        if is_odd or image.has_transparency_data or _tag(image, _COLOURS) == 0:
            raise CapsellaError(
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
        raise CapsellaError("it holds values that are not finite numbers")
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

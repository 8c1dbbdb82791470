"""One image file to a tensor: decode, convert and resize, for training, prediction and .npz files alike."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from capsella.data.cell_crop import cut_cell
from capsella.data.image_file import MOST_OUTSIDE, ImageData, cropped_share, fit_image, open_image
from capsella.errors import CapsellaError, check_argument, pluralize
from capsella.image_options import CellCut, Fit, Preprocessing, ValueRange

MAX_BYTES = 400_000_000  # MAX_PIXELS of four bytes are 320,000,000
LEAST_LOSS = 0.01  # proportion of an image, or of its values, that is worth a note


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
        return preprocess(open_file(file), preprocessing)


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


def open_file(file: Path | BytesIO) -> ImageData:
    """Decode an image file, after a check of what a path leads to."""
    if isinstance(file, Path):
        _check_file(file)
    return open_image(file)


def preprocess(image: ImageData, preprocessing: Preprocessing) -> Decoded:
    """Return an image in a network's format, and how much of it the network does not see."""
    pixels, outside = image.in_8_bits(preprocessing.value_range)
    return Decoded(to_tensor(pixels, preprocessing), UnseenPart(cropped_by(preprocessing, pixels.size), outside))


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

"""Headers of a folder's files: sizes, channels, bit depths, and the range of values of the training images."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped
from PIL import Image, ImageOps
from torch import Tensor

from capsella.data.deep_values import FORMATS, depth_of, read_values, stated_range
from capsella.data.framing import cropped_share
from capsella.data.listing import SkippedFiles, list_files, spread
from capsella.data.options import FolderData
from capsella.data.reading import ImageCallback, check_memory, opened
from capsella.errors import CapsellaError, pluralize
from capsella.image_options import ValueRange

_PERCENTILES = (0.1, 99.9)  # hot and dead pixels must not set the range
_SAMPLED, _SAMPLED_IN_ALL = 10_000, 10_000_000  # values per file, and of all files together
_INSPECTED = 200  # files whose headers `inspect_folder` reads, spread evenly, and one of each class


def read_header(file: Path, callback: ImageCallback | None, *, whole: bool = False) -> Tensor:
    """Check a file's header and return an image of one pixel; with `whole`, or a callback, its pixels are read too."""
    with opened(file, str(file)) as image:
        if whole and depth_of(image) is not None:
            read_values(file)
        if callback is not None:
            callback(ImageOps.exif_transpose(image))
        elif whole:
            image.load()
        return torch.zeros(1, 1, 1, dtype=torch.uint8)


class _DeepFile(NamedTuple):
    """A file of more than 8 bits per channel: its depth, the range that it states, and a sample of its values."""

    depth: str
    stated: ValueRange | None
    values: Shaped[np.ndarray, " k"]


class FolderScan:
    """Properties of a folder's files, from their headers.

    Attributes:
        deep: files of more than 8 bits per channel.
        transparent, colour: files with transparency; in colour.
        oblong: files of other proportions than `size`, and the share of each that a crop cuts off.
        smallest: pixels, (height, width) and channels of the smallest image.
    """

    def __init__(self, options: FolderData, files: int) -> None:
        self.options, self.files = options, 0
        self.sampled = max(100, min(_SAMPLED, _SAMPLED_IN_ALL // max(1, files)))
        self.deep: dict[str, _DeepFile] = {}
        self.transparent: list[str] = []
        self.colour: list[str] = []
        self.oblong: dict[str, float] = {}
        self.smallest: tuple[int, tuple[int, int], int] | None = None

    def add(self, file: Path, name: str) -> Tensor:
        """Take note of a file; returns an image of one pixel in its place."""
        with opened(file, str(file)) as image:
            depth, stated = depth_of(image), stated_range(image)
            width, height = image.size
            if image.has_transparency_data:
                self.transparent.append(name)
            channels = 1 if image.mode[0] in "1LIF" else 3
            if depth is not None:
                values = np.empty(0) if self.options.range is not None else _sample(read_values(file), self.sampled)
                self.deep[name] = _DeepFile(depth, stated, values)
        self.files += 1
        lost = cropped_share((width, height), (1, 1))
        if (
            lost >= 0.01 and self.options.size is not None and self.options.cut is None
        ):  # cells are looked for everywhere
            self.oblong[name] = lost
        if channels == 3:
            self.colour.append(name)
        size = (height * width, (height, width), channels)
        self.smallest = min(self.smallest or size, size)
        return torch.zeros(1, 1, 1, dtype=torch.uint8)

    def notes(self) -> list[str]:
        """Return what reading changes in some files, beside their size, a line each."""
        notes = []
        if self.oblong:
            shares = self.oblong.values()
            mean, most = 100 * sum(shares) / len(shares), 100 * max(shares)
            done = {
                "crop": f"their ends are cut off, {mean:.0f} % of an image on average and up to {most:.0f} %; "
                "--fit pad keeps them",
                "pad": "padded with the colour of the border",
                "squash": "squashed",
            }
            notes.append(f"{_named(list(self.oblong))} not square: {done[self.options.fit]}")
        if self.transparent:
            notes.append(f"{_named(self.transparent)} with transparency: transparent pixels become black")
        if self.options.channels == 1 and 0 < len(self.colour) < self.files:
            notes.append(f"{_named(self.colour)} in colour, among grey ones: all become grey")
        return notes

    def check_memory(self, images: int) -> None:
        """Check that this many images fit into the free memory.

        Raises:
            CapsellaError: they do not.
        """
        if self.smallest is not None:
            _, size, channels = self.smallest
            check_memory(images, self.options.height_width or size, self.options.channels or channels)

    def find_range(self, training_files: Sequence[str]) -> tuple[ValueRange, str]:
        """Return the range that the training images state, or else that of their values; and its origin.

        Raises:
            CapsellaError: all values are equal.
        """
        chosen = [self.deep[name] for name in training_files if name in self.deep]
        return _range_of(chosen or list(self.deep.values()), "training image" if chosen else "image")

    def range_notes(self, value_range: ValueRange | None, origin: str, files: Collection[str]) -> list[str]:
        """Return a line on the range and the files it applies to; none without such files."""
        depths = Counter(self.deep[name].depth for name in files if name in self.deep)
        if value_range is None or not depths:
            return []
        each = ", ".join(f"{pluralize(number, 'file')} of {depth}" for depth, number in depths.items())
        low, high = (f"{value:,.6g}" for value in value_range)
        rest = len(files) - depths.total()
        of_8_bits = f"; unchanged: {pluralize(rest, 'file')} of 8 bits" if rest else ""
        return [f"{each} per channel: values {low} to {high} become 0 to 255, {origin}{of_8_bits}"]


def _named(files: Sequence[str]) -> str:
    first = Path(min(files)).name
    return f"{pluralize(len(files), 'file')} ({first}{', …' if len(files) > 1 else ''})"


def _sample(values: Shaped[np.ndarray, "h w *c"], most: int) -> Shaped[np.ndarray, " k"]:
    values = values.ravel()
    if len(values) <= most:
        return values
    return values[np.random.default_rng(0).integers(0, len(values), most)]


def _range_of(files: Sequence[_DeepFile], what: str) -> tuple[ValueRange, str]:
    values = np.concatenate([file.values for file in files])
    smallest, largest = float(values.min()), float(values.max())
    stated = [file.stated for file in files if file.stated is not None]
    if len(stated) == len(files):
        low, high = min(low for low, _ in stated), max(high for _, high in stated)
        if low < high and low <= smallest and largest <= high:
            return (low, high), "as the files state"
    low, high = (float(value) for value in np.percentile(values, _PERCENTILES, method="nearest"))
    origin = f"percentiles {_PERCENTILES[0]} and {_PERCENTILES[1]} of {pluralize(len(files), what)}"
    if low == high:  # nearly everything is background
        low, high, origin = smallest, largest, f"the extremes of {pluralize(len(files), what)}"
    if low == high:
        raise CapsellaError(f"all values of the {what}s are {low:g}; set a range, e.g. --range 0 4095")
    return (low, high), f"{origin}; --range sets it"


@dataclass(frozen=True)
class FolderSummary:
    """A folder of images, before its pixels are read.

    path: the folder. images: number of files, some of which may be broken. train: number of files in the folder
    `train`, if the folder is split. validation: whether it has a validation split. classes: their names. height, width:
    pixels, medians of the inspected files. channels: 1 if every inspected file is grey, else 3.
    """

    path: Path
    images: int
    train: int | None
    validation: bool
    classes: tuple[str, ...]
    height: int
    width: int
    channels: int

    def __str__(self) -> str:
        """Return the summary as a line.

        >>> print(FolderSummary(Path("cells"), 351, None, False, ("a", "b"), 224, 224, 3))
        351 images in 2 classes, mostly 224×224 pixels, colour
        """
        kind = "grey" if self.channels == 1 else "colour"
        return (
            f"{self.images:,} images in {len(self.classes)} classes, mostly {self.width}×{self.height} pixels, {kind}"
        )


def inspect_folder(path: Path) -> FolderSummary:
    """Summarize a folder with one subfolder per class from the names and headers of its files.

    Raises:
        CapsellaError: no such folder, no classes, or no file with a readable header among those inspected.
    """
    files = list_files(path, SkippedFiles())
    first = {file.label: file for file in reversed(files)}  # a class of few files may have colours that no other has
    inspected = [*(files[row] for row in spread(len(files), _INSPECTED)), *first.values()]
    headers = [header for file in inspected if (header := _header(path / file.path)) is not None]
    if not headers:
        raise CapsellaError(f"{path}: must have images that can be read, got none among {len(files)} files")
    sizes = [image.size for image in headers]
    return FolderSummary(
        path=path,
        images=len(files),
        train=sum(file.split == "train" for file in files) or None,
        validation=any(file.split == "validation" for file in files),
        classes=tuple(sorted({file.label for file in files})),
        height=median_low(height for _, height in sizes),
        width=median_low(width for width, _ in sizes),
        channels=1 if all(_is_grey(image.mode) for image in headers) else 3,
    )


def _header(path: Path) -> Image.Image | None:
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # the error shows when the file is read


def _is_grey(mode: str) -> bool:
    return mode in ("1", "L", "LA", "La") or mode.startswith("I") or mode == "F"

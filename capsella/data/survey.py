"""A first look at the files of a folder: how large they are, and which range of values its training images have."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped
from PIL import ImageOps
from torch import Tensor

from capsella.data.depth import depth_of, read_values, stated_range
from capsella.data.folder import list_files
from capsella.data.listing import PassedOver
from capsella.data.options import FolderData
from capsella.data.reading import Look, check_memory, opened
from capsella.errors import CapsellaError, pluralize
from capsella.image_options import ValueRange

_PERCENTILES = (0.1, 99.9)  # single hot and dead pixels must not set the range
_SAMPLED, _SAMPLED_IN_ALL = 10_000, 10_000_000  # values a file, and of all files together


def glance(file: Path, look: Look | None, *, whole: bool = False) -> Tensor:
    """An image of one pixel in place of the file's own, whose header is checked; `look` is called with the image.

    whole: check its pixels, too.
    """
    with opened(file, str(file)) as image:
        if whole and depth_of(image) is not None:
            read_values(file)
        if look is not None:
            look(ImageOps.exif_transpose(image))
        elif whole:
            image.load()
        return torch.zeros(1, 1, 1, dtype=torch.uint8)


class FoundRange(NamedTuple):
    """The range for the files of more than 8 bits a channel, and where it is from."""

    value_range: ValueRange | None
    origin: str = ""


class _Deep(NamedTuple):
    """A file of more than 8 bits a channel, and some of its values, drawn evenly."""

    depth: str
    stated: ValueRange | None
    values: Shaped[np.ndarray, " k"]


class Survey:
    """What the files of the folder in `options` hold; `look` is called for each."""

    def __init__(self, options: FolderData) -> None:
        self.options, self.root = options, options.path
        self.files = 0
        number = len(list_files(self.root, PassedOver()))
        self.sampled = max(100, min(_SAMPLED, _SAMPLED_IN_ALL // max(1, number)))
        self.deep: dict[str, _Deep] = {}
        self.transparent: list[Path] = []
        self.colour: list[Path] = []
        self.oblong: list[tuple[Path, float]] = []
        """Files that a square is cut from, and how much of each, in per cent, is lost."""
        self.least: tuple[int, tuple[int, int], int] | None = None
        """Pixels, (height, width) and channels of the smallest image."""

    def look(self, file: Path, look: Look | None = None) -> Tensor:
        """Take note of a file; returns an image of one pixel in its place.

        `look`: not called, as most files are not decoded here.
        """
        with opened(file, str(file)) as image:
            depth, stated = depth_of(image), stated_range(image)
            width, height = image.size
            if image.has_transparency_data:
                self.transparent.append(file)
            channels = 1 if image.mode[0] in "1LIF" else 3
            if depth is not None:
                values = np.empty(0) if self.options.range is not None else _some(read_values(file), self.sampled)
                self.deep[file.relative_to(self.root).as_posix()] = _Deep(depth, stated, values)
        self.files += 1
        lost = 100 * (1 - min(height, width) / max(height, width))
        if lost >= 1 and self._cuts_squares:
            self.oblong.append((file, lost))
        if channels == 3:
            self.colour.append(file)
        self.least = min(
            self.least or (height * width, (height, width), channels), (height * width, (height, width), channels)
        )
        return torch.zeros(1, 1, 1, dtype=torch.uint8)

    @property
    def _cuts_squares(self) -> bool:
        """Whether a square is cut from the centre of whole images; cells are looked for in all of an image."""
        return self.options.size is not None and self.options.cut is None

    def notes(self) -> list[str]:
        """What reading changes in some files beside their size: a line each."""
        notes = []
        if self.oblong:
            most, files = max(lost for _, lost in self.oblong), [file for file, _ in self.oblong]
            notes.append(
                f"{_named(files)} not square: what is outside the square in the middle is cut off, up to {most:.0f} % "
                "of an image"
            )
        if self.transparent:
            notes.append(f"{_named(self.transparent)} with transparency: what is transparent becomes black")
        if self.options.channels == 1 and 0 < len(self.colour) < self.files:
            notes.append(f"{_named(self.colour)} in colour, among grey ones: all become grey")
        return notes

    def check_memory(self, images: int) -> None:
        """Raise `CapsellaError` where so many images will not fit into the memory that is free."""
        if self.least is not None:
            _, size, channels = self.least
            check_memory(images, self.options.height_width or size, self.options.channels or channels)

    def find_range(self, training_files: Callable[[], Sequence[str]]) -> FoundRange:
        """The range: the one in the options, the one that the training images state, or else that of their values.

        training_files: where there are none, all files count.

        Raises:
            CapsellaError: all their values are the same.
        """
        if not self.deep:
            return FoundRange(self.options.range)
        if self.options.range is not None:
            return FoundRange(self.options.range, "as set, or found before")
        chosen = [self.deep[file] for file in training_files() if file in self.deep]
        return FoundRange(*_range_of(chosen or list(self.deep.values()), "training image" if chosen else "image"))

    def range_notes(self, found: FoundRange, files: Collection[str]) -> list[str]:
        """A line on the range, with how many of the `files` that were read it is of; none where it is of none."""
        deep = Counter(self.deep[file].depth for file in files if file in self.deep)
        if found.value_range is None or not deep:
            return []
        depths = ", ".join(f"{pluralize(number, 'file')} of {depth}" for depth, number in deep.items())
        low, high = (f"{value:,.6g}" for value in found.value_range)
        rest = len(files) - deep.total()
        of_8_bits = f"; {pluralize(rest, 'file')} of 8 bits taken as stored" if rest else ""
        return [f"{depths} a channel: values {low} to {high} become 0 to 255, {found.origin}{of_8_bits}"]


def _named(files: Sequence[Path]) -> str:
    """How many, and the first."""
    return f"{pluralize(len(files), 'file')} ({min(files).name}{', …' if len(files) > 1 else ''})"


def _some(values: Shaped[np.ndarray, "h w *c"], most: int) -> Shaped[np.ndarray, " k"]:
    values = values.ravel()
    if len(values) <= most:
        return values
    return values[np.random.default_rng(0).integers(0, len(values), most)]


def _range_of(files: Sequence[_Deep], what: str) -> tuple[ValueRange, str]:
    """The range of some images, `what` of them, and where it is from."""
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
        raise CapsellaError(f"all values of the {what}s are {low:g}; set a range, as --range 0 4095")
    return (low, high), f"{origin}; --range of train, compare and predict sets it"

"""Read the user's images in a folder with one subfolder per class: each file is decoded once."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor

from capsella.data.cell_crop import MAX_SAMPLES, typical_radius
from capsella.data.duplicates import Fingerprint, fingerprint
from capsella.data.framing import cropped_share
from capsella.data.groups import group_notes, group_numbers
from capsella.data.images import ImageSet
from capsella.data.listing import ClassFile, FolderListing, spread
from capsella.data.options import FolderData
from capsella.data.reading import (
    LEAST_LOSS,
    ImageData,
    UnseenCount,
    UnseenPart,
    open_image,
    read_all,
    readable,
    rgb_images,
    stack,
)
from capsella.data.splits import SPLIT_NAMES, SourceSplits, SplitTable
from capsella.environment import free_memory
from capsella.errors import CapsellaError, pluralize
from capsella.image_options import ValueRange

_PERCENTILES = (0.1, 99.9)  # hot and dead pixels must not set the range
_SAMPLED, _SAMPLED_IN_ALL = 10_000, 10_000_000  # values per file, and of all files together
_KEPT = 0.25  # fraction of the free memory that may hold values of more than 8 bits until their range is known


class _Facts(NamedTuple):
    """A record of a decoded file. `sample`: some of its values, if their range is not known yet."""

    content: int
    fingerprint: Fingerprint | None
    size: tuple[int, int]
    channels: int
    transparent: bool
    depth: str | None
    stated: ValueRange | None
    sample: Shaped[np.ndarray, " k"]


def read_folder(
    options: FolderData,
    listing: FolderListing,
    table: SplitTable | None,
    training_files: Callable[[SourceSplits], Sequence[str]],
) -> tuple[SourceSplits, ValueRange | None]:
    """Decode every image once; return the images, and the range used for files of more than 8 bits.

    Args:
        options: how to read the images.
        listing: the files.
        table: a split file; files that it leaves unused are not read.
        training_files: function from the source, with blank images, to the files of its training split. Their values
            set the range of files of more than 8 bits per channel; if it returns none, all images set it.

    Raises:
        CapsellaError: a broken image (unless skip_broken), a class of broken images alone, images that differ in
            channels or size unless the options set these, or too little memory.
    """
    unused = frozenset() if table is None else table.unused
    files = [file for file in listing.files if file.path not in unused]
    if table is not None and not files:
        raise CapsellaError(f"{table.path}: must put images of {listing.root} in train and test, but all are unused")
    if options.cells != "whole" and options.cell_radius is None:
        sample = [listing.root / files[row].path for row in spread(len(files), MAX_SAMPLES)]
        options = replace(options, cell_radius=typical_radius(rgb_images(sample)))
    build = partial(_source, options, listing, table, tuple(sorted({file.label for file in files})))
    reader = _Reader(options, listing.root, len(files))
    results, rows, broken = read_all(
        {file.path: partial(reader.read, file.path) for file in files}, options.skip_broken
    )
    files, facts = [files[row] for row in rows], [fact for _, fact in results]
    images = {file.path: image for file, (image, _) in zip(files, results, strict=True) if image is not None}
    waiting = [file.path for file in files if file.path not in images]
    origin = "as set, or measured before"
    if waiting:
        blank = torch.zeros(len(files), 1, 1, 1, dtype=torch.uint8)
        reader.options, origin = _with_range(options, files, facts, training_files(build(files, facts, blank, broken)))
        done, rows, more = read_all({path: partial(reader.finish, path) for path in waiting}, options.skip_broken)
        images |= {waiting[row]: image for row, (image, _) in zip(rows, done, strict=True)}
        present = [row for row, file in enumerate(files) if file.path in images]
        files, facts, broken = [files[row] for row in present], [facts[row] for row in present], (*broken, *more)
    paths = [file.path for file in files]
    source = build(files, facts, stack([images[path] for path in paths], paths), broken)
    unseen = UnseenCount.of(reader.losses[path] for path in paths).lines()
    about_range = _range_notes(reader.options.range, origin, facts)
    notes = (*source.notes, *_notes(reader.options, paths, facts), *about_range, *unseen)
    return replace(source, notes=notes, unseen=unseen), reader.options.range


class _Reader:
    """A decoder. Files whose range is not known yet are kept in memory, or decoded again if memory is short."""

    def __init__(self, options: FolderData, root: Path, files: int) -> None:
        self.options, self.root = options, root
        self.kept, self.losses = dict[str, ImageData](), dict[str, UnseenPart]()
        self.sampled = max(100, min(_SAMPLED, _SAMPLED_IN_ALL // max(1, files)))
        self.room = _KEPT * (free_memory() or 2**32)

    def read(self, name: str) -> tuple[UInt8[Tensor, "c h w"] | None, _Facts]:
        """Return the pixels, or None if their range is not known yet, and the facts about the file."""
        path = self.root / name
        with readable(path, str(path)):
            image = open_image(path)
            waiting = image.values if self.options.range is None else None
            facts = _Facts(
                _digest(path),
                None if self.options.duplicates == "ignore" else fingerprint(image),
                *(image.size, image.channels, image.transparent, image.depth, image.stated),
                np.empty(0) if waiting is None else _sample(waiting, self.sampled),
            )
            if waiting is None:
                return self._decode(name, image), facts
        self.room -= waiting.nbytes
        if self.room > 0:
            self.kept[name] = image
        return None, facts

    def finish(self, name: str) -> tuple[UInt8[Tensor, "c h w"], None]:
        """Return the pixels of a file for which `read` returned None."""
        path = self.root / name
        with readable(path, str(path)):
            image = self.kept.pop(name, None) or open_image(path)
            return self._decode(name, image), None

    def _decode(self, name: str, image: ImageData) -> UInt8[Tensor, "c h w"]:
        pixels, self.losses[name] = image.decode(self.options.preprocessing)
        return pixels


def _source(
    options: FolderData,
    listing: FolderListing,
    table: SplitTable | None,
    classes: tuple[str, ...],
    files: Sequence[ClassFile],
    facts: Sequence[_Facts],
    pixels: UInt8[Tensor, "n c h w"],
    broken: tuple[str, ...],
) -> SourceSplits:
    """Return the images that could be read, in the splits of the folder unless there is a split file."""
    if missing := set(classes) - {file.label for file in files}:
        name = min(missing)
        raise CapsellaError(
            f"{listing.root}: no image of the class {name!r} can be read. Left out: {'; '.join(broken)}"
        )
    paths = tuple(file.path for file in files)
    metadata = {"content": torch.tensor([fact.content for fact in facts])}
    notes = listing.notes
    if options.group is not None:
        metadata["group"] = group_numbers(options.group, paths, listing.paths)
        notes = (*notes, *group_notes(metadata["group"]))
    labels = torch.tensor([classes.index(file.label) for file in files])
    images = ImageSet(pixels, labels, classes, paths, metadata)
    rows = {split: [row for row, file in enumerate(files) if file.split == split] for split in SPLIT_NAMES}
    if table is not None or not any(rows.values()):
        rows = {"train": [*range(len(files))]}
    elif not (rows["train"] and rows["test"]):
        raise CapsellaError(f"{listing.root}: a folder that is split must have images in train and test")
    prints = [facts[row].fingerprint for chosen in rows.values() for row in chosen]
    return SourceSplits(
        listing.root.resolve().name,
        **{split: images.subset(chosen) for split, chosen in rows.items() if chosen},  # type: ignore[arg-type]
        broken=broken,
        notes=notes,
        cell_radius=options.cell_radius,
        fingerprints=None if options.duplicates == "ignore" else np.array(prints, np.int64).reshape(-1, 5),
        listing=listing.paths,
    )


def _digest(file: Path) -> int:
    """Return 63 bits of a digest of a file, which change if another image is saved under its name."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=8)).digest()
    return int.from_bytes(digest) >> 1


def _sample(values: Shaped[np.ndarray, "h w *c"], most: int) -> Shaped[np.ndarray, " k"]:
    values = values.ravel()
    return values if len(values) <= most else values[np.random.default_rng(0).integers(0, len(values), most)]


def _with_range(
    options: FolderData, files: Sequence[ClassFile], facts: Sequence[_Facts], training_files: Sequence[str]
) -> tuple[FolderData, str]:
    """Return options with the range that the training images state or that of their values, and its origin as text."""
    deep = {file.path: fact for file, fact in zip(files, facts, strict=True) if fact.depth is not None}
    chosen, what = [deep[path] for path in training_files if path in deep], "training image"
    if not chosen:
        chosen, what = [*deep.values()], "image"
    values = np.concatenate([fact.sample for fact in chosen])
    smallest, largest = float(values.min()), float(values.max())
    stated = [fact.stated for fact in chosen if fact.stated is not None]
    if len(stated) == len(chosen):
        low, high = min(low for low, _ in stated), max(high for _, high in stated)
        if low < high and low <= smallest and largest <= high:
            return replace(options, range=(low, high)), "as the files state"
    low, high = (float(value) for value in np.percentile(values, _PERCENTILES, method="nearest"))
    origin = f"percentiles {_PERCENTILES[0]} and {_PERCENTILES[1]} of {pluralize(len(chosen), what)}"
    if low == high:  # nearly everything is background
        low, high, origin = smallest, largest, f"the extremes of {pluralize(len(chosen), what)}"
    if low == high:
        raise CapsellaError(f"all values of the {what}s are {low:g}; set a range, e.g. --range 0 4095")
    return replace(options, range=(low, high)), f"{origin}; --range sets it"


def _notes(options: FolderData, paths: Sequence[str], facts: Sequence[_Facts]) -> list[str]:
    """Return a line for each kind of change that reading makes to some files, other than their size."""
    oblong = [path for path, fact in zip(paths, facts, strict=True) if cropped_share(fact.size, (1, 1)) >= LEAST_LOSS]
    transparent = [path for path, fact in zip(paths, facts, strict=True) if fact.transparent]
    colour = [path for path, fact in zip(paths, facts, strict=True) if fact.channels == 3]
    notes = []
    if oblong and options.size is not None and options.cut is None and options.fit != "crop":
        done = "padded with the colour of the border" if options.fit == "pad" else "squashed"
        notes.append(f"{_named(oblong)} not square: {done}")
    if transparent:
        notes.append(f"{_named(transparent)} with transparency: transparent pixels become black")
    if options.channels == 1 and 0 < len(colour) < len(paths):
        notes.append(f"{_named(colour)} in colour, among grey ones: all become grey")
    return notes


def _named(paths: Sequence[str]) -> str:
    return f"{pluralize(len(paths), 'file')} ({Path(min(paths)).name}{', …' if len(paths) > 1 else ''})"


def _range_notes(value_range: ValueRange | None, origin: str, facts: Sequence[_Facts]) -> list[str]:
    """Return a line on the range and the files it applies to; none without such files."""
    depths = Counter(fact.depth for fact in facts if fact.depth is not None)
    if value_range is None or not depths:
        return []
    each = ", ".join(f"{pluralize(number, 'file')} of {depth}" for depth, number in depths.items())
    low, high = (f"{value:,.6g}" for value in value_range)
    rest = len(facts) - depths.total()
    of_8_bits = f"; unchanged: {pluralize(rest, 'file')} of 8 bits" if rest else ""
    return [f"{each} per channel: values {low} to {high} become 0 to 255, {origin}{of_8_bits}"]

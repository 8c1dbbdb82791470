"""Read the user's images in a folder with one subfolder per class."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from capsella.data.cell_crop import MAX_SAMPLES, typical_radius
from capsella.data.duplicates import Fingerprints
from capsella.data.images import ImageSet
from capsella.data.listing import ClassFile, SkippedFiles, list_files, spread
from capsella.data.options import FolderData
from capsella.data.reading import ImageCallback, Loss, LossCount, decode, read_all, rgb_images
from capsella.data.scan import FolderScan, read_header
from capsella.data.splits import SPLIT_NAMES, SourceSplits, SplitTable
from capsella.errors import CapsellaError, pluralize

Reader = Callable[[Path, ImageCallback | None], Tensor]


class FolderReader:
    """A folder of images, listed once; its files' headers are read at once, their pixels by `read`.

    Attributes:
        value_range: for files of more than 8 bits per channel; set it, or call `find_range`, if `needs_range`.

    Raises:
        CapsellaError: as `list_files`, or files whose header cannot be read (unless skip_broken), or too little memory.
    """

    def __init__(self, options: FolderData, table: SplitTable | None, *, headers: bool = True) -> None:
        """Args: options. table: a split file; files that it leaves unused are not read. headers: read headers."""
        self.options, self.root, self.table = options, options.path, table
        self.skipped = SkippedFiles()
        every = list_files(self.root, self.skipped)
        self.listing = tuple(file.path for file in every)
        unused = frozenset() if table is None else table.unused
        self.files = [file for file in every if file.path not in unused]
        if table is not None and not self.files:
            raise CapsellaError(f"{table.path}: must put images of {self.root} in train and test, but all are unused")
        self.contents: dict[Path, int] = {}  # digests of the files that `read` has read
        self.fingerprints = Fingerprints(wanted=options.duplicates != "ignore")
        self.scan = FolderScan(options, len(self.files))
        self.value_range = options.range
        self.range_note = "as set, or measured before"
        if headers:
            self._read_headers()

    def _read_headers(self) -> None:
        readers = {file.path: partial(self.scan.add, self.root / file.path, file.path) for file in self.files}
        _, rows, _ = read_all(readers, self.options.skip_broken)
        self.scan.check_memory(len(rows))

    @property
    def needs_range(self) -> bool:
        """True if there are files of more than 8 bits per channel, and no range."""
        return bool(self.scan.deep) and self.value_range is None

    def find_range(self, training_files: Sequence[str]) -> None:
        """Set the range from the values of the training images; from those of all images if there are none."""
        self.value_range, self.range_note = self.scan.find_range(training_files)

    def read_without_pixels(self) -> SourceSplits:
        """Read what a split depends on: classes, groups and, to find copies, fingerprints."""
        return self._read(partial(_read_header, whole=self.options.skip_broken), self.options.cell_radius)

    def read(self) -> SourceSplits:
        """Read and decode every image once.

        Raises:
            CapsellaError: a broken image (unless skip_broken), a class of broken images alone, or images that differ in
                channels or size unless the options set these.
        """
        options = replace(self.options, range=self.value_range)
        if options.cells != "whole" and options.cell_radius is None:
            sample = [self.root / self.files[row].path for row in spread(len(self.files), MAX_SAMPLES)]
            options = replace(options, cell_radius=typical_radius(rgb_images(sample)))
        decoded: dict[Path, Loss] = {}

        def read(file: Path, callback: ImageCallback | None) -> Tensor:
            pixels, decoded[file] = decode(file, str(file), options.preprocessing, callback)
            self.contents[file] = _content(file)
            return pixels

        source = self._read(read, options.cell_radius)
        losses = LossCount.of(decoded.values())
        files = [file for images in source.named().values() for file in images.files or ()]
        about_range = self.scan.range_notes(self.value_range, self.range_note, files)
        notes = (*source.notes, *self.scan.notes(), *about_range, *losses.outside_lines())
        return replace(source, notes=notes, unseen=losses.lines())

    def _read(self, read: Reader, cell_radius: float | None) -> SourceSplits:
        paths = [self.root / file.path for file in self.files]
        readers = {
            file.path: partial(read, path, self.fingerprints.of(row))
            for row, (file, path) in enumerate(zip(self.files, paths, strict=True))
        }
        images, rows, errors = read_all(readers, self.options.skip_broken)
        files, broken = [self.files[row] for row in rows], tuple(map(str, errors))
        names = tuple(file.path for file in files)
        classes = self._class_names(files, broken)
        groups = {} if self.options.group is None else {"group": _groups(self.options.group, names)}
        contents = torch.tensor([self.contents.get(paths[row], 0) for row in rows])
        labels = torch.tensor([classes.index(file.label) for file in files])
        everything = ImageSet(images, labels, classes, names, {"content": contents, **groups})
        source = SourceSplits(
            self.root.resolve().name,
            everything,
            broken=broken,
            notes=(*self.skipped.notes(), *_about_groups(everything)),
            cell_radius=cell_radius,
            fingerprints=self.fingerprints.array(rows),
            listing=self.listing,
        )
        if files[0].split is None or self.table is not None:
            return source
        return _split(source, [file.split or "" for file in files])

    def _class_names(self, files: Sequence[ClassFile], broken: Sequence[str]) -> tuple[str, ...]:
        classes, present = sorted({file.label for file in self.files}), {file.label for file in files}
        for name in classes:
            if name not in present:
                raise CapsellaError(
                    f"{self.root}: no image of the class {name!r} can be read. Left out: {'; '.join(broken)}"
                )
        return tuple(classes)


def _content(file: Path) -> int:
    """Return 63 bits of a digest of a file, which change if another image is saved under its name."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=8)).digest()
    return int.from_bytes(digest) >> 1


def _read_header(file: Path, callback: ImageCallback | None, whole: bool) -> Tensor:
    return read_header(file, callback, whole=whole)


def _split(source: SourceSplits, splits: Sequence[str]) -> SourceSplits:
    """Divide a source as its folders train, val and test do."""
    rows = {split: [row for row, name in enumerate(splits) if name == split] for split in SPLIT_NAMES}
    for split in ("train", "test"):
        if not rows[split]:
            raise CapsellaError(f"{source.name}: the {split} split is empty; a split of your own needs train and test")
    order = [row for split in SPLIT_NAMES for row in rows[split]]
    sets = {split: source.train.subset(rows[split]) for split in SPLIT_NAMES if rows[split]}
    fingerprints = None if source.fingerprints is None else source.fingerprints[order]
    return replace(source, fingerprints=fingerprints, **sets)  # type: ignore[arg-type]


def _groups(pattern: str, paths: Sequence[str]) -> Int64[Tensor, " n"]:
    """Return a number for each distinct text that the pattern captures."""
    texts = []
    for path in paths:
        match = re.search(pattern, path)
        if match is None or match[1] is None:
            raise CapsellaError(f"group: the pattern {pattern!r} must capture a name in every path, got none in {path}")
        texts.append(match[1])
    return torch.from_numpy(np.unique(texts, return_inverse=True)[1].astype(np.int64))


def _about_groups(images: ImageSet) -> tuple[str, ...]:
    # A pattern that captures too little joins patients, or tears them apart: their number tells.
    if "group" not in images.metadata:
        return ()
    sizes = images.metadata["group"].unique(return_counts=True)[1]
    return (f"{pluralize(len(sizes), 'group')} (--group), the largest of {pluralize(int(sizes.max()), 'image')}",)

"""Read a source, and split it into `Splits` or into split files that reproduce the same splits."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from capsella.data.catalogue import read_named
from capsella.data.duplicates import Copies, find_copies
from capsella.data.folder import read_folder
from capsella.data.holdout import Items, hold_out, hold_out_fold, limit_per_class
from capsella.data.images import ImageSet, join
from capsella.data.listing import FolderListing, list_folder
from capsella.data.npz import read_npz
from capsella.data.options import DataOptions, Duplicates, FileData, FolderData, NamedData, NpzData
from capsella.data.splits import SPLIT_NAMES, UNUSED, SourceSplits, Splits, SplitTable, TableRow, read_split_file
from capsella.data.summary import ClassCounts, describe
from capsella.errors import ArgumentError, CapsellaError, errors_of, unknown_name
from capsella.image_options import ValueRange

Rows = Int64[Tensor, " k"]  # indices of a source's images: its training images first, then validation and test images

_MISSING = -1  # value of metadata that only other splits of the source have

# The training sets of Forslöv's thesis (2018, §8.1, Table 1), as fields of `DataOptions`.
THESIS_SETS: dict[str, dict[str, int]] = {
    "mini": {"per_class": 100},
    "small": {"per_class": 300},
    "medium-size": {"per_class": 900},
    "basic": {"first_classes": 5},
    "medium": {"first_classes": 10},
    "hard": {},
}


def save_split(options: DataOptions, path: Path, say: Callable[[str], object] = lambda note: None) -> list[ClassCounts]:
    """Write the split file of `load_data(options)`.

    With `split_file` in place of `per_class`, `first_classes` and the like, the file gives the same splits, whatever
    the seed.

    Args:
        options: the images. path: the file. say: called with each note, e.g. on skipped files.

    Returns:
        Number of images per class and split.

    Raises:
        ValueError, CapsellaError: as `load_data`.
    """
    source = _load_for_split(options, say)
    source.table(options).write(path)
    return describe(source.split(options))


def thesis_set(name: str, options: DataOptions) -> DataOptions:
    """Return `options` limited to a training set of the thesis (2018, §8.1, Table 1).

    The sets share validation and test images (of their classes). Mini is part of small, and small of medium-size. A
    class with fewer images than the set asks for contributes all. The thesis had 15 classes of one laboratory; here the
    classes are those of the source, in its order.

    Raises:
        ArgumentError: no set has that name.

    >>> thesis_set("mini", NamedData()).per_class
    100
    """
    if name not in THESIS_SETS:
        raise unknown_name("set", name, THESIS_SETS)
    return options.replace(**{"per_class": None, "first_classes": None, **THESIS_SETS[name]})


def _load_for_split(options: DataOptions, say: Callable[[str], object]) -> "LoadedSource":
    """Load a source for its splits only: its pixels do not matter, so images may differ in size and range."""
    channels = None if isinstance(options, NamedData) and options.camera == "both" else 1
    options = options.replace(size=options.size or 1, channels=channels)
    if isinstance(options, FileData):
        options = options.replace(range=options.range or (0.0, 1.0))
    source = load_source(options.with_measured(None, 1.0))
    for note in (*source.notes, *(f"left out {reason}" for reason in source.broken)):
        say(note)
    return source


def load_source(options: DataOptions, *, whole: bool = False, listing: FolderListing | None = None) -> "LoadedSource":
    """Read a source of single images. A folder is listed once, and each of its images is decoded once.

    Args:
        options: options of a source of single images.
        whole: no part is for training; a folder's range of more than 8 bits is then measured on all images.
        listing: the files of a folder, if it was listed already.
    """
    table = None if options.split_file is None else read_split_file(options.split_file)
    if isinstance(options, FolderData):

        def training_files(source: SourceSplits) -> tuple[str, ...]:
            return () if whole else LoadedSource(source, table).split(options).train.files or ()

        listing = listing or list_folder(options.path)
        source, value_range = read_folder(options, listing, table, training_files)
        return LoadedSource(source, table, value_range)
    if isinstance(options, NpzData):
        return LoadedSource(read_npz(options.path, options), table, options.range)
    if isinstance(options, NamedData):
        return LoadedSource(read_named(options), table)
    raise ArgumentError("data", "be a single source of images", options.kind)


class _Division(NamedTuple):
    classes: tuple[str, ...]
    divided: dict[str, Rows]  # before limits per class
    rows: dict[str, Rows]
    notes: tuple[str, ...]


class LoadedSource:
    """The images of a source, to be split.

    Attributes:
        source: the images in the splits that the source has.
        images: all of them.
        classes: names of the classes; those that the split file leaves wholly unused do not count.
        rows: the images of each split by the split file or the source; splits that are held out later are missing.
        value_range: the range that files of more than 8 bits were read by.

    Raises:
        CapsellaError: the split file does not fit the source, or has no training or test images.
    """

    def __init__(
        self, source: SourceSplits, split_table: SplitTable | None = None, value_range: ValueRange | None = None
    ) -> None:
        """`split_table` holds the split file that divides the images, if any."""
        self.source, self.split_table, self.value_range = source, split_table, value_range
        self.notes, self.broken = source.notes, source.broken
        sets = source.named()
        with errors_of(f"{source.name}: images of all splits must be alike, set --size and --channels"):
            self.images = join([_with_metadata(images, sets.values()) for images in sets.values()])
        every = torch.arange(len(self.images)).split([len(images) for images in sets.values()])
        self.rows = dict(zip(sets, every, strict=True))
        self.classes = self.images.classes
        self._copies: dict[Duplicates, Copies | None] = {}
        if split_table is not None:
            self.classes, self.rows = self._by_table(split_table)

    def split(self, options: DataOptions) -> Splits:
        """Split the images by `options`."""
        division, source = self._divide(options), self.source
        train, validation, test = (self._take(division.rows[name], division.classes) for name in SPLIT_NAMES)
        table = None
        if source.listing is not None:
            table = self._table(division.divided, set(source.listing))
        about = source.broken, (*source.notes, *division.notes), self.value_range, source.cell_radius, table
        return Splits(source.name, train, validation, test, *about, source.unseen)

    def table(self, options: DataOptions) -> SplitTable:
        """Return the table for the split file of `split(options)`."""
        unused = self.split_table.unused if self._by_file and self.split_table is not None else ()
        return self._table(self._divide(options).rows, unused)

    def _table(self, rows: dict[str, Rows], others: Iterable[str]) -> SplitTable:
        """Return a table of the split of each image. `others` are listed as unused if they were not read."""
        split_of = {row: name for name, part in rows.items() for row in part.tolist()}
        keys, names = self._keys(self._by_file), self._class_names
        listed = [(key, split_of.get(row, UNUSED), names[row]) for row, key in enumerate(keys)]
        listed += [(file, UNUSED, "") for file in sorted({*others} - {*keys})]
        table = {
            key: TableRow(line, split, None if self._by_file else name)
            for line, (key, split, name) in enumerate(listed, 2)
        }
        return SplitTable(self._by_file, table)

    @property
    def _class_names(self) -> list[str]:
        """The class of each image."""
        return [self.images.classes[label] for label in self.images.labels.tolist()]

    @property
    def _by_file(self) -> bool:
        """True if every image has its own file name."""
        files = self.images.files
        return files is not None and len(set(files)) == len(files)

    def _keys(self, by_file: bool) -> Iterable[str]:
        """Return each image's key in a split file: its file name or position."""
        return self.images.files or () if by_file else [str(number) for number in range(len(self.images))]

    def _by_table(self, table: SplitTable) -> tuple[tuple[str, ...], dict[str, Rows]]:
        """Return the classes in use, and the rows of each split."""
        name, names = self.source.name, self._class_names
        if table.by_file and not self._by_file:
            raise CapsellaError(
                f"{table.path}: {name} has no file name of its own for each image; its split file must have the "
                "columns index, class and split"
            )
        keys = list(self._keys(table.by_file))
        _check_rows(self.source, dict(zip(keys, names, strict=True)), table)
        rows = {
            split: torch.tensor([row for row, key in enumerate(keys) if table.rows[key].split == split]).long()
            for split in SPLIT_NAMES
        }
        for split in ("train", "test"):
            if not len(rows[split]):
                raise CapsellaError(f"{name}: the {split} split is empty; a split file needs train and test")
        used = {names[row] for part in rows.values() for row in part.tolist()}
        classes = tuple(label for label in self.images.classes if label in used or label not in names)
        return classes, {split: part for split, part in rows.items() if len(part)}

    def _divide(self, options: DataOptions) -> _Division:
        """Divide the images into splits, and apply the limits per class."""
        divided, notes = self._held_out(options)
        first = options.first_classes
        if first is not None and first > len(self.classes):
            rule = f"be at most {len(self.classes)}, the classes of {self.source.name}"
            raise ArgumentError("first_classes", rule, first)
        classes, labels = self.classes[:first], self.images.labels
        kept = torch.tensor([self.images.classes.index(name) for name in classes])
        limits = (options.per_class, options.validation_per_class, options.test_per_class)
        rows = {}
        for (split, part), limit in zip(divided.items(), limits, strict=True):
            if limit is not None:
                part = part[limit_per_class(labels[part], limit, options.split_seed)]
            rows[split] = part[torch.isin(labels[part], kept)]
        return _Division(classes, divided, rows, notes)

    def _held_out(self, options: DataOptions) -> tuple[dict[str, Rows], tuple[str, ...]]:
        """Hold out the missing splits; return all splits, and notes on copies."""
        copies = self._find_copies(options.duplicates if isinstance(options, FileData) else "ignore")
        groups = self.images.metadata.get("group") if copies is None else torch.from_numpy(copies.groups)
        items = Items(self.images.labels, self.images.classes, groups, copies is not None)
        train, validation, test = (self.rows.get(split) for split in SPLIT_NAMES)
        with errors_of(self.source.name):
            if options.folds is not None:
                if options.fold is None:
                    raise ArgumentError("fold", f"be one of the {options.folds} folds", None, "e.g. --fold 0")
                train, test = hold_out_fold(items, options.folds, options.fold, options.split_seed, train)
            elif test is None:
                keep = 2 if validation is None else 1  # of each class, so that validation can have one
                train, test = hold_out(items, options.test, options.split_seed, keep, train)
            if validation is None:
                train, validation = hold_out(items, options.validation, options.split_seed, among=train)
        assert train is not None
        assert test is not None
        return {"train": train, "validation": validation, "test": test}, copies.notes if copies else ()

    def _find_copies(self, duplicates: Duplicates) -> Copies | None:
        if duplicates not in self._copies:
            prints, name = self.source.fingerprints, self.source.name
            is_wanted = duplicates != "ignore" and prints is not None
            self._copies[duplicates] = (
                find_copies(name, self.images, prints, self.rows, duplicates) if is_wanted else None  # type: ignore[arg-type]
            )
        return self._copies[duplicates]

    def _take(self, rows: Rows, classes: tuple[str, ...]) -> ImageSet:
        taken = self.images.subset(rows)
        taken = replace(taken, metadata={name: of for name, of in taken.metadata.items() if (of != _MISSING).any()})
        return taken if taken.classes == classes else taken.of_classes(classes)


def _with_metadata(images: ImageSet, sets: Iterable[ImageSet]) -> ImageSet:
    """Add the metadata that only other sets have, with the value `_MISSING`."""
    missing = {name: torch.full((len(images),), _MISSING) for other in sets for name in other.metadata}
    return replace(images, metadata={**missing, **images.metadata})


def _check_rows(source: SourceSplits, known: dict[str, str], table: SplitTable) -> None:
    gone = [key for key, row in table.rows.items() if key not in known and not (table.by_file and row.split == UNUSED)]
    if table.by_file:  # broken files were left out of the source; positions do not count them
        gone = [key for key in gone if not any(f"/{key}: " in f"/{reason}" for reason in source.broken)]
    if gone:
        raise CapsellaError(f"{table.path}, line {table.rows[gone[0]].line}: {gone[0]} is not in {source.name}")
    unlisted = [key for key in known if key not in table.rows]
    if unlisted:
        raise CapsellaError(
            f"{source.name}: split_file must list every image; it lacks {len(unlisted)}, e.g. {unlisted[0]}"
        )
    for key, name in known.items():
        row = table.rows[key]
        if row.class_name is not None and row.class_name != name:
            raise CapsellaError(
                f"{table.path}, line {row.line}: image {key} of {source.name} must be of the class {name!r}, "
                f"got {row.class_name!r}; was the file written with other options?"
            )

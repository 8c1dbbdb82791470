"""Read a source and split it: to `Splits` of images, and to split files that bring the same splits back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from capsella.data.catalogue import read_named
from capsella.data.duplicates import Copies, find_copies
from capsella.data.folder import FolderReader
from capsella.data.holdout import Items, hold_out, hold_out_fold, limit_per_class
from capsella.data.images import ImageSet, join
from capsella.data.npz import read_npz
from capsella.data.options import DataOptions, Duplicates, FileData, FolderData, NamedData, NpzData
from capsella.data.splits import (
    SPLIT_NAMES,
    UNUSED,
    SourceSplits,
    Splits,
    SplitTable,
    TableRow,
    read_split_file,
)
from capsella.data.summary import ClassCounts, describe
from capsella.errors import ArgumentError, CapsellaError, errors_of, unknown_name
from capsella.image_options import ValueRange

Rows = Int64[Tensor, " k"]  # indices of a source's images: its training images first, then validation and test images

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
    the seed. Pixels of a folder are read only to find copies or broken files.

    Args:
        options: the images. path: the file. say: called with each note, e.g. on skipped files.

    Returns:
        Number of images per class and split.

    Raises:
        ValueError, CapsellaError: as `load_data`.
    """
    source = load_source(options, pixels=False)
    table, counts = source.table(options)
    source.tell(say)
    table.write(path)
    return counts


def thesis_set(name: str, options: DataOptions) -> DataOptions:
    """Return `options` limited to a training set of the thesis (2018, §8.1, Table 1).

    The sets share validation and test images (of their classes). Mini is a part of small, and that of medium-size. A
    class with fewer images than the set asks for gives all. The thesis had 15 classes of one laboratory; here they are
    the source's, in its order.

    Raises:
        ArgumentError: no set has that name.

    >>> thesis_set("mini", NamedData()).per_class
    100
    """
    if name not in THESIS_SETS:
        raise unknown_name("set", name, THESIS_SETS)
    return options.replace(**{"per_class": None, "first_classes": None, **THESIS_SETS[name]})


def load_source(options: DataOptions, *, whole: bool = False, pixels: bool = True) -> "LoadedSource":
    """Read a source of single images. A folder is listed once, and each of its images of 8 bits is decoded once.

    Args:
        options: of single images.
        whole: no part is for training, so that the range of a folder's deeper images is that of all.
        pixels: without, only what the splits of a folder depend on is read.
    """
    table = None if options.split_file is None else read_split_file(options.split_file)
    if isinstance(options, FolderData):
        crops = options.skip_broken and options.cut is not None  # only pixels tell that an image shows no cell
        if not pixels and not crops:
            return LoadedSource(FolderReader(options, table, headers=False).read_without_pixels(), table)
        reader = FolderReader(options, table)
        if reader.needs_range:
            train = () if whole else LoadedSource(reader.read_without_pixels(), table).split(options).train.files
            reader.find_range(train or ())
        return LoadedSource(reader.read(), table, reader.value_range if reader.scan.deep else options.range)
    if isinstance(options, NpzData):
        return LoadedSource(read_npz(options.path, options), table, options.range)
    if isinstance(options, NamedData):
        return LoadedSource(read_named(options), table)
    raise ArgumentError("data", "be a single source of images", options.kind)


@dataclass(frozen=True, eq=False)
class LoadedSource:
    """The images of a source, the split file that divides them, if any, and the range that deep files were read by."""

    source: SourceSplits
    split_table: SplitTable | None = None
    value_range: ValueRange | None = None
    _copies: dict[Duplicates, Copies | None] = field(default_factory=dict, repr=False)

    def tell(self, say: Callable[[str], object]) -> None:
        """Call `say` with each note, and with each file that was left out."""
        for note in self.source.notes:
            say(note)
        for reason in self.source.broken:
            say(f"left out {reason}")

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; those that the split file leaves wholly unused do not count."""
        return self._indices[0]

    def split(self, options: DataOptions) -> Splits:
        """Split the images as `options` say."""
        split = self._split(options)
        train, validation, test = (self._take(split.rows[name], split.classes) for name in SPLIT_NAMES)
        source, notes = self.source, (*self.source.notes, *split.notes)
        table = self._file_table(split.divided) if source.listing is not None else None
        about = source.broken, notes, self.value_range, source.cell_radius, table, source.unseen
        return Splits(source.name, train, validation, test, *about)

    def table(self, options: DataOptions) -> tuple[SplitTable, list[ClassCounts]]:
        """Return the table for the split file of `split(options)`, and the number of images per class and split."""
        split, by_file = self._split(options), self._has_file_names
        split_of = {row: name for name, rows in split.rows.items() for row in rows.tolist()}
        keys, names = self._keys(by_file), self._names
        listed = [
            (key, split_of.get(row, UNUSED), None if by_file else name)
            for row, (key, name) in enumerate(zip(keys, names, strict=True))
        ]
        if by_file and self.split_table is not None and self.split_table.by_file:  # unused files remain so
            listed += [(file, UNUSED, None) for file in sorted(self.split_table.unused - set(keys))]
        rows = {key: TableRow(line, name, class_name) for line, (key, name, class_name) in enumerate(listed, 2)}
        pixel = torch.zeros(1, 1, 1, 1, dtype=torch.uint8)
        sets = {name: self._take(rows, split.classes, pixel) for name, rows in split.rows.items()}
        return SplitTable(by_file, rows), describe(Splits(self.source.name, **sets))  # type: ignore[arg-type]

    def _file_table(self, divided: dict[str, Rows]) -> SplitTable:
        """Return the split of every listed file before limits per class; broken files are unused."""
        keys = self._keys(by_file=True)
        split_of = {keys[row]: name for name, rows in divided.items() for row in rows.tolist()}
        listing = self.source.listing or ()
        return SplitTable(True, {file: TableRow(0, split_of.get(file, UNUSED), None) for file in listing})

    @property
    def _names(self) -> list[str]:
        """The class of each image."""
        sets = self.source.named().values()
        return [images.classes[label] for images in sets for label in images.labels.tolist()]

    @property
    def _has_file_names(self) -> bool:
        """True if every image has its own file name."""
        sets = self.source.named().values()
        files = {file for images in sets for file in images.files or ()}
        return len(files) == sum(map(len, sets))

    def _keys(self, by_file: bool) -> list[str]:
        """Return how a split file calls each image."""
        sets = self.source.named().values()
        if by_file:
            return [file for images in sets for file in images.files or ()]
        return [str(number) for number in range(sum(map(len, sets)))]

    @cached_property
    def _indices(self) -> tuple[tuple[str, ...], dict[str, Rows | None]]:
        """The classes, and the images of each split by the split file or the source; None for a missing split.

        Raises:
            CapsellaError: the split file does not fit the source, or has no training or test images.
        """
        source, table = self.source, self.split_table
        if table is None:
            ends = torch.tensor([len(images) for images in source.named().values()]).cumsum(0).tolist()
            starts = dict(zip(source.named(), zip([0, *ends], ends, strict=False), strict=True))
            own = {name: torch.arange(*starts[name]) if name in starts else None for name in SPLIT_NAMES}
            return source.train.classes, own
        if table.by_file and not self._has_file_names:
            raise CapsellaError(
                f"{table.path}: {source.name} has no file name of its own for each image; "
                "its split file must have the columns index, class and split"
            )
        keys, names = self._keys(table.by_file), self._names
        _check_rows(source, dict(zip(keys, names, strict=True)), table)
        rows = {
            split: torch.tensor([row for row, key in enumerate(keys) if table.rows[key].split == split]).long()
            for split in SPLIT_NAMES
        }
        for split in ("train", "test"):
            if not len(rows[split]):
                raise CapsellaError(f"{source.name}: the {split} split is empty; a split file needs train and test")
        used = {names[row] for chosen in rows.values() for row in chosen.tolist()}
        classes = tuple(name for name in source.train.classes if name in used or name not in names)
        return classes, {**rows, "validation": rows["validation"] if len(rows["validation"]) else None}

    def _split(self, options: DataOptions) -> "_Split":
        """Compute the images of each split, as indices."""
        classes, _ = self._indices
        divided, notes = self._divide(options)
        labels = self._labels
        if options.first_classes is not None and options.first_classes > len(classes):
            rule = f"be at most {len(classes)}, the classes of {self.source.name}"
            raise ArgumentError("first_classes", rule, options.first_classes)
        limits = (options.per_class, options.validation_per_class, options.test_per_class)
        chosen = classes[: options.first_classes]
        kept = torch.tensor([self.source.train.classes.index(name) for name in chosen])
        parts = {}
        for (name, part), limit in zip(divided.items(), limits, strict=True):
            if limit is not None:
                part = part[limit_per_class(labels[part], limit, options.split_seed)]
            parts[name] = part if len(chosen) == len(classes) else part[torch.isin(labels[part], kept)]
        return _Split(chosen, divided, parts, notes)

    def _divide(self, options: DataOptions) -> tuple[dict[str, Rows], tuple[str, ...]]:
        """Divide the images, and return notes on copies; without limits per class."""
        source, rows = self.source, self._indices[1]
        duplicates = options.duplicates if isinstance(options, FileData) else "ignore"
        if duplicates not in self._copies:
            given = {name: part for name, part in rows.items() if part is not None}
            self._copies[duplicates] = find_copies(source, given, duplicates)
        copies = self._copies[duplicates]
        groups = _groups(source) if copies is None else torch.from_numpy(copies.groups)
        items = Items(self._labels, source.train.classes, groups, copies is not None)
        train, validation, test = (rows[split] for split in SPLIT_NAMES)
        with errors_of(source.name):
            if options.folds is not None:
                if options.fold is None:
                    raise ArgumentError("fold", f"be one of the {options.folds} folds", None, "e.g. --fold 0")
                train, test = hold_out_fold(items, options.folds, options.fold, options.split_seed, train)
            elif test is None:
                keep = 2 if validation is None else 1  # of each class, so that validation can have one
                train, test = hold_out(items, options.test, options.split_seed, keep, train)
            if validation is None:
                train, validation = hold_out(items, options.validation, options.split_seed, among=train)
        divided = {"train": train, "validation": validation, "test": test}
        return {name: part for name, part in divided.items() if part is not None}, copies.notes if copies else ()

    @cached_property
    def _labels(self) -> Int64[Tensor, " n"]:
        return torch.cat([images.labels for images in self.source.named().values()])

    def _take(self, rows: Rows, classes: Sequence[str], pixel: Tensor | None = None) -> ImageSet:
        """Return the images at `rows`, in order, with labels numbered by `classes`; `pixel`: in place of their pixels.

        Raises:
            CapsellaError: they are of splits of the source with images of different sizes.
        """
        pieces, start = [], 0
        for images in self.source.named().values():
            here = rows[(rows >= start) & (rows < start + len(images))] - start
            if pixel is not None:
                images = replace(images, images=pixel.expand(len(images), -1, -1, -1))
            if len(here):
                pieces.append(images if len(here) == len(images) else images.subset(here))
            start += len(images)
        pieces = pieces or [self.source.train.subset(rows)]
        if len({images.images.shape[1:] for images in pieces}) > 1:
            raise CapsellaError(f"{self.source.name}: images must have one size in all splits to be mixed; set --size")
        taken = join(pieces) if len(pieces) > 1 else pieces[0]
        return taken if taken.classes == tuple(classes) else taken.of_classes(classes)


@dataclass(frozen=True)
class _Split:
    classes: tuple[str, ...]
    divided: dict[str, Rows]  # before limits per class
    rows: dict[str, Rows]
    notes: tuple[str, ...]


def _groups(source: SourceSplits) -> Int64[Tensor, " n"] | None:
    """Return the groups of all images, or None if the training images have none."""
    sets = source.named().values()
    if "group" not in source.train.metadata:
        return None
    return torch.cat([images.metadata.get("group", torch.full((len(images),), -1)) for images in sets])


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

"""Load images: from options of any kind to train, validation and test images, or to split files that reproduce them."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from capsella.data.catalogue import read_named
from capsella.data.cell_crop import CYTOPLASM
from capsella.data.domains import Domain, common_classes, copies_among, match_classes, options_of_domain
from capsella.data.download import data_root
from capsella.data.duplicates import Copies, find_copies
from capsella.data.folder import list_folder, read_folder
from capsella.data.holdout import Items, hold_out, hold_out_fold, limit_per_class
from capsella.data.images import join
from capsella.data.npz import read_npz
from capsella.data.options import (
    DataOptions,
    DomainData,
    Duplicates,
    FileData,
    FolderData,
    NamedData,
    NpzData,
    PairData,
)
from capsella.data.pairs import PairSet
from capsella.data.splits import (
    SPLIT_NAMES,
    UNUSED,
    SourceSplits,
    Splits,
    SplitTable,
    TableRow,
    read_split_file,
    single_images,
)
from capsella.data.summary import ClassCounts, describe
from capsella.errors import ArgumentError, CapsellaError, errors_of
from capsella.image_options import CellCut, ValueRange

Rows = Int64[Tensor, " k"]  # indices of a source's images: its training images first, then validation and test images

PAIRS_PER_IMAGE = 1000  # Sabour et al. 2017, §6: 1,000 pairs per digit, of 60,000 to train and 10,000 to test

# The training sets of Forslöv's thesis (2018, §8.1, Table 1), as fields of `DataOptions`. They share validation and
# test images; mini is part of small, and small of medium-size. The thesis had 15 classes of one laboratory.
THESIS_SETS: dict[str, dict[str, Any]] = {
    "mini": {"per_class": 100},
    "small": {"per_class": 300},
    "medium-size": {"per_class": 900},
    "basic": {"first_classes": 5},
    "medium": {"first_classes": 10},
    "hard": {},
}


def load_data(options: DataOptions) -> Splits:
    """Load images and split them.

    The test images are held out first, then the validation images from the rest, unless the source has them. Then
    `per_class`, `validation_per_class` and `test_per_class` limit each split, and `first_classes` selects classes.
    Pairs are made last, of two images of the same split.

    Raises:
        ValueError: no such public data set, or fewer classes than `first_classes`; pairs of images in colour, or
            of fewer than three classes.
        CapsellaError: the images are missing, cannot be read, or cannot be split as asked.
    """
    if isinstance(options, PairData):
        return _pairs(load_data(options.single()), options)
    if isinstance(options, DomainData):
        return _domains(options)
    return load_source(options).split(options)


def load_once(options: DataOptions) -> Splits:
    """Load like `load_data`, and cache the last public data set. Your own images, which may change, are read anew."""
    return load_data(options) if options.paths else _loaded(options, data_root())


@lru_cache(maxsize=1)
def _loaded(options: DataOptions, root: Path) -> Splits:
    # `root` is only part of the cache's key.
    return load_data(options)


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
    channels = None if isinstance(options, NamedData) and options.camera == "both" else 1
    small = options.replace(size=options.size or 1, channels=channels)  # pixels do not matter, nor does their range
    source = load_source(small.with_measured((0.0, 1.0), CellCut(matched=True, radius=1.0, stain=CYTOPLASM)))
    for note in (*source.source.notes, *(f"left out {reason}" for reason in source.source.broken)):
        say(note)
    source.table(options).write(path)
    return describe(source.split(options))


def load_source(options: DataOptions, table: SplitTable | None = None) -> "LoadedSource":
    """Read a source of single images. `table` replaces the split file of the options."""
    if table is None and options.split_file is not None:
        table = read_split_file(options.split_file)
    if isinstance(options, FolderData):
        source = read_folder(options, list_folder(options.path), table)
    elif isinstance(options, NpzData):
        source = replace(read_npz(options.path, options, label=options.label), value_range=options.range)
    elif isinstance(options, NamedData):
        source = read_named(options)
    else:
        raise ArgumentError("data", "be a single source of images", options.kind)
    return LoadedSource(source, table, options.duplicates if isinstance(options, FileData) else "ignore")


class LoadedSource:
    """The images of a source, to be split.

    Attributes:
        source: the images in the splits that the source has.
        images: all of them.
        classes: names of the classes; those that the split file leaves wholly unused do not count.
        rows: the images of each split by the split file or the source; splits that are held out later are missing.

    Raises:
        CapsellaError: the split file does not fit the source, or has no training or test images.
    """

    def __init__(
        self, source: SourceSplits, split_table: SplitTable | None = None, duplicates: Duplicates = "error"
    ) -> None:
        """`split_table` holds the split file that divides the images, if any; `duplicates` is as in `FileData`."""
        self.source, self._duplicates = source, duplicates
        sets = source.named()
        with errors_of(f"{source.name}: images of all splits must be alike, set --size and --channels"):
            self.images = join([*sets.values()])
        every = torch.arange(len(self.images)).split([len(images) for images in sets.values()])
        self.rows = dict(zip(sets, every, strict=True))
        self.classes = self.images.classes
        files = self.images.files or ()
        self._by_file = 0 < len(set(files)) == len(files)  # every image has its own file name
        keys = files if self._by_file else map(str, range(len(self.images)))
        # The class of each image, by its key in split files: its file name or position.
        self._class_of = dict(zip(keys, [self.classes[label] for label in self.images.labels.tolist()], strict=True))
        if split_table is not None:
            self._apply(split_table)

    def split(self, options: DataOptions) -> Splits:
        """Split the images by `options`."""
        source, divided = self.source, self._held_out(options)
        rows, classes = self._limited(divided, options)
        images: dict[str, Any] = {name: self.images.subset(rows[name]) for name in SPLIT_NAMES}
        if classes != self.images.classes:
            images = {name: part.of_classes(classes) for name, part in images.items()}
        table = None if source.listing is None else self._table(divided)
        notes = () if self._copies is None else (self._copies.note,)
        return Splits(**images, table=table, **source.facts() | {"notes": (*source.notes, *notes)})

    def table(self, options: DataOptions) -> SplitTable:
        """Return the table for the split file of `split(options)`."""
        return self._table(self._limited(self._held_out(options), options)[0])

    def _table(self, rows: dict[str, Rows]) -> SplitTable:
        """Return a table of the split of each image. Files that were not read are listed as unused."""
        split_of = {row: name for name, part in rows.items() for row in part.tolist()}
        table = {
            key: TableRow(split_of.get(row, UNUSED), None if self._by_file else name)
            for row, (key, name) in enumerate(self._class_of.items())
        }
        unread = sorted({*(self.source.listing or ())} - {*table})
        return SplitTable(self._by_file, table | {file: TableRow(UNUSED) for file in unread})

    def _apply(self, table: SplitTable) -> None:
        """Set `classes` and `rows` by a split file."""
        name, class_of = self.source.name, self._class_of
        if table.by_file != self._by_file:
            columns = "file and split" if self._by_file else "index, class and split"
            raise CapsellaError(f"{table.path}: must have the columns {columns} for the images of {name}")
        for key in sorted(table.rows.keys() - class_of.keys() - (table.unused if table.by_file else set())):
            if not any(f"/{key}: " in f"/{reason}" for reason in self.source.broken):  # broken files were left out
                raise CapsellaError(f"{table.path}: {key} is not in {name}")
        if unlisted := [key for key in class_of if key not in table.rows]:
            text = f"split_file must list every image; it lacks {len(unlisted)}, e.g. {unlisted[0]}"
            raise CapsellaError(f"{name}: {text}")
        for key, class_name in class_of.items():
            if (listed := table.rows[key].class_name) not in (None, class_name):
                text = f"must be of the class {class_name!r}, got {listed!r}; was the file written with other options?"
                raise CapsellaError(f"{table.path}: image {key} of {name} {text}")
        split_of = [table.rows[key].split for key in class_of]
        rows = {split: [row for row, other in enumerate(split_of) if other == split] for split in SPLIT_NAMES}
        for split in ("train", "test"):
            if not rows[split]:
                raise CapsellaError(f"{name}: the {split} split is empty; a split file needs train and test")
        unused = set(class_of.values()) - {class_of[key] for key in class_of if table.rows[key].split != UNUSED}
        self.classes = tuple(label for label in self.images.classes if label not in unused)
        self.rows = {split: torch.tensor(part) for split, part in rows.items() if part}

    def _limited(self, divided: dict[str, Rows], options: DataOptions) -> tuple[dict[str, Rows], tuple[str, ...]]:
        """Apply the limits per class and of the number of classes; return the rows and classes that are left."""
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
        return rows, classes

    def _held_out(self, options: DataOptions) -> dict[str, Rows]:
        """Hold out the missing splits; return all splits."""
        copies = self._copies
        groups = self.images.metadata.get("group") if copies is None else torch.from_numpy(copies.groups)
        items = Items(self.images.labels, self.images.classes, groups)
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
        return {"train": train, "validation": validation, "test": test}

    @cached_property
    def _copies(self) -> Copies | None:
        return find_copies(self.source.name, self.images, self.rows, self._duplicates)


def read_domain(
    domain: str,
    data: DataOptions,
    value_range: ValueRange | None = None,
    cut: CellCut | None = None,
    group: str | None = None,
) -> Domain:
    """Read all images of a domain.

    Args:
        domain: a folder with one subfolder per class, an .npz file, or a public data set.
        data: how images are read.
        value_range, cut: values measured before; None measures them now.
        group: as in `DataOptions`.

    Raises:
        ValueError: a group for a data set without groups. CapsellaError: the images are missing or cannot be read.
    """
    options = options_of_domain(data, domain)
    options = replace(options, group=group or options.group).with_measured(value_range, cut)
    loaded = load_source(options)
    source, images = loaded.source, loaded.images
    if copies := find_copies(source.name, images, {"train": torch.arange(len(images))}, "keep"):
        images = replace(images, metadata={**images.metadata, "copies": torch.from_numpy(copies.groups)})
    return Domain(images=images, **source.facts())


def _domains(options: DomainData) -> Splits:
    """Split each domain separately and join the splits; the metadata `domain` is the index of an image's domain.

    If any domain has groups, each image of a domain without groups is a group of its own. The result has no range of
    values, because a range belongs to one camera.
    """
    domains = [options_of_domain(options, domain) for domain in options.domains]
    sources = [load_source(domain) for domain in domains]
    whole = [loaded.images for loaded in sources]
    classes = options.classes or common_classes(whole, options.domains)
    has_groups, alone = any("group" in images.metadata for images in whole), count(-1, -1)
    splits = []
    for number, (loaded, domain) in enumerate(zip(sources, domains, strict=True)):
        parts = {}
        for name, part in _of_classes(loaded, classes).split(domain).named().items():
            single = single_images(part, "several domains")
            metadata = {"domain": torch.full((len(single),), number)}
            if (group := single.metadata.get("group")) is not None:
                metadata["group"] = group.long() * len(domains) + number
            elif has_groups:
                metadata["group"] = torch.tensor([*islice(alone, len(single))])
            parts[name] = replace(single, metadata=metadata)
        splits.append(parts)
    train, validation, test = (join([split[name] for split in splits]) for name in SPLIT_NAMES)
    notes = [note for loaded in sources for note in loaded.source.notes]
    if copies := len(copies_among(test, join([train, validation]))):
        notes.append(f"WARNING: {copies} of {len(test)} test images are copies of another domain's training images")
    return Splits(
        ", ".join(loaded.source.name for loaded in sources),
        train,
        validation,
        test,
        broken=tuple(error for loaded in sources for error in loaded.source.broken),
        notes=tuple(notes),
    )


def _of_classes(loaded: LoadedSource, classes: tuple[str, ...]) -> LoadedSource:
    """Return the source with only the images of `classes`; their labels become indices into it."""
    sets: dict[str, Any] = {split: match_classes(images, classes) for split, images in loaded.source.named().items()}
    return LoadedSource(replace(loaded.source, **sets), duplicates="keep")


def _pairs(splits: Splits, options: PairData) -> Splits:
    """Make pairs within each split; each split draws them with another seed.

    Raises:
        CapsellaError: images with a bright border, whose sums would be white.
    """
    sources = [single_images(images, "pairs") for images in splits.named().values()]
    few = sources[0].images[:1000].float()
    border = float(torch.cat([few[..., [0, -1], :].flatten(), few[..., [0, -1]].flatten()]).mean())
    if border > 127:
        text = f"images must be light on black for pairs, got borders with a mean of {border:.0f} of 255; invert them"
        raise CapsellaError(f"{splits.name}: {text}")
    numbers = (options.train_pairs, options.validation_pairs, options.test_pairs)
    train, validation, test = (
        PairSet(images, number or PAIRS_PER_IMAGE * len(images), 3 * options.split_seed + stream, options.pair_shift)
        for stream, (images, number) in enumerate(zip(sources, numbers, strict=True))
    )
    name = f"pairs of {splits.name}"
    return replace(splits, name=name, train=train, validation=validation, test=test, table=None)

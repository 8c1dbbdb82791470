"""From a source's images to their splits, as options or a split file say; and from there to a split file."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import torch

from capsella.data.catalogue import read_source
from capsella.data.folder import read_folder
from capsella.data.images import ImageSet, join
from capsella.data.options import DataOptions, FileData, FolderData
from capsella.data.show import ClassCounts, describe
from capsella.data.source import Parts
from capsella.data.split.copies import keep_together
from capsella.data.split.holdout import first_per_class, hold_out, hold_out_fold
from capsella.data.split.sets import SPLIT_NAMES, Splits
from capsella.data.split.table import UNUSED, Row, SplitTable, read_split_file
from capsella.data.survey import Survey, glance
from capsella.errors import CapsellaError, errors_of
from capsella.image_options import ValueRange

_NUMBER = "number in the source"  # with spaces, as no array of a file is called


def load_split(options: DataOptions) -> tuple[Splits, SplitTable]:
    """The images as `load_data` does, but no pairs, and which image goes where, to be written as a split file.

    Raises:
        ValueError, CapsellaError: as `load_data` does.
    """
    source = ReadSource.of(options)
    return source.split(options), source.table(options)[0]


def save_split(options: DataOptions, path: Path, say: Callable[[str], object] = lambda note: None) -> list[ClassCounts]:
    """Write which image `load_data(options)` puts where, for `split_file` in `DataOptions` to bring back.

    The same options with the split file in place of `per_class`, `first_classes` and the like then give the same
    splits, whatever their `split_seed`. The file names images where the source tells them apart by name, as a folder
    does; otherwise it counts them: see `capsella.data.split.table`. Pixels of a folder are read to look for copies
    (`duplicates`), or for broken files (`skip_broken`): without both, a file whose header is whole counts as an image.

    Args:
        options, path: the images; the file.
        say: called with a line for what was noticed, as which files were passed over.

    Returns:
        Images per class and split.

    Raises:
        ValueError, CapsellaError: as `load_data` does.
    """
    source = ReadSource.without_pixels(options)
    table, counts = source.table(options)
    source.tell(say)
    table.write(path)
    return counts


class ReadSource(NamedTuple):
    """A source's images as it parts them, and the split file that parts them anew, where the options name one.

    value_range: of files of more than 8 bits a channel; see `Splits`.
    """

    source: Parts
    given: SplitTable | None
    value_range: ValueRange | None = None

    @classmethod
    def of(cls, options: DataOptions, *, whole: bool = False) -> "ReadSource":
        """Read what the options name; files of a folder are looked at first, before memory is taken.

        whole: no part of a folder is for training, so its range of values is that of all images.
        """
        given = None if options.split_file is None else read_split_file(options.split_file)
        if not isinstance(options, FolderData):
            return cls(read_source(options, given), given, options.value_range)
        survey = Survey(options)
        # A broken file that is left out need not name a group.
        group = None if options.skip_broken else options.group
        listed = read_folder(replace(options, duplicates="ignore", group=group), given, survey.look)
        survey.check_memory(sum(map(len, listed.named().values())))
        found = survey.find_range(lambda: () if whole else cls._glanced(options).split(options).train.files or ())
        read = read_folder(replace(options, range=found.value_range), given)
        files = [file for images in read.named().values() for file in images.files or ()]
        notes = (*read.notes, *survey.notes(), *survey.range_notes(found, files))
        return cls(replace(read, notes=notes), given, found.value_range)

    @classmethod
    def without_pixels(cls, options: DataOptions) -> "ReadSource":
        """The same, but no pixels of a folder's files are kept, or read where no copies or broken files are looked for.

        For splits, which do not depend on pixels otherwise; but only these tell that an image shows no cell to cut out.
        """
        cuts = options.cells != "whole" and options.size is not None
        if not isinstance(options, FolderData) or (options.skip_broken and cuts):
            return cls.of(options)
        return cls._glanced(options)

    @classmethod
    def _glanced(cls, options: FolderData) -> "ReadSource":
        """Of a folder, by its files' headers; all of a file is read where broken ones are left out."""
        given = None if options.split_file is None else read_split_file(options.split_file)
        # A broken file that is left out has no place in a split.
        return cls(read_folder(options, given, partial(glance, whole=options.skip_broken)), given)

    def tell(self, say: Callable[[str], object]) -> None:
        """Say what was noticed and left out."""
        for note in self.source.notes:
            say(note)
        for reason in self.source.broken:
            say(f"left out {reason}")

    @property
    def parts(self) -> Parts:
        """The images as the split file says, or else the source."""
        return self.source if self.given is None else _assigned(self.source, self.given)

    def split(self, options: DataOptions) -> Splits:
        """What `options` hold out and keep of the images."""
        parts, numbered = self._parted(options)
        train, validation, test = (_with_pixels(numbered[split], self.source) for split in SPLIT_NAMES)
        cell_radius = self.source.cell_radius
        return Splits(parts.name, train, validation, test, parts.broken, parts.notes, self.value_range, cell_radius)

    def _parted(self, options: DataOptions) -> tuple[Parts, dict[str, ImageSet]]:
        """The splits, as numbers of images alone: the pixels are copied once, when each image has its place."""
        numbered = self._replace(source=_numbered(self.source))
        parts = keep_together(numbered.parts, options.duplicates if isinstance(options, FileData) else "ignore")
        train, validation, test = parts.train, parts.validation, parts.test
        with errors_of(parts.name):
            if options.folds is not None:
                train, test = _fold(parts, options)
            elif test is None:
                keep = 2 if validation is None else 1  # of each class, so that validation can have one
                train, test = hold_out(train, options.test, options.split_seed, keep)
            if validation is None:
                train, validation = hold_out(train, options.validation, options.split_seed)
        if options.first_classes is not None and options.first_classes > len(train.classes):
            raise ValueError(
                f"first_classes: must be at most {len(train.classes)}, the classes of {parts.name}, "
                f"got {options.first_classes}"
            )
        return parts, {
            "train": _limited(train, options.per_class, options),
            "validation": _limited(validation, options.validation_per_class, options),
            "test": _limited(test, options.test_per_class, options),
        }

    def table(self, options: DataOptions) -> tuple[SplitTable, list[ClassCounts]]:
        """Where `split` puts each image, and how many of each class that makes."""
        parted, sets = self._parted(options)
        split_of = {number: split for split, images in sets.items() for number in images.metadata[_NUMBER].tolist()}
        by_file = _has_file_names(self.source)
        named, keys = self.source.named(), _image_keys(self.source, by_file)
        images = [(key, label) for part in named for key, label in zip(keys[part], _names(named[part]), strict=True)]
        listed = [(key, split_of.get(n, UNUSED), None if by_file else name) for n, (key, name) in enumerate(images)]
        if by_file and self.given is not None and self.given.by_file:  # files that were left unused are so still
            listed += [(file, UNUSED, None) for file in sorted(self.given.unused - {key for key, _ in images})]
        rows = {key: Row(line, split, name) for line, (key, split, name) in enumerate(listed, 2)}
        return SplitTable(by_file, rows), describe(Splits(parted.name, **sets))  # type: ignore[arg-type]


def _fold(parts: Parts, options: DataOptions) -> tuple[ImageSet, ImageSet]:
    """The images to train on, and those of the fold that the options name; test images that are set apart stay so."""
    if options.folds is None or options.fold is None:
        raise ValueError(f"fold: must name one of the {options.folds} folds, as --fold 0")
    return hold_out_fold(parts.train, options.folds, options.fold, options.split_seed)


def _limited(images: ImageSet, per_class: int | None, options: DataOptions) -> ImageSet:
    if per_class is not None:
        images = first_per_class(images, per_class, options.split_seed)
    return images if options.first_classes is None else images.of_classes(images.classes[: options.first_classes])


def _numbered(parts: Parts) -> Parts:
    """Each image with its number, and without its pixels, on which no split depends."""
    numbered, start = {}, 0
    for split, images in parts.named().items():
        number = torch.arange(start, start + len(images))
        pixels = images.images.new_zeros(1, 1, 1, 1).expand(len(images), -1, -1, -1)
        numbered[split] = replace(images, images=pixels, metadata={**images.metadata, _NUMBER: number})
        start += len(images)
    return replace(parts, **numbered)  # type: ignore[arg-type]


def _with_pixels(images: ImageSet, parts: Parts) -> ImageSet:
    """What `_numbered` left out, and without its numbers."""
    numbers = images.metadata[_NUMBER]
    metadata = {name: values for name, values in images.metadata.items() if name != _NUMBER}
    shapes = {tuple(part.images.shape[1:]) for part in parts.named().values()}
    pixels, start = parts.train.images.new_empty(len(images), *parts.train.images.shape[1:]), 0
    for part in parts.named().values():
        rows = numbers - start
        here = (rows >= 0) & (rows < len(part))
        if here.all():
            whole = torch.equal(rows, torch.arange(len(part)))
            return replace(images, images=part.images if whole else part.images[rows], metadata=metadata)
        if len(shapes) > 1:
            raise CapsellaError(f"{parts.name}: images must be of one size in all splits to be mixed; set --size")
        pixels[here] = part.images[rows[here]]
        start += len(part)
    return replace(images, images=pixels, metadata=metadata)


def _has_file_names(parts: Parts) -> bool:
    """Whether file names tell all images of a source apart."""
    sets = parts.named().values()
    files = [file for images in sets for file in images.files or ()]
    return len(set(files)) == sum(map(len, sets))


def _image_keys(parts: Parts, by_file: bool) -> dict[str, list[str]]:
    """What each image is called in a split file, by the source's own split."""
    named, numbers = parts.named(), map(str, count())
    if by_file:
        return {split: list(images.files or ()) for split, images in named.items()}
    return {split: list(islice(numbers, len(images))) for split, images in named.items()}


def _names(images: ImageSet) -> list[str]:
    """The class of each image."""
    return [images.classes[label] for label in images.labels.tolist()]


def _assigned(parts: Parts, table: SplitTable) -> Parts:
    """Part a source's images as a split file says; classes that are wholly unused are left out.

    Only validation may be missing, and is held out later.

    Raises:
        CapsellaError: the file lists files and the images have no names, or an image is not listed, or one that is
            listed is not there or is of another class.
    """
    if table.by_file and not _has_file_names(parts):
        raise CapsellaError(
            f"{table.path}: {parts.name} has no file name of its own for each image; "
            "its split file must have the columns index, class and split"
        )
    keys = _image_keys(parts, table.by_file)
    _check_rows(parts, keys, table)
    sets: dict[str, ImageSet] = {}
    for split in SPLIT_NAMES:
        pieces = [
            images.subset([i for i, key in enumerate(keys[part]) if table.rows[key].split == split])
            for part, images in parts.named().items()
        ]
        sets[split] = join([piece for piece in pieces if len(piece)] or pieces[:1])
    own = Parts.of_own(parts.name, sets, parts.broken, parts.notes)
    # Classes that have images, but none in a split, are no classes of it.
    if unused := _present(parts) - _present(own):
        kept = [name for name in parts.train.classes if name not in unused]
        sets = {split: images.of_classes(kept) for split, images in own.named().items()}
        return replace(own, **sets)  # type: ignore[arg-type]
    return own


def _present(parts: Parts) -> set[str]:
    """Classes that have images."""
    return {one.classes[label] for one in parts.named().values() for label in one.labels.unique().tolist()}


def _check_rows(parts: Parts, keys: dict[str, list[str]], table: SplitTable) -> None:
    named = parts.named()
    known = {key: name for part in named for key, name in zip(keys[part], _names(named[part]), strict=True)}
    gone = [key for key, row in table.rows.items() if key not in known and not (table.by_file and row.split == UNUSED)]
    if table.by_file:  # of files that are listed, the broken ones were left out; an index is counted without them
        gone = [key for key in gone if not any(f"/{key}: " in f"/{reason}" for reason in parts.broken)]
    if gone:
        raise CapsellaError(f"{table.path}, line {table.rows[gone[0]].line}: {gone[0]} is not in {parts.name}")
    unlisted = [key for key in known if key not in table.rows]
    if unlisted:
        raise CapsellaError(
            f"{parts.name}: split_file must list every image; it lacks {len(unlisted)}, as {unlisted[0]}"
        )
    for key, name in known.items():
        row = table.rows[key]
        if row.class_name is not None and row.class_name != name:
            raise CapsellaError(
                f"{table.path}, line {row.line}: image {key} of {parts.name} must be of the class {name!r}, "
                f"got {row.class_name!r}; were other options used when the file was written?"
            )

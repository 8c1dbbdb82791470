"""Splits: the images to train on, to choose a model by, and to test on; and the tables of files with splits or groups.

A split file is a CSV table:

| columns | for |
|---|---|
| `file`, `split` | images with file names: those of a folder relative to it, with forward slashes |
| `index`, `class`, `split` | any other source: an image's position, counted from 0, in the source (training images \
first, then validation and test images), and its class, which reveals another order |

`split` is train, validation, test, or unused. A file lists every image, so that none is left out by mistake.

Groups, e.g. patients, come from a pattern in the file names, or from a table with a column `file` and one other.
"""

import copy
import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from capsella.data.images import ImageSet
from capsella.data.options import is_table
from capsella.data.pairs import PairSet
from capsella.errors import CapsellaError, pluralize
from capsella.files import write_csv
from capsella.image_options import CellCut, ValueRange

LabelledImages = ImageSet | PairSet  # images of one class each, or pairs of images of two classes
SPLIT_NAMES = ("train", "validation", "test")
UNUSED = "unused"


@dataclass(frozen=True, eq=False)
class SourceFacts:
    """Facts about images that were read.

    Attributes:
        name: name of the source, or of the folder or file, for messages.
        broken: the files that were left out because they cannot be read, each with the reason.
        notes: observations about the files, a line each.
        value_range: the values that became 0 and 255 in files of more than 8 bits per channel; None without such files.
        cut: how cells were cropped, with the measured radius of a typical nucleus and stain; None if they were not.
    """

    name: str
    broken: tuple[str, ...] = field(default=(), kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    value_range: ValueRange | None = field(default=None, kw_only=True)
    cut: CellCut | None = field(default=None, kw_only=True)

    def facts(self) -> dict[str, Any]:
        """Return these fields."""
        return {fact.name: getattr(self, fact.name) for fact in fields(SourceFacts)}


@dataclass(frozen=True, eq=False)
class SourceSplits(SourceFacts):
    """The images that a source reads, in the splits that it has; missing splits are held out later.

    Attributes:
        train, validation, test: the images; all in train if the source is not split.
        listing: every file that the source has, including broken ones; None without file names.
    """

    train: ImageSet
    validation: ImageSet | None = None
    test: ImageSet | None = None
    listing: tuple[str, ...] | None = None

    def named(self) -> dict[str, ImageSet]:
        """Return the splits that the source has, by name, in the order train, validation, test."""
        sets = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: images for split, images in sets.items() if images is not None}


@dataclass(frozen=True, eq=False)
class Splits(SourceFacts):
    """Train, validation and test images of the same classes, channels and size.

    Attributes:
        train, validation, test: the images, or pairs of them.
        table: the split of every image, before limits per class; None for pairs and for several domains.

    Raises:
        CapsellaError: there is one class only, a split is empty, the splits differ in form, a class has no image to
            train on, or images of one group are in two splits.
    """

    train: LabelledImages
    validation: LabelledImages
    test: LabelledImages
    table: "SplitTable | None" = None

    def __post_init__(self) -> None:
        if len(self.train.classes) < 2:
            raise CapsellaError(f"{self.name}: must have at least 2 classes, got {list(self.train.classes)}")
        for split, images in self.named().items():
            if len(images) == 0:
                raise CapsellaError(f"{self.name}: every split must have images, but {split} is empty")
            for what in ("classes", "channels", "image_size"):
                here, there = getattr(images, what), getattr(self.train, what)
                if here != there:
                    text = f"{what} must be the same in every split, got {there} in train and {here} in {split}"
                    raise CapsellaError(f"{self.name}: {text}")
        for name, count in self.train.counts().items():
            if count == 0:
                raise CapsellaError(f"{self.name}: the class {name!r} has no image in train")
        self._check_groups()

    def without_test(self) -> "Splits":
        """Return the same splits without test images: any use of them other than their file names raises an error."""
        held_back = copy.copy(self)
        object.__setattr__(held_back, "test", SimpleNamespace(files=self.test.files))
        return held_back

    def digests(self, *, test: bool = False) -> dict[str, str]:
        """Return for train and validation the number of images and a digest of their names, classes and contents.

        Equal digests mean the same split of the same files. With `test`, the test images count, too.
        """
        seen = self.named() if test else {"train": self.train, "validation": self.validation}
        return {split: f"{len(images)} {_digest(images)}" for split, images in seen.items()}

    def _check_groups(self) -> None:
        # A patient seen in training makes a test look better than it is.
        split_of: dict[int, str] = {}
        for split, images in self.named().items():
            for row, group in enumerate(images.metadata.get("group", torch.empty(0)).tolist()):
                if (other := split_of.setdefault(group, split)) != split:
                    example = f"image {row}" if images.files is None else images.files[row]
                    raise CapsellaError(
                        f"{self.name}: images of one group must be in one split, "
                        f"but the group of {example} is in {other} and in {split}"
                    )

    def named(self) -> dict[str, LabelledImages]:
        """Return the three sets by name, in the order train, validation, test."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.train.classes

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.train.channels

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width)."""
        return self.train.image_size


def single_images(images: LabelledImages, purpose: str) -> ImageSet:
    """Return the images, if each has one class.

    Raises:
        CapsellaError: they are pairs; the message begins with `purpose`, a plural noun.
    """
    if not isinstance(images, ImageSet):
        raise CapsellaError(f"{purpose} are for images of one class each, and those of the run are pairs")
    return images


def _digest(images: LabelledImages) -> str:
    single = images.source if isinstance(images, PairSet) else images
    digest = blake2b(repr(single.files).encode(errors="surrogateescape"), digest_size=16)
    digest.update(repr(single.classes).encode(errors="surrogateescape"))
    digest.update(single.labels.numpy().tobytes())
    if "content" in single.metadata:  # a file that was replaced under its name
        digest.update(single.metadata["content"].numpy().tobytes())
    return digest.hexdigest()


class TableRow(NamedTuple):
    """A row of a split file. `class_name` is None if the table lists files."""

    split: str
    class_name: str | None = None


class SplitTable(NamedTuple):
    """The contents of a split file.

    by_file: True if it lists files, False if positions. rows: by file name or position. path: where it was read from.
    """

    by_file: bool
    rows: Mapping[str, TableRow]
    path: Path | None = None

    @property
    def unused(self) -> frozenset[str]:
        """The files or positions in no split."""
        return frozenset(key for key, row in self.rows.items() if row.split == UNUSED)

    def write(self, path: Path) -> None:
        """Write a split file atomically."""
        if self.by_file:
            write_csv(path, ("file", "split"), ((key, row.split) for key, row in self.rows.items()))
        else:
            rows = ((key, row.class_name, row.split) for key, row in self.rows.items())
            write_csv(path, ("index", "class", "split"), rows)


def read_split_file(path: Path) -> SplitTable:
    """Read a split file. A byte-order mark and backslashes in file names are accepted.

    Raises:
        CapsellaError: the file is missing, is no CSV table with the required columns, has another split name, or lists
            an image twice.
    """
    heading, lines = _read_table(Path(path))
    by_file, names = "file" in heading, (*SPLIT_NAMES, UNUSED)
    if not {"file", "split"} <= {*heading} and not {"index", "class", "split"} <= {*heading}:
        raise CapsellaError(
            f"{path}: must have the columns file and split, got {heading} "
            "(or index, class and split, for images without file names)"
        )
    rows: dict[str, TableRow] = {}
    for line in lines:
        key, split = _file(line["file"]) if by_file else line["index"], line["split"]
        if split not in names:
            raise CapsellaError(f"{path}: the split of {key} must be {', '.join(names)}, got {split!r}")
        if key in rows:
            raise CapsellaError(f"{path}: each image must be listed once, got {key} again")
        rows[key] = TableRow(split, None if by_file else line["class"])
    return SplitTable(by_file, rows, Path(path))


def group_numbers(group: str, source: Path, files: Sequence[str], listed: Sequence[str]) -> Int64[Tensor, " n"]:
    """Return the index of each file's group.

    Args:
        group: a regular expression whose one capture group names the group, or the path of a table. A table may begin
            its paths with the name of `source`; its rows that begin otherwise are then of other sources.
        source: the folder or .npz file of the images.
        files: paths relative to the folder, with forward slashes.
        listed: all files that a table may list, including broken ones.
    """
    if is_table(group):
        names = _by_table(Path(group), f"{source.resolve().name}/", files, listed)
    else:
        names = [_captured(group, file) for file in files]
    return torch.from_numpy(np.unique(names, return_inverse=True)[1].astype(np.int64))


def _captured(pattern: str, path: str) -> str:
    match = re.search(pattern, path)
    if match is None or match[1] is None:
        raise CapsellaError(f"group: the pattern {pattern!r} must capture a name in every path, got none in {path}")
    return match[1]


def _by_table(path: Path, source: str, files: Sequence[str], listed: Sequence[str]) -> list[str]:
    """Look each file up by its path in the folder, or by its name if no other of the files has it."""
    table = read_group_table(path)
    own = {file.removeprefix(source): group for file, group in table.items() if file.startswith(source)}
    table = own or table
    names = Counter(Path(file).name for file in files)

    def key(file: str) -> str:
        name = Path(file).name
        return name if file not in table and names[name] == 1 else file

    missing = [file for file in files if key(file) not in table]
    unused = set(listed) - set(files)
    unknown = sorted(table.keys() - {key(file) for file in files} - unused - {Path(file).name for file in unused})
    problems = [f"{len(missing)} of {pluralize(len(files), 'image')} not listed, e.g. {missing[0]}"] if missing else []
    problems += [f"{pluralize(len(unknown), 'row')} for no image, e.g. {unknown[0]}"] if unknown else []
    if problems:
        raise CapsellaError(f"{path}: must list the group of every image, and no other files; {'; '.join(problems)}")
    return [table[key(file)] for file in files]


def read_group_table(path: Path) -> dict[str, str]:
    """Read a table of groups by file: a column `file`, and `group` or the only other column.

    Raises:
        CapsellaError: the file is missing, is no such table, or names a file twice with different groups.
    """
    heading, lines = _read_table(path)
    others = [name for name in heading if name != "file"]
    if "file" not in heading or ("group" not in others and len(others) != 1):
        raise CapsellaError(f"{path}: must have the columns file and group, got {', '.join(heading) or 'none'}")
    table: dict[str, str] = {}
    for line in lines:
        file, group = _file(line["file"]), line["group" if "group" in others else others[0]]
        if not file or not group or table.setdefault(file, group) != group:
            raise CapsellaError(f"{path}: each file must have one group, got {group!r} for {file!r}")
    return table


def _read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the column names and the rows of a text table with commas, semicolons or tabs, as spreadsheets write it.

    Byte-order marks and UTF-16 are accepted.
    """
    try:
        content = path.read_bytes()
        wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
        text = content.decode("utf-16" if wide else "utf-8-sig", "surrogateescape")
        separator = max(",;\t", key=text.partition("\n")[0].count)
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        rows = [[cell.strip() for cell in row] for row in lines if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CapsellaError(f"{path}: cannot be read as a CSV table ({error})") from error
    heading = [name.casefold() for name in rows[0]] if rows else []
    return heading, [dict(zip(heading, row + [""] * len(heading), strict=False)) for row in rows[1:]]


def _file(path: str) -> str:
    """Return a file's path as it is listed; tables written on Windows have backslashes."""
    return (path if "/" in path else path.replace("\\", "/")).removeprefix("./")

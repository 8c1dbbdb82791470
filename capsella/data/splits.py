"""Splits: the images to train on, to choose a model by, and to test on; and the files that record a split.

A split file is a CSV table:

| columns | for |
|---|---|
| `file`, `split` | images with file names: those of a folder relative to it, with forward slashes |
| `index`, `class`, `split` | any other source: an image's position, counted from 0, in the source (training images \
first, then validation and test images), and its class, which reveals another order |

`split` is train, validation, test, or unused. A file lists every image, so that none is left out by mistake.
"""

import copy
import csv
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from capsella.data.images import ImageSet
from capsella.data.pairs import PairSet
from capsella.errors import CapsellaError
from capsella.files import write_csv
from capsella.image_options import ValueRange

LabelledImages = ImageSet | PairSet  # images of one class each, or pairs of images of two classes
SPLIT_NAMES = ("train", "validation", "test")
UNUSED = "unused"


@dataclass(frozen=True, eq=False)
class SourceSplits:
    """The images that a source reads, in the splits that it has; missing splits are held out later.

    Attributes:
        name: name of the source, for messages.
        train, validation, test: the images; all in train if the source is not split.
        broken: the files that could not be read, each with the reason.
        notes: observations about the files, a line each.
        unseen: the notes about parts of images, or values, that a network does not see.
        cell_radius: radius of a typical nucleus in pixels of the files, if cells were cropped.
        fingerprints: fingerprint of each image, in the order of `named`; see `capsella.data.duplicates`.
        listing: every file that the source has, including broken ones; None without file names.
    """

    name: str
    train: ImageSet
    validation: ImageSet | None = None
    test: ImageSet | None = None
    broken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cell_radius: float | None = None
    fingerprints: Int64[np.ndarray, "n 5"] | None = None
    listing: tuple[str, ...] | None = None
    unseen: tuple[str, ...] = ()

    def named(self) -> dict[str, ImageSet]:
        """Return the splits that the source has, by name, in the order train, validation, test."""
        sets = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: images for split, images in sets.items() if images is not None}


@dataclass(frozen=True)
class HeldBack:
    """Test images that are held back: only the names of their files are left."""

    files: tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class Splits:
    """Train, validation and test images of the same classes, channels and size.

    Attributes:
        name: name of the source, or of the folder or file, for messages.
        train, validation, test: the images, or pairs of them.
        broken: the files that were left out because they cannot be read, each with the reason.
        notes, unseen: observations about the files, as in `SourceSplits`.
        value_range: the values that became 0 and 255 in files of more than 8 bits per channel; None without such files.
        cell_radius: radius of a typical nucleus in pixels of the files, if cells were cropped.
        table: the split of every image, before limits per class; None for pairs and for several domains.

    Raises:
        CapsellaError: there is one class only, a split is empty, the splits differ in form, a class has no image to
            train on, or images of one group are in two splits.
    """

    name: str
    train: LabelledImages
    validation: LabelledImages
    test: LabelledImages
    broken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    value_range: ValueRange | None = None
    cell_radius: float | None = None
    table: "SplitTable | None" = None
    unseen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.train.classes) < 2:
            raise CapsellaError(f"{self.name}: must have at least 2 classes, got {list(self.train.classes)}")
        for split, images in self.named().items():
            if len(images) == 0:
                raise CapsellaError(f"{self.name}: every split must have images, but {split} is empty")
            self._check_alike(split, images)
        for name, count in self.train.counts().items():
            if count == 0:
                raise CapsellaError(f"{self.name}: the class {name!r} has no image in train")
        self._check_groups()

    def without_test(self) -> "Splits":
        """Return the same splits without test images: any use of them other than their file names raises an error."""
        held_back = copy.copy(self)
        object.__setattr__(held_back, "test", HeldBack(self.test.files))
        return held_back

    def digests(self, *, test: bool = False) -> dict[str, str]:
        """Return for train and validation the number of images and a digest of their names, classes and contents.

        Equal digests mean the same split of the same files. With `test`, the test images count, too.
        """
        seen = self.named() if test else {"train": self.train, "validation": self.validation}
        return {split: f"{len(images)} {_digest(images)}" for split, images in seen.items()}

    def _check_alike(self, split: str, images: LabelledImages) -> None:
        for what in ("classes", "channels", "image_size"):
            here, there = getattr(images, what), getattr(self.train, what)
            if here != there:
                raise CapsellaError(
                    f"{self.name}: {what} must be the same in every split, got {there} in train and {here} in {split}"
                )

    def _check_groups(self) -> None:
        # A patient seen in training makes a test look better than it is.
        split_of: dict[int, str] = {}
        for split, images in self.named().items():
            if "group" not in images.metadata:
                continue
            for group in images.metadata["group"].unique().tolist():
                other = split_of.setdefault(group, split)
                if other != split:
                    first = int((images.metadata["group"] == group).nonzero()[0])
                    example = f"image {first}" if images.files is None else images.files[first]
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

    line: int
    split: str
    class_name: str | None


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
    try:
        with Path(path).open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
            table = csv.DictReader(text)
            columns = set(table.fieldnames or ())
            if not ({"file", "split"} <= columns or {"index", "class", "split"} <= columns):
                raise CapsellaError(
                    f"{path}: must have the columns file and split, got {table.fieldnames} "
                    "(or index, class and split, for images without file names)"
                )
            return _table(Path(path), "file" in columns, [(table.line_num, values) for values in table])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CapsellaError(f"{path}: cannot be read as a CSV table ({error})") from error


def _table(path: Path, by_file: bool, lines: list[tuple[int, dict[str, str]]]) -> SplitTable:
    rows: dict[str, TableRow] = {}
    for line, values in lines:
        key = values["file" if by_file else "index"] or ""
        key = (key if "/" in key else key.replace("\\", "/")) if by_file else key.strip()
        split = (values["split"] or "").strip()
        if split not in (*SPLIT_NAMES, UNUSED):
            names = ", ".join((*SPLIT_NAMES, UNUSED))
            raise CapsellaError(f"{path}, line {line}: split must be {names}, got {split!r}")
        if key in rows:
            raise CapsellaError(f"{path}, line {line}: each image must be listed once, got {key} again")
        rows[key] = TableRow(line, split, None if by_file else values["class"] or "")
    return SplitTable(by_file, rows, path)

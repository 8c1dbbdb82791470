"""Split files: a CSV table that says which image is in which split, so that others can use the same split again.

| columns | for |
|---|---|
| `file`, `split` | images with file names: those of a folder relative to it, with forward slashes |
| `index`, `class`, `split` | any other source: an image's position, counted from 0, among all that the source brings \
(its training images first, then validation and test images), and its class, by which another order is noticed |

`split` is train, validation, test, or unused: a file lists every image, so that none is left out by mistake.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import torch

from capsella.data.split.sets import SPLIT_NAMES, LabelledImages
from capsella.errors import CapsellaError
from capsella.files import write_csv

UNUSED = "unused"


class Row(NamedTuple):
    """What a split file says of one image; class_name is None where it names files."""

    line: int
    split: str
    class_name: str | None


class SplitTable(NamedTuple):
    """What a split file holds. rows: by file name, or by index as it is written. path: of the file it was read from."""

    by_file: bool
    rows: dict[str, Row]
    path: Path | None = None

    @property
    def unused(self) -> frozenset[str]:
        """The files or indices in no split."""
        return frozenset(key for key, row in self.rows.items() if row.split == UNUSED)

    def write(self, path: Path) -> None:
        """Write a split file, whole or not at all."""
        if self.by_file:
            write_csv(path, ("file", "split"), ((key, row.split) for key, row in self.rows.items()))
        else:
            rows = ((key, row.class_name, row.split) for key, row in self.rows.items())
            write_csv(path, ("index", "class", "split"), rows)

    def with_share(self, train: LabelledImages, share: float) -> "SplitTable":
        """The same split with this share of each class's training images, one at least; the others are unused.

        A smaller share is a part of a larger one.

        Args:
            train: the training images of this split.
            share: of those of each class.

        Raises:
            ValueError: the images have no file names.
        """
        if train.files is None or not self.by_file:
            raise ValueError("train: images must have file names to be left out of a split file, got some without")
        generator = torch.Generator().manual_seed(0)
        rows = dict(self.rows)
        for label in range(len(train.classes)):
            own = (train.labels == label).nonzero().flatten()
            order = own[torch.randperm(len(own), generator=generator)]
            for k in order[share_of(len(own), share) :].tolist():
                rows[train.files[k]] = rows[train.files[k]]._replace(split=UNUSED)
        return self._replace(rows=rows)


def share_of(images: int, share: float) -> int:
    """How many of a class's training images `with_share` keeps."""
    return max(1, round(share * images))


def read_split_file(path: Path) -> SplitTable:
    """Read a split file.

    Raises:
        CapsellaError: no such file, not a CSV table with the columns that it must have, another split name, or an image
            listed twice.
    """
    rows: dict[str, Row] = {}
    by_file, lines = _lines(path)
    for key, row in lines:
        if row.split not in (*SPLIT_NAMES, UNUSED):
            names = ", ".join((*SPLIT_NAMES, UNUSED))
            raise CapsellaError(f"{path}, line {row.line}: split must be {names}, got {row.split!r}")
        if key in rows:
            what = "a file" if by_file else "an index"
            raise CapsellaError(f"{path}, line {row.line}: {what} must be listed once, got {key} again")
        rows[key] = row
    return SplitTable(by_file, rows, Path(path))


def _lines(path: Path) -> tuple[bool, list[tuple[str, Row]]]:
    """Whether files are listed, and (file or index, row); a byte-order mark and Windows' backslashes are fine."""
    try:
        with Path(path).open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
            table = csv.DictReader(text)
            columns = set(table.fieldnames or ())
            if not ({"file", "split"} <= columns or {"index", "class", "split"} <= columns):
                raise CapsellaError(
                    f"{path}: must have the columns file and split, got {table.fieldnames} "
                    "(or index, class and split, for images without file names)"
                )
            by_file = "file" in columns
            lines = []
            for values in table:
                key = values["file" if by_file else "index"] or ""
                key = (key if "/" in key else key.replace("\\", "/")) if by_file else key.strip()
                class_name = None if by_file else values["class"] or ""
                lines.append((key, Row(table.line_num, (values["split"] or "").strip(), class_name)))
            return by_file, lines
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CapsellaError(f"{path}: cannot be read as a CSV table ({error})") from error

"""Split files: a CSV table that says which image is in which split, so that others can use the same split again.

| columns | for |
|---|---|
| `file`, `split` | images with file names: those of a folder relative to it, with forward slashes |
| `index`, `class`, `split` | any other source: an image's position, counted from 0, among all that the source brings \
(its training images first, then validation and test images), and its class, by which another order is noticed |

`split` is train, validation, test, or unused: a file lists every image, so that none is left out by mistake.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from capsella.data.images import ImageSet, join
from capsella.data.source import Parts
from capsella.data.splits import SPLIT_NAMES, Splits
from capsella.errors import CapsellaError
from capsella.files import write_text

UNUSED = "unused"


class Row(NamedTuple):
    """What a split file says of one image; class_name is None where it names files."""

    line: int
    split: str
    class_name: str | None


class SplitTable(NamedTuple):
    """A split file as read. rows: by file name, or by index as it is written."""

    path: Path
    by_file: bool
    rows: dict[str, Row]

    @property
    def unused(self) -> frozenset[str]:
        """The files or indices in no split."""
        return frozenset(key for key, row in self.rows.items() if row.split == UNUSED)


def write_split_file(splits: Splits, path: Path) -> None:
    """List the files of `splits`, of one's own making, for `split_file` in `DataOptions`.

    `save_split` does it for the splits of options, with the images that they leave unused.

    Raises:
        ValueError: the images have no file names.
        CapsellaError: no space left.
    """
    rows = []
    for split, images in splits.named().items():
        if images.files is None:
            raise ValueError(
                f"splits: images must have file names to be listed in a split file, {splits.name} has none"
            )
        rows += [(file, split) for file in images.files]
    write_table(("file", "split"), rows, path)


def write_table(columns: Sequence[str], rows: Iterable[Sequence[str]], path: Path) -> None:
    """Write a CSV table, whole or not at all."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows((columns, *rows))
    write_text(path, table.getvalue())


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
    return SplitTable(Path(path), by_file, rows)


def _lines(path: Path) -> tuple[bool, list[tuple[str, Row]]]:
    """Whether files are listed, and (file or index, row); a byte-order mark and Windows' backslashes are fine."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as text:
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
                key = (values["file"] or "").replace("\\", "/") if by_file else (values["index"] or "").strip()
                class_name = None if by_file else values["class"] or ""
                lines.append((key, Row(table.line_num, (values["split"] or "").strip(), class_name)))
            return by_file, lines
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CapsellaError(f"{path}: cannot be read as a CSV table ({error})") from error


def has_file_names(parts: Parts) -> bool:
    """Whether file names tell all images of a source apart."""
    sets = parts.named().values()
    files = [file for images in sets for file in images.files or ()]
    return len(set(files)) == sum(map(len, sets))


def image_keys(parts: Parts, by_file: bool) -> dict[str, list[str]]:
    """What each image is called in a split file, by the source's own split."""
    keys, start = {}, 0
    for split, images in parts.named().items():
        numbers = map(str, range(start, start + len(images)))
        keys[split] = list(images.files or ()) if by_file else list(numbers)
        start += len(images)
    return keys


def assign(parts: Parts, table: SplitTable) -> Parts:
    """Part a source's images as a split file says; classes that are wholly unused are left out.

    Only validation may be missing, and is held out later.

    Raises:
        CapsellaError: the file lists files and the images have no names, or an image is not listed, or one that is
            listed is not there or is of another class.
    """
    if table.by_file and not has_file_names(parts):
        raise CapsellaError(
            f"{table.path}: {parts.name} has no file name of its own for each image; "
            "its split file must have the columns index, class and split"
        )
    keys = image_keys(parts, table.by_file)
    _check_rows(parts, keys, table)
    sets: dict[str, ImageSet] = {}
    for split in SPLIT_NAMES:
        pieces = [
            images.subset([i for i, key in enumerate(keys[part]) if table.rows[key].split == split])
            for part, images in parts.named().items()
        ]
        sets[split] = join([piece for piece in pieces if len(piece)] or pieces[:1])
    for split in ("train", "test"):
        if len(sets[split]) == 0:
            raise CapsellaError(
                f"{parts.name}: the {split} split is empty; a split of one's own must have train and test images"
            )
    sets = _without_unused_classes(parts, sets)
    validation = sets["validation"] if len(sets["validation"]) else None
    return Parts(parts.name, sets["train"], validation, sets["test"], parts.broken)


def _check_rows(parts: Parts, keys: dict[str, list[str]], table: SplitTable) -> None:
    named = parts.named()
    known = {
        key: images.classes[label]
        for part, images in named.items()
        for key, label in zip(keys[part], images.labels.tolist(), strict=True)
    }
    gone = [key for key, row in table.rows.items() if key not in known and not (table.by_file and row.split == UNUSED)]
    # Of files that are listed, the broken ones were left out; an index is counted without them.
    if len(gone) > (len(parts.broken) if table.by_file else 0):
        raise CapsellaError(f"{table.path}, line {table.rows[gone[0]].line}: {gone[0]} is not in {parts.name}")
    unlisted = [key for key in known if key not in table.rows]
    if unlisted:
        raise CapsellaError(
            f"{parts.name}: split_file must list every image, but {len(unlisted)} are not, as {unlisted[0]}"
        )
    for key, name in known.items():
        row = table.rows[key]
        if row.class_name is not None and row.class_name != name:
            raise CapsellaError(
                f"{table.path}, line {row.line}: image {key} of {parts.name} must be of the class {name!r}, "
                f"got {row.class_name!r}; were other options used when the file was written?"
            )


def _without_unused_classes(parts: Parts, sets: dict[str, ImageSet]) -> dict[str, ImageSet]:
    """Classes that have images, but none in a split, are no classes of it."""

    def present(images: Iterable[ImageSet]) -> set[str]:
        return {one.classes[label] for one in images for label in one.labels.unique().tolist()}

    unused = present(parts.named().values()) - present(sets.values())
    kept = [name for name in parts.train.classes if name not in unused]
    return {split: images.of_classes(kept) for split, images in sets.items()} if unused else sets

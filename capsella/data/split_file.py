"""Split files: a CSV table that says which image is in train, validation or test, so that a split can be used again."""

import csv
import io
from pathlib import Path

from capsella.data.splits import SPLIT_NAMES, Splits
from capsella.errors import CapsellaError
from capsella.files import write_text


def write_split_file(splits: Splits, path: Path) -> None:
    """Write the columns file and split, for `split_file` in `DataOptions`.

    Raises:
        ValueError: the images have no file names.
        CapsellaError: no space left.
    """
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("file", "split"))
    for split, images in splits.named().items():
        if images.files is None:
            raise ValueError(
                f"splits: images must have file names to be listed in a split file, {splits.name} has none"
            )
        writer.writerows((file, split) for file in images.files)
    write_text(path, table.getvalue())


def read_split_file(path: Path, root: Path) -> dict[str, str]:
    """The split of each file it lists; files are relative to `root`, with forward slashes.

    Raises:
        CapsellaError: no such file, not a CSV table with the columns file and split, another split name, a file listed
            twice, or one that is not below `root`.
    """
    split_of: dict[str, str] = {}
    for line, file, split in _rows(path):
        if split not in SPLIT_NAMES:
            raise CapsellaError(f"{path}, line {line}: split must be {', '.join(SPLIT_NAMES)}, got {split!r}")
        if file in split_of:
            raise CapsellaError(f"{path}, line {line}: a file must be listed once, got {file} again")
        if not (root / file).is_file():
            raise CapsellaError(f"{path}, line {line}: {file} is not in {root}")
        split_of[file] = split
    return split_of


def _rows(path: Path) -> list[tuple[int, str, str]]:
    """(line number, file, split) of each row; a byte-order mark and backslashes, as Windows writes them, are fine."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as text:
            table = csv.DictReader(text)
            if not {"file", "split"} <= set(table.fieldnames or ()):
                raise CapsellaError(f"{path}: must have the columns file and split, got {table.fieldnames}")
            return [
                (table.line_num, (row["file"] or "").replace("\\", "/"), (row["split"] or "").strip()) for row in table
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CapsellaError(f"{path}: cannot be read as a CSV table ({error})") from error

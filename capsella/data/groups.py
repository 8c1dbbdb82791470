"""Groups of images, e.g. of one patient: from a pattern in the file names, or from a table of files and groups."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from capsella.data.options import is_table
from capsella.errors import CapsellaError, pluralize


def group_numbers(group: str, files: Sequence[str], listed: Sequence[str]) -> Int64[Tensor, " n"]:
    """Return the index of each file's group.

    Args:
        group: a regular expression whose one capture group names the group, or the path of a table.
        files: paths relative to the folder, with forward slashes.
        listed: all files that a table may list, including broken ones.

    Raises:
        CapsellaError: the pattern captures nothing in a path; the table cannot be read, lacks files or lists others.
    """
    names = _by_table(Path(group), files, listed) if is_table(group) else [_captured(group, file) for file in files]
    return torch.from_numpy(np.unique(names, return_inverse=True)[1].astype(np.int64))


def group_notes(groups: Int64[Tensor, " n"]) -> tuple[str, ...]:
    """Return a note on the number of groups, which reveals a pattern that joins or divides patients by mistake."""
    sizes = groups.unique(return_counts=True)[1]
    return (f"{pluralize(len(sizes), 'group')} (--group), the largest of {pluralize(int(sizes.max()), 'image')}",)


def _captured(pattern: str, path: str) -> str:
    match = re.search(pattern, path)
    if match is None or match[1] is None:
        raise CapsellaError(f"group: the pattern {pattern!r} must capture a name in every path, got none in {path}")
    return match[1]


def _by_table(path: Path, files: Sequence[str], listed: Sequence[str]) -> list[str]:
    """Look each file up by its path in the folder, or by its name if no other of the files has it."""
    table = read_group_table(path)
    names = Counter(file.rpartition("/")[2] for file in files)

    def key(file: str) -> str:
        name = file.rpartition("/")[2]
        return name if file not in table and names[name] == 1 else file

    missing = [file for file in files if key(file) not in table]
    unused = set(listed) - set(files)
    known = {key(file) for file in files} | unused | {file.rpartition("/")[2] for file in unused}
    unknown = sorted(table.keys() - known)
    problems = [f"{len(missing)} of {pluralize(len(files), 'image')} not listed, e.g. {missing[0]}"] if missing else []
    problems += [f"{pluralize(len(unknown), 'row')} for no image, e.g. {unknown[0]}"] if unknown else []
    if problems:
        raise CapsellaError(f"{path}: must list the group of every image, and no other files; {'; '.join(problems)}")
    return [table[key(file)] for file in files]


def read_group_table(path: Path) -> dict[str, str]:
    """Read a table with a heading: a column `file`, and `group` or the only other column.

    Commas, semicolons and tabs separate columns; byte-order marks, UTF-16 and backslashes in paths are accepted.

    Raises:
        CapsellaError: the file is missing, is no such table, or names a file twice with different groups.
    """
    try:
        content = path.read_bytes()
        wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
        lines = content.decode("utf-16" if wide else "utf-8-sig", "surrogateescape").splitlines()
        first = lines[0] if lines else ""
        separator = max(",;\t", key=first.count)
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=separator) if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CapsellaError(f"{path}: cannot be read as a table ({error})") from error
    heading = [name.casefold() for name in rows[0]] if rows else []
    others = [name for name in heading if name != "file"]
    if "file" not in heading or ("group" not in others and len(others) != 1):
        raise CapsellaError(f"{path}: must have the columns file and group, got {', '.join(heading) or 'none'}")
    file_column, group_column = heading.index("file"), heading.index("group" if "group" in others else others[0])
    table: dict[str, str] = {}
    for row in rows[1:]:
        file, group = (row[column] if column < len(row) else "" for column in (file_column, group_column))
        file = (file if "/" in file else file.replace("\\", "/")).removeprefix("./")
        if not file or not group or table.setdefault(file, group) != group:
            raise CapsellaError(
                f"{path}: each file must have one group, got {group or 'none'!r} for {file or 'none'!r}"
            )
    return table

"""Files written whole or not at all: to a temporary name beside the target, then renamed over it."""

import contextlib
import csv
import errno
import io
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from capsella.errors import CapsellaError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write(temporary_path)` and rename the result to `path`; on any failure `path` keeps its old content.

    Raises:
        CapsellaError: the disk is full or a quota is reached (names the path); the old file is untouched.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:  # an interrupted write leaves nothing behind either
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        if is_disk_full(error):
            raise CapsellaError(f"no space left to write {path}; the previous version, if any, is untouched") from error
        raise


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON whole or not at all; not-a-number is refused, because JSON has no word for it."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV table with a line of column names, whole or not at all."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([columns, *rows])
    write_text(path, table.getvalue())


def is_disk_full(error: BaseException | None) -> bool:
    """True for ENOSPC and EDQUOT, also where a library raised its own error from it, or passes on the words only."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False

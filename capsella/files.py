"""Atomic writes, through a temporary file beside the target; and locks that admit one process at a time."""

import contextlib
import csv
import errno
import fcntl
import io
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from capsella.errors import BusyError, CapsellaError, warn_once

_WAIT = "wait until it ends, or choose another folder"
_REFUSALS = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write(temporary_path)` and rename the result to `path`; on any failure `path` keeps its old content.

    A symbolic link is kept, and the file that it points to is replaced.

    Raises:
        CapsellaError: the disk is full or a quota is reached, or nothing can be written at `path`.
    """
    path = Path(os.path.realpath(path)) if Path(path).is_symlink() else Path(path)
    # Process IDs are not unique: in containers that share the folder, each process may have the ID 1.
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file() and not path.is_dir():
            raise CapsellaError(f"{path}: is a device or a pipe, which a file would replace; name a file")
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:  # an interrupted write leaves nothing behind either
        with contextlib.suppress(OSError):  # it is not there, or its folder cannot be changed
            temporary.unlink()
        if is_disk_full(error):
            raise CapsellaError(f"no space left to write {path}; the previous version, if any, is untouched") from error
        targets = map(str, (temporary, path, *path.parents))
        if isinstance(error, OSError) and error.errno in _REFUSALS and str(error.filename) in targets:
            raise CapsellaError(f"{path}: cannot be written ({error.strerror})") from error
        raise


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_whole(path, lambda temporary: temporary.write_text(text, "utf-8", "surrogateescape"))


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically; raise `ValueError` for NaN and infinity, which JSON lacks."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; raise `CapsellaError` if it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CapsellaError(f"{path} is missing or damaged: {error}") from error


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV table with a line of column names, atomically."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([columns, *rows])
    write_text(path, table.getvalue())


def is_disk_full(error: BaseException | None) -> bool:
    """Return True for ENOSPC and EDQUOT, and for a library's error that was raised from one or repeats its text."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def lock(file: IO[Any], busy: str) -> None:
    """Lock an open file for this process until it is closed; the system unlocks it however the process ends.

    A file system without locks only causes a warning.

    Raises:
        BusyError: another process holds the lock; its message is `busy`.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BusyError(busy) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warn_once("no locks", f"{file.name}: this file system has no locks; make sure no two processes write there")


@contextlib.contextmanager
def alone_in(folder: Path, wait: bool = False) -> Iterator[None]:
    """Lock a folder, which is created if necessary, for the length of a block.

    The file `.lock` in the folder holds the process ID. At the end it is removed, and so are the folders that were
    created and are empty. The lock of a killed process is taken over.

    Args:
        folder: the folder to lock.
        wait: wait for another process to finish.

    Raises:
        BusyError: another process holds the lock.
    """
    path, made, races = folder / ".lock", [], 0
    while races < 100:
        made += [parent for parent in (folder, *folder.parents) if not parent.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (closed below)
        except FileNotFoundError:  # another process removed the empty folder
            races += 1
            continue
        except OSError as error:
            raise CapsellaError(f"{folder}: cannot be written ({error.strerror})") from error
        with file:
            file.seek(0)
            try:
                lock(file, f"{folder}: capsella is already working there ({file.read() or 'another process'}); {_WAIT}")
            except BusyError:
                if not wait:
                    raise
                time.sleep(0.2)
                continue
            if not _is_at(file, path):  # the previous owner removed the file before this process locked it
                races += 1
                continue
            file.truncate(0)
            file.write(f"process {os.getpid()}")
            file.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
                for parent in made:
                    with contextlib.suppress(OSError):  # it is not empty, or another process removed it
                        parent.rmdir()
            return
    raise CapsellaError(f"{folder}: cannot be written (it is removed at once)")


def _is_at(file: IO[Any], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False

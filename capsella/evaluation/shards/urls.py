"""Files here and elsewhere: a path, or a URL of anything that fsspec knows, as s3://bucket/folder."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from fsspec.core import url_to_fs

from capsella.data.reading import ENDINGS
from capsella.errors import CapsellaError
from capsella.files import write_whole

T = TypeVar("T")
_TRIES = 3


class Content(BytesIO):
    """The bytes of a file; error messages call it by its name."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self._called = name

    def __repr__(self) -> str:
        return repr(self._called)


def is_url(place: str) -> bool:
    """Whether it is no path of this machine."""
    return "://" in place


def opened(place: str) -> Any:
    """An open file of bytes; OSError where there is none."""
    system, path = _system_of(place)
    return system.open(path, "rb")


def asked_again(ask: Callable[[], T]) -> T:
    """What a store answers; one that does not answer is asked three times, but for what is not there."""
    for _ in range(_TRIES - 1):
        try:
            return ask()
        except FileNotFoundError:
            raise
        except OSError:
            time.sleep(1.0)
    return ask()


def is_image(url: str) -> bool:
    """Whether it is a single file with the ending of an image."""
    system, path = _system_of(url)
    return path.lower().endswith(ENDINGS) and bool(system.isfile(path))


def exists(place: str) -> bool:
    """Whether a file or folder is there."""
    system, path = _system_of(place)
    return bool(system.exists(path))


def names_in(folder: str) -> set[str]:
    """Names of what a folder holds; none where it is not there."""
    system, path = _system_of(folder)
    try:
        return {entry.rstrip("/").rpartition("/")[2] for entry in system.ls(path, detail=False)}
    except FileNotFoundError:
        return set()


def remove(place: str) -> None:
    """A file, or a folder with all that is in it; nothing where it is not there."""
    system, path = _system_of(place)
    if system.exists(path):
        system.rm(path, recursive=True)


def write(place: str, write_file: Callable[[Path], object]) -> None:
    """Call `write_file(temporary_path)`, and put the result there: whole or not at all.

    Raises:
        CapsellaError: the disk is full.
    """
    if not is_url(place):
        write_whole(Path(place), write_file)
        return
    system, path = _system_of(place)
    system.makedirs(path.rpartition("/")[0], exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder, "part")
        write_file(temporary)
        system.put_file(str(temporary), path)


def walk(url: str) -> Iterator[str]:
    """The image files of a folder elsewhere, in sorted order; hidden ones are passed over.

    Raises:
        CapsellaError: a folder in it that cannot be listed: its images would be missing.
    """
    system, root = _system_of(url)
    top, folders = root.rstrip("/"), [root]
    while folders:
        folder = folders.pop()
        try:
            entries = asked_again(partial(system.ls, folder, detail=True))
        except OSError as error:
            raise CapsellaError(f"{_named(url, top, folder)}: cannot be listed: {error}") from error
        kinds = {entry["name"].rstrip("/"): entry["type"] for entry in entries}
        shown = [path for path in sorted(kinds) if not path.rpartition("/")[2].startswith(".")]
        inner = [path for path in shown if kinds[path] == "directory" and path != folder.rstrip("/")]
        files = [path for path in shown if kinds[path] != "directory" and path.lower().endswith(ENDINGS)]
        yield from (_named(url, top, path) for path in files)
        folders += reversed(inner)


def _named(url: str, top: str, path: str) -> str:
    """The URL of what is below another one; systems themselves forget the host, and the archive of zip://…::…"""
    start, chained, rest = url.partition("::")
    start = start if start.endswith("/") else f"{start}/"
    return f"{start}{path.removeprefix(top).lstrip('/')}{chained}{rest}"


def _system_of(place: str) -> tuple[Any, str]:
    try:
        system, path = url_to_fs(place if is_url(place) else os.path.abspath(place))
    except (ImportError, ValueError) as error:
        raise CapsellaError(f"{place}: cannot be reached: {error}") from error
    return system, path

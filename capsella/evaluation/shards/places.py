"""Files here and elsewhere: a path, or a URL of anything that fsspec knows, as s3://bucket/folder."""

import os
import tempfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs

from capsella.data.reading import ENDINGS
from capsella.errors import CapsellaError
from capsella.files import write_whole


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
    """The image files of a folder elsewhere, in sorted order; hidden ones are passed over."""
    system, root = _system_of(url)
    for folder, inner, files in system.walk(root):
        inner[:] = inner if isinstance(inner, dict) else sorted(name for name in inner if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                yield system.unstrip_protocol(f"{folder}/{name}")


def _system_of(place: str) -> tuple[Any, str]:
    try:
        system, path = url_to_fs(place if is_url(place) else os.path.abspath(place))
    except (ImportError, ValueError) as error:
        raise CapsellaError(f"{place}: cannot be reached: {error}") from error
    return system, path

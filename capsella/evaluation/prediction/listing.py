"""The image files that paths name, one after the other: 10 million names need not be in memory together."""

import codecs
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from capsella.data.listing import PassedOver
from capsella.data.reading import ENDINGS
from capsella.errors import CapsellaError
from capsella.evaluation.prediction.names import Names

LIST = ".txt"
"""The ending of a file that holds a name a line."""


def find_images(paths: Iterable[Path]) -> list[Path]:
    """The image files that `paths` name, as a list; see `image_files`."""
    return [Path(name) for name in image_files(paths)]


def image_files(paths: Iterable[Path]) -> Iterator[str]:
    """The image files that `paths` name: files as given, folders walked in sorted order, each file once.

    A file that ends in .txt is a list: a name a line, relative to the working folder.

    In folders, files are taken by suffix (BMP, GIF, JPEG, PNG, TIFF, WebP); hidden files and folders are passed over.
    Links to files are taken as files; links to folders are not followed, so that no loop of links is without end. A
    folder that cannot be listed is named in place of its files: whoever reads it gets the reason.

    Raises:
        CapsellaError: a path that does not exist, a folder without images, an empty list; when the walk gets there.
    """
    paths = [Path(path) for path in paths]
    seen = Names()
    once = len(paths) == 1 and not _is_list(paths[0])  # one folder alone names nothing twice
    for path in paths:
        if not path.exists():
            raise CapsellaError(f"{path}: there is no such file or folder")
        empty = True
        for name in map(str, map(Path, _named_by(path))):  # as journals and tables write it: ./a.png is a.png
            empty = False
            if once or seen.add(name):
                yield name
        if empty:
            none = f"the folder holds no image ({', '.join(ENDINGS)})"
            raise CapsellaError(
                f"{path}: {'; '.join([none, *passed_over([path])]) if path.is_dir() else 'the list is empty'}"
            )


def passed_over(paths: Iterable[Path]) -> tuple[str, ...]:
    """What lies in the folders among `paths` and is no image file for `image_files`: at most one line."""
    found = PassedOver()
    for path in map(Path, paths):
        if path.is_dir():
            for _ in _walk(str(path), found):
                pass
    return found.notes()


def _is_list(path: Path) -> bool:
    return path.suffix.lower() == LIST


def listed(lines: Iterable[str]) -> Iterator[str]:
    """The names of a list, a line each; empty lines are none."""
    return (name for line in lines if (name := line.rstrip("\r\n")))


def _named_by(path: Path) -> Iterator[str]:
    if path.is_dir():
        yield from _walk(str(path))
    elif _is_list(path):
        with open(path, "rb") as file:
            wide = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # as PowerShell writes
        with open(path, encoding="utf-16" if wide else "utf-8-sig", errors="surrogateescape") as lines:
            yield from listed(lines)
    else:
        yield str(path)


def _walk(root: str, others: PassedOver | None = None) -> Iterator[str]:
    """The image files; what else there is goes to `others`."""
    folders = [root]  # no recursion: folders can be nested deeper than Python's stack
    while folders:
        folder = folders.pop()
        try:
            files, inner = _entries(folder, others)
        except OSError:
            yield folder
            continue
        yield from (os.path.join(folder, name) for name in files)
        folders += (os.path.join(folder, name) for name in reversed(inner))


def _entries(folder: str, others: PassedOver | None) -> tuple[list[str], list[str]]:
    """Names of the image files and of the folders in a folder, sorted."""
    files, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif entry.name.lower().endswith(ENDINGS) and not (entry.is_symlink() and os.path.isdir(entry.path)):
                files.append(entry.name)
            elif others is not None and entry.is_dir():
                others.add("link to a folder", Path(entry.path))
            elif others is not None:
                others.add_file(Path(entry.path))
    return sorted(files), sorted(folders)

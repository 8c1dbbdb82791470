"""The image files that paths name, one after the other: 100,000 names need not be in memory together."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from capsella.data.reading import ENDINGS
from capsella.errors import CapsellaError


def find_images(paths: Iterable[Path]) -> list[Path]:
    """The image files that `paths` name, as a list; see `image_files`."""
    return [Path(name) for name in image_files(paths)]


def image_files(paths: Iterable[Path]) -> Iterator[str]:
    """The image files that `paths` name: files as given, folders walked in sorted order, each file once.

    In folders, files are taken by suffix (BMP, GIF, JPEG, PNG, TIFF, WebP); hidden files and folders are passed over.
    Links to files are taken as files; links to folders are not followed, so that no loop of links is without end. A
    folder that cannot be listed is named in place of its files: whoever reads it gets the reason.

    Raises:
        CapsellaError: a path that does not exist, a folder without images; when the walk gets there.
    """
    paths = [Path(path) for path in paths]
    seen: set[str] = set()
    for path in paths:
        if not path.exists():
            raise CapsellaError(f"{path}: there is no such file or folder")
        empty = True
        for name in _walk(str(path)) if path.is_dir() else [str(path)]:
            empty = False
            if name not in seen:
                if len(paths) > 1:  # one folder alone names nothing twice
                    seen.add(name)
                yield name
        if empty:
            raise CapsellaError(f"{path}: the folder holds no image ({', '.join(ENDINGS)})")


def _walk(root: str) -> Iterator[str]:
    folders = [root]  # no recursion: folders can be nested deeper than Python's stack
    while folders:
        folder = folders.pop()
        try:
            files, inner = _entries(folder)
        except OSError:
            yield folder
            continue
        yield from (os.path.join(folder, name) for name in files)
        folders += (os.path.join(folder, name) for name in reversed(inner))


def _entries(folder: str) -> tuple[list[str], list[str]]:
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
    return sorted(files), sorted(folders)

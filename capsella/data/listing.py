"""List the image files of a folder with one subfolder per class, and summarize them from their headers.

    cells/basophil/patient1_003.png          or, already split,   cells/train/basophil/patient1_003.png
    cells/monocyte/patient2_017.tif                               cells/test/monocyte/patient2_017.tif

Sub-folders of a class are read too. A link that leads back to a folder above it is not followed. Files with other
endings, pipes, dangling links and images beside the class folders are not read, and a note counts them; hidden files
and folders are ignored.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

from PIL import Image

from capsella.data.deep_values import FORMATS
from capsella.data.options import FolderData
from capsella.data.reading import ENDINGS
from capsella.errors import CapsellaError, pluralize, warn_once

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_INSPECTED = 200  # files whose headers `inspect_folder` reads, spread evenly, and one of each class
_MAX_KINDS, _MAX_NAMES = 5, 3

Skipped = list[tuple[str, str]]  # kind and name of each file that is not read


class ClassFile(NamedTuple):
    """An image file of a folder: its path relative to the folder, its class, and its split if the folder is split."""

    path: str
    label: str
    split: str | None


@dataclass(frozen=True)
class FolderListing:
    """The image files of a folder, sorted, and at most one note on files that are not read."""

    root: Path
    files: tuple[ClassFile, ...]
    notes: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the files, relative to the folder, with forward slashes."""
        return tuple(file.path for file in self.files)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(sorted({file.label for file in self.files}))


def list_folder(root: Path) -> FolderListing:
    """List every image file with its class, and its split if the folder is split.

    Raises:
        CapsellaError: no such folder, fewer than two classes, a class without images, or splits beside classes.
    """
    skipped: Skipped = []
    folders = _sub_folders(root)
    named = {folder: _SPLITS[folder.casefold()] for folder in folders if folder.casefold() in _SPLITS}
    others = [folder for folder in folders if folder not in named]
    if "train" not in named.values() or (others and len(named) == 1):
        files = [ClassFile(path, path.split("/")[0], None) for path in _files_by_class(root, root, skipped)]
        return FolderListing(root, tuple(files), skipped_notes(skipped))
    if others:
        splits, classes = ", ".join(named), ", ".join(others)
        raise CapsellaError(f"{root}: {splits} look like splits, {classes} like classes; move either away")
    _skip_beside(root, skipped)
    files = [
        ClassFile(path, path.split("/")[1], named[folder])
        for folder in folders
        for path in _files_by_class(root, root / folder, skipped)
    ]
    return FolderListing(root, tuple(files), skipped_notes(skipped))


def _files_by_class(root: Path, folder: Path, skipped: Skipped) -> list[str]:
    classes = _sub_folders(folder)
    if len(classes) < 2:
        loose = sum(_is_image(entry) for entry in folder.iterdir())
        beside = f"; {pluralize(loose, 'image')} beside: move each into the folder of its class" if loose else ""
        raise CapsellaError(f"{folder}: must have one subfolder per class, 2 or more, got {classes or 'none'}{beside}")
    _warn_of_twins(folder, classes)
    _skip_beside(folder, skipped)
    found = []
    for name in classes:
        others = len(skipped)
        files = walk(folder / name, skipped, frozenset({root.resolve()}))
        if not files:
            got = f"got none among {pluralize(len(skipped) - others, 'file')}"
            raise CapsellaError(f"{folder / name}: a class must have images ({', '.join(ENDINGS)}), {got}")
        found += sorted(path.relative_to(root).as_posix() for path in files)
    return found


def walk(folder: Path, skipped: Skipped, above: frozenset[Path] = frozenset()) -> list[Path]:
    """Return the image files of a folder and its subfolders; `above` are the real folders on the way here."""
    found = []
    for entry in sorted(folder.iterdir()):
        if _is_image(entry):
            found.append(entry)
        elif not entry.is_dir():
            _skip(entry, skipped)
    above = above | {folder.resolve()}
    for name in _sub_folders(folder, above):
        found += walk(folder / name, skipped, above)
    return found


def _sub_folders(folder: Path, above: frozenset[Path] = frozenset()) -> list[str]:
    """Return the names of the subfolders, except hidden ones and links that lead back to a folder in `above`."""
    if not folder.is_dir():
        raise CapsellaError(no_folder(folder))
    here = folder.resolve()
    entries = [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    real = {entry.name: entry.resolve() for entry in entries}
    return sorted(name for name, path in real.items() if path not in above and not here.is_relative_to(path))


def _is_image(path: Path) -> bool:
    return path.name.lower().endswith(ENDINGS) and not path.name.startswith(".") and path.is_file()


def _skip(path: Path, skipped: Skipped) -> None:
    if not path.name.startswith("."):
        skipped.append((path.suffix or "without an ending" if path.is_file() else "link or pipe", path.name))


def _skip_beside(folder: Path, skipped: Skipped) -> None:
    for entry in sorted(folder.iterdir()):
        if _is_image(entry):
            skipped.append(("beside the class folders", entry.name))
        elif not entry.is_dir():
            _skip(entry, skipped)


def skipped_notes(skipped: Skipped) -> tuple[str, ...]:
    """Return at most one note on the files that are not read."""
    if not skipped:
        return ()
    kinds = Counter(kind for kind, _ in skipped).most_common(_MAX_KINDS)
    names = ", ".join(name for _, name in skipped[:_MAX_NAMES]) + (", …" if len(skipped) > _MAX_NAMES else "")
    each = ", ".join(f"{number} {kind}" for kind, number in kinds)
    return (f"skipped {pluralize(len(skipped), 'file')}: {each} ({names})",)


def no_folder(path: Path | str) -> str:
    """Return the error text for a path that is no folder of images."""
    if not Path(path).exists():
        return f"{path}: no such folder"
    if Path(path).suffix == ".npz":
        return f"{path}: is a file; `capsella train images-efficient --data {path}` reads it"
    return f"{path}: is a file; name the folder that has one subfolder per class"


def _warn_of_twins(folder: Path, classes: Sequence[str]) -> None:
    """Warn of classes that differ only in case, blanks or the Unicode form of a letter."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(" ".join(unicodedata.normalize("NFC", name).casefold().split()), []).append(name)
    if twins := [", ".join(map(repr, names)) for names in alike.values() if len(names) > 1]:
        text = f"{folder}: are these the same class? {'; '.join(twins)}. Then move their images into one folder"
        warn_once(f"twins: {folder}", text)


def folder_files(options: FolderData) -> list[str]:
    """Return the paths of a folder's image files, relative to it."""
    return [*list_folder(options.path).paths]


def spread(number: int, most: int) -> list[int]:
    """Return at most `most` of `number` indices, spread evenly.

    >>> spread(10, 4)
    [0, 2, 5, 7]
    """
    step = max(1.0, number / most)
    return [int(step * k) for k in range(int(number / step))]


@dataclass(frozen=True)
class FolderSummary:
    """A folder of images, before its pixels are read.

    path: the folder. images: number of files, some of which may be broken. train: number of files in the folder
    `train`, if the folder is split. validation: whether it has a validation split. classes: their names. height, width:
    pixels, medians of the inspected files. channels: 1 if every inspected file is grey, else 3. listing: its files,
    which `load_data` then need not list again.
    """

    path: Path
    images: int
    train: int | None
    validation: bool
    classes: tuple[str, ...]
    height: int
    width: int
    channels: int
    listing: FolderListing | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        """Return the summary as a line.

        >>> print(FolderSummary(Path("cells"), 351, None, False, ("a", "b"), 224, 224, 3))
        351 images in 2 classes, mostly 224×224 pixels, colour
        """
        kind = "grey" if self.channels == 1 else "colour"
        return (
            f"{self.images:,} images in {len(self.classes)} classes, mostly {self.width}×{self.height} pixels, {kind}"
        )


def inspect_folder(path: Path) -> FolderSummary:
    """Summarize a folder with one subfolder per class from the names and headers of its files.

    Raises:
        CapsellaError: no such folder, no classes, or no file with a readable header among those inspected.
    """
    listing = list_folder(path)
    files = listing.files
    first = {file.label: file for file in reversed(files)}  # a class of few files may have colours that no other has
    inspected = [*(files[row] for row in spread(len(files), _INSPECTED)), *first.values()]
    headers = [header for file in inspected if (header := _header(path / file.path)) is not None]
    if not headers:
        raise CapsellaError(f"{path}: must have images that can be read, got none among {len(files)} files")
    return FolderSummary(
        path=path,
        images=len(files),
        train=sum(file.split == "train" for file in files) or None,
        validation=any(file.split == "validation" for file in files),
        classes=listing.classes,
        height=median_low(image.height for image in headers),
        width=median_low(image.width for image in headers),
        channels=1 if all(image.mode[0] in "1LIF" and image.mode != "LAB" for image in headers) else 3,
        listing=listing,
    )


def _header(path: Path) -> Image.Image | None:
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # the error is reported when the file is read

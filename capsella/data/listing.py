"""List the image files of a folder with one subfolder per class.

    cells/basophil/patient1_003.png          or, already split,   cells/train/basophil/patient1_003.png
    cells/monocyte/patient2_017.tif                               cells/test/monocyte/patient2_017.tif

Sub-folders of a class are read too. A link that leads back to a folder above it is not followed. Files with other
endings, pipes, dangling links, hidden images and images beside the class folders are not read; a note counts them.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capsella.data.options import FolderData
from capsella.data.reading import ENDINGS
from capsella.errors import CapsellaError, pluralize, warn_once

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_MAX_KINDS, _MAX_NAMES = 5, 3


@dataclass(frozen=True)
class ClassFile:
    """An image file of a folder.

    path: relative to the folder, with forward slashes. label: its class. split: its split, if the folder is split.
    """

    path: str
    label: str
    split: str | None


class SkippedFiles:
    """Files that are not read: how many of each kind, and the first names, for one note."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.names: list[str] = []

    def __len__(self) -> int:
        return self.kinds.total()

    def add(self, kind: str, path: Path) -> None:
        """Count a file. `kind`: what it is, in the singular."""
        self.kinds[kind] += 1
        if len(self.names) < _MAX_NAMES:
            self.names.append(path.name)

    def add_other(self, path: Path) -> None:
        """Count what is not read: files other than images, and hidden images or folders with images."""
        if path.name.startswith("."):
            if _is_hidden_image(path):
                self.add("hidden image", path)
            elif path.is_dir() and any(is_image(inner) or _is_hidden_image(inner) for inner in _inside(path)):
                self.add("hidden folder of images", path)
        elif path.is_dir():
            return
        elif path.is_file():
            self.add(f"{path.suffix} file" if path.suffix else "file without an ending", path)
        elif path.is_symlink():
            self.add("dangling link", path)
        else:
            self.add("pipe or device", path)

    def add_beside(self, folder: Path) -> None:
        """Count the files, and hidden folders of images, in a folder that should hold only subfolders."""
        for entry in sorted(folder.iterdir()):
            if is_image(entry):
                self.add("image beside the class folders", entry)
            else:
                self.add_other(entry)

    def notes(self) -> tuple[str, ...]:
        """Return at most one line."""
        if not self.kinds:
            return ()
        shown = self.kinds.most_common(_MAX_KINDS)
        kinds = [pluralize(number, kind, _plural(kind)) for kind, number in shown]
        others = len(self) - sum(number for _, number in shown)
        more = [pluralize(others, "other")] if others else []
        names = ", ".join(self.names) + (", …" if len(self) > len(self.names) else "")
        return (f"skipped {', '.join(kinds + more)} ({names})",)


def _plural(kind: str) -> str:
    first, *rest = kind.split(" ", 1)
    if kind.startswith((".", "dangling", "hidden image")):
        return f"{kind}s"
    plurals = {"pipe": "pipes or devices", "hidden": "hidden folders of images"}
    return plurals.get(first, " ".join([f"{first}s", *rest]))


def is_image(path: Path) -> bool:
    """Return whether a path is an image file by its ending, and not hidden."""
    return path.name.lower().endswith(ENDINGS) and not path.name.startswith(".") and path.is_file()


def _is_hidden_image(path: Path) -> bool:
    name = path.name  # macOS writes ._NAME beside every file on some disks; these are no images
    return name.startswith(".") and not name.startswith("._") and name.lower().endswith(ENDINGS) and path.is_file()


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def no_folder(path: Path | str) -> str:
    """Return the error for a folder of images that is not there."""
    if not Path(path).exists():
        return f"{path}: no such folder"
    if Path(path).suffix == ".npz":
        return f"{path}: is a file; `capsella train images-efficient --data {path}` reads it"
    return f"{path}: is a file; name the folder that has one subfolder per class"


def sub_folders(folder: Path, above: frozenset[Path] = frozenset()) -> list[str]:
    """Return the names of the subfolders, except hidden ones and links that lead back to one `above`."""
    if not folder.is_dir():
        raise CapsellaError(no_folder(folder))
    here = folder.resolve()

    def leads_back(entry: Path) -> bool:
        real = entry.resolve()
        return real in above or here.is_relative_to(real)

    return sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() and not entry.name.startswith(".") and not leads_back(entry)
    )


def list_files(root: Path, skipped: SkippedFiles) -> list[ClassFile]:
    """List every image file with its class, and its split if the folder is split, sorted.

    Raises:
        CapsellaError: no such folder, fewer than two classes, a class without images, or splits beside classes.
    """
    folders = sub_folders(root)
    named = {folder: _SPLITS[folder.casefold()] for folder in folders if folder.casefold() in _SPLITS}
    others = [folder for folder in folders if folder not in named]
    if "train" in named.values() and len(named) > 1 and others:
        splits, classes = ", ".join(named), ", ".join(others)
        raise CapsellaError(f"{root}: {splits} look like splits, {classes} like classes; move one kind away")
    if "train" in named.values() and not others:
        skipped.add_beside(root)
        return [
            ClassFile(path, path.split("/")[1], named[folder])
            for folder in folders
            for path in _files_by_class(root, folder, skipped)
        ]
    files = _files_by_class(root, "", skipped)
    _warn_of_deeper_classes(root, files)
    return [ClassFile(path, path.split("/")[0], None) for path in files]


def _files_by_class(root: Path, within: str, skipped: SkippedFiles) -> list[str]:
    folder = root / within
    classes = sub_folders(folder)
    if len(classes) < 2:
        loose = sum(is_image(entry) for entry in folder.iterdir())
        beside = f"; {pluralize(loose, 'image')} beside: move each into the folder of its class" if loose else ""
        raise CapsellaError(
            f"{folder}: must have at least 2 subfolders, one per class, got {classes or 'none'}{beside}"
        )
    _warn_of_twins(folder, classes)
    skipped.add_beside(folder)
    found = []
    for name in classes:
        others = len(skipped)
        files = walk(folder / name, skipped, frozenset({root.resolve()}))
        if not files:
            raise CapsellaError(
                f"{folder / name}: a class must have images ({', '.join(ENDINGS)}), "
                f"got none among {pluralize(len(skipped) - others, 'file')}"
            )
        found += sorted(path.relative_to(root).as_posix() for path in files)
    return found


def walk(folder: Path, skipped: SkippedFiles, above: frozenset[Path] = frozenset()) -> list[Path]:
    """Return the image files of a folder and its subfolders; `above` are the real folders on the way here."""
    found = []
    for entry in sorted(folder.iterdir()):
        if is_image(entry):
            found.append(entry)
        else:
            skipped.add_other(entry)
    above = above | {folder.resolve()}
    for name in sub_folders(folder, above):
        found += walk(folder / name, skipped, above)
    return found


def _warn_of_twins(folder: Path, classes: Sequence[str]) -> None:
    """Warn of classes that differ only in case, blanks or the Unicode form of a letter."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(" ".join(unicodedata.normalize("NFC", name).casefold().split()), []).append(name)
    if twins := [", ".join(map(repr, names)) for names in alike.values() if len(names) > 1]:
        text = f"{folder}: are these the same class? {'; '.join(twins)}. Then move their images into one folder"
        warn_once(f"twins: {folder}", text)


def _warn_of_deeper_classes(root: Path, files: Sequence[str]) -> None:
    """Warn if all classes hold nothing but the same two folders or more, which may be the real classes."""
    within: dict[str, set[str]] = {}
    for file in files:
        label, name = file.split("/")[:2]
        within.setdefault(label, set()).add(name if file.count("/") > 1 else "")
    first, *others = within.values()
    if len(first) > 1 and "" not in first and all(names == first for names in others):
        classes, deeper = ", ".join(within), ", ".join(sorted(first))
        warn_once(
            f"deeper: {root}",
            f"{root}: the classes are {classes}, and each has the subfolders {deeper}. If those are the classes, use "
            "one of the folders alone, or name the folders train and test",
        )


def folder_files(options: FolderData) -> list[str]:
    """Return the image files of a folder, relative to it."""
    return [file.path for file in list_files(options.path, SkippedFiles())]


def spread(number: int, most: int) -> list[int]:
    """Return at most `most` of `number` indices, spread evenly.

    >>> spread(10, 4)
    [0, 2, 5, 7]
    """
    step = max(1.0, number / most)
    return [int(step * k) for k in range(int(number / step))]

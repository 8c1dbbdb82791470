"""Images of one's own: a folder with one sub-folder a class.

    cells/basophil/patient1_003.png          or, already split,   cells/train/basophil/patient1_003.png
    cells/monocyte/patient2_017.tif                               cells/test/monocyte/patient2_017.tif

Sub-folders of a class are read too. Hidden files and files with other endings are passed over, and a link that leads
back to a folder it lies in is not followed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from capsella.data.images import ImageSet
from capsella.data.options import DataOptions
from capsella.data.reading import ENDINGS, decode, read_all, stack
from capsella.data.source import Parts
from capsella.data.split_file import read_split_file
from capsella.data.splits import SPLIT_NAMES
from capsella.errors import CapsellaError

_SPLITS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


@dataclass(frozen=True)
class _File:
    path: str
    """Relative to the folder, with forward slashes."""
    label: str
    split: str | None


def read_folder(options: DataOptions) -> Parts:
    """Read the folder `options.path`; its sub-folders, sorted, are the classes.

    Returns:
        The splits of `options.split_file`, or of sub-folders train, val and test that hold the classes; everything as
        train where neither is there.

    Raises:
        CapsellaError: no folder or sub-folders, one class only, a class without images, a broken image (unless
            skip_broken), mixed channels or sizes where the options keep them, a split file that does not fit.
    """
    root = Path(options.path or "")
    name = root.resolve().name
    listed = _list_files(root, options.split_file)
    readers = [partial(_read, root, file.path, options) for file in listed]
    images, positions, errors = read_all(readers, options.skip_broken)
    files = [listed[position] for position in positions]
    paths = [file.path for file in files]
    broken = tuple(str(error) for error in errors)
    classes = _class_names(root, listed, files, broken)
    everything = ImageSet(
        images=stack(images, paths),
        labels=torch.tensor([classes.index(file.label) for file in files]),
        classes=classes,
        files=tuple(paths),
        metadata={} if options.group is None else {"group": _groups(options.group, paths)},
    )
    if options.split_file is not None:
        return _part(name, everything, read_split_file(options.split_file, root, paths), broken)
    if files[0].split is not None:
        return _part(name, everything, [str(file.split) for file in files], broken)
    return Parts(name, everything, broken=broken)


def _read(root: Path, file: str, options: DataOptions) -> Tensor:
    return decode(root / file, str(root / file), options.height_width, options.channels)


def _list_files(root: Path, split_file: Path | None) -> list[_File]:
    """Every image file with its class, and its split where the folder is split already, sorted."""
    folders = _sub_folders(root)
    if folders and all(folder in _SPLITS for folder in folders) and "train" in folders:
        if split_file is not None:
            raise CapsellaError(f"{root} is split already, by its sub-folders {folders}; leave split_file out")
        return [
            _File(path, path.split("/")[1], _SPLITS[folder])
            for folder in folders
            for path in _files_by_class(root, folder)
        ]
    return [_File(path, path.split("/")[0], None) for path in _files_by_class(root, "")]


def _files_by_class(root: Path, within: str) -> list[str]:
    folder = root / within
    classes = _sub_folders(folder)
    if len(classes) < 2:
        raise CapsellaError(f"{folder}: must have one sub-folder a class, 2 or more, got {classes or 'none'}")
    found = []
    for name in classes:
        every_file = sorted(path.relative_to(root).as_posix() for path in _walk(folder / name))
        images = [path for path in every_file if path.lower().endswith(ENDINGS)]
        if not images:
            raise CapsellaError(
                f"{folder / name}: a class must have images ({', '.join(ENDINGS)}), "
                f"got none among {len(every_file)} files"
            )
        found += images
    return found


def _sub_folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise CapsellaError(f"{folder}: no such folder")
    here = folder.resolve()
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() and not entry.name.startswith(".") and not here.is_relative_to(entry.resolve())
    )


def _walk(folder: Path) -> Iterator[Path]:
    """The files of a folder and its sub-folders, hidden ones aside."""
    for entry in folder.iterdir():
        if entry.is_file() and not entry.name.startswith("."):
            yield entry
    for name in _sub_folders(folder):
        yield from _walk(folder / name)


def _class_names(root: Path, listed: Sequence[_File], read: Sequence[_File], broken: Sequence[str]) -> tuple[str, ...]:
    classes = sorted({file.label for file in listed})
    for name in classes:
        if not any(file.label == name for file in read):
            raise CapsellaError(f"{root}: no image of the class {name!r} can be read. Left out: {'; '.join(broken)}")
    return tuple(classes)


def _groups(pattern: str, paths: Sequence[str]) -> Int64[Tensor, "n"]:
    """A number for each distinct text that the pattern captures."""
    texts = []
    for path in paths:
        match = re.search(pattern, path)
        if match is None or match[1] is None:
            raise CapsellaError(f"group: the pattern {pattern!r} must capture a name in every path, got none in {path}")
        texts.append(match[1])
    return torch.from_numpy(np.unique(texts, return_inverse=True)[1].astype(np.int64))


def _part(name: str, everything: ImageSet, splits: Sequence[str], broken: tuple[str, ...]) -> Parts:
    """The sets a split file or the sub-folders name; only validation may be missing, and is held out later."""
    sets = {split: everything.subset([i for i, here in enumerate(splits) if here == split]) for split in SPLIT_NAMES}
    for split in ("train", "test"):
        if len(sets[split]) == 0:
            raise CapsellaError(
                f"{name}: the {split} split is empty; an explicit split must name images to train on and to test on"
            )
    validation = sets["validation"] if len(sets["validation"]) else None
    return Parts(name, sets["train"], validation, sets["test"], broken)

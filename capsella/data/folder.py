"""Images of one's own: a folder with one sub-folder a class.

    cells/basophil/patient1_003.png          or, already split,   cells/train/basophil/patient1_003.png
    cells/monocyte/patient2_017.tif                               cells/test/monocyte/patient2_017.tif

Sub-folders of a class are read too. Hidden files are passed over, and a link that leads back to a folder it lies in is
not followed. Files with other endings, pipes, links to nothing and images beside the class folders are passed over too,
and a line says so.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from capsella.data.fingerprints import Fingerprints
from capsella.data.images import ImageSet
from capsella.data.listing import PassedOver, is_image, spread, sub_folders, walk
from capsella.data.options import FolderData
from capsella.data.reading import ENDINGS, Look, decode, read_all, rgb_images
from capsella.data.source import Parts
from capsella.data.split.sets import SPLIT_NAMES
from capsella.data.split.table import SplitTable
from capsella.data.stained import SAMPLED, usual_radius
from capsella.errors import CapsellaError, pluralize, warn_once

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


@dataclass(frozen=True)
class ClassFile:
    """An image file of a folder, with its class and, where the folder is split already, its split."""

    path: str
    """Relative to the folder, with forward slashes."""
    label: str
    split: str | None


Reader = Callable[[Path, Look | None], Tensor]
"""From a file to its image, uint8 [c h w]."""


def read_folder(options: FolderData, table: SplitTable | None = None, read: Reader | None = None) -> Parts:
    """Read the folder `options.path`; its sub-folders, sorted, are the classes.

    Args:
        options: its path, size, channels, range, group and skip_broken are used.
        table: a split file; what it leaves unused is not read, and sub-folders that split the images do not count.
        read: in place of reading the pixels, as where a split needs none.

    Returns:
        The splits of sub-folders train, val and test that hold the classes; everything as train where there are none.

    Raises:
        CapsellaError: no folder or sub-folders, one class only, a class without images, a broken image (unless
            skip_broken), mixed channels or sizes where the options keep them.
    """
    root, passed_over = options.path, PassedOver()
    listed = _used(list_files(root, passed_over), root, table)
    seen = Fingerprints(wanted=options.duplicates != "ignore")
    if read is None:
        options = _with_radius(options, [root / file.path for file in listed])
        read = partial(_read, options=options)
    readers = {file.path: partial(read, root / file.path, seen.of(row)) for row, file in enumerate(listed)}
    images, positions, errors = read_all(readers, options.skip_broken)
    files = [listed[position] for position in positions]
    paths, broken = tuple(file.path for file in files), tuple(str(error) for error in errors)
    classes = _class_names(root, listed, files, broken)
    groups = {} if options.group is None else {"group": _groups(options.group, paths)}
    everything = ImageSet(
        images=images,
        labels=torch.tensor([classes.index(file.label) for file in files]),
        classes=classes,
        files=paths,
        metadata=seen.metadata(positions) | groups,
    )
    name, notes = root.resolve().name, (*passed_over.notes(), *_about_groups(everything))
    parts = Parts(name, everything, broken=broken, notes=notes)
    if files[0].split is not None and table is None:
        rows = {split: [i for i, file in enumerate(files) if file.split == split] for split in SPLIT_NAMES}
        parts = Parts.of_own(name, {split: everything.subset(rows[split]) for split in rows}, broken, notes)
    return replace(parts, cell_radius=options.cell_radius)


def _with_radius(options: FolderData, files: Sequence[Path]) -> FolderData:
    """With the radius of the images' usual nucleus, where cells are to be cut out by it."""
    if options.cells == "whole" or options.cell_radius is not None:
        return options
    return replace(options, cell_radius=usual_radius(rgb_images(files[row] for row in spread(len(files), SAMPLED))))


def _used(listed: list[ClassFile], root: Path, table: SplitTable | None) -> list[ClassFile]:
    """What a split file does not leave unused."""
    if table is None:
        return listed
    used = [file for file in listed if file.path not in table.unused]
    if not used:
        raise CapsellaError(f"{table.path}: must put images of {root} in train and test, but all are unused")
    return used


def _read(file: Path, look: Look | None, options: FolderData) -> Tensor:
    return decode(file, str(file), options.height_width, options.channels, options.range, options.cut, look)


def folder_files(options: FolderData) -> list[str]:
    """The files that a folder of classes has for these options, relative to it."""
    return [file.path for file in list_files(options.path, PassedOver())]


def list_files(root: Path, passed_over: PassedOver) -> list[ClassFile]:
    """Every image file with its class, and its split where the folder is split already, sorted."""
    folders = sub_folders(root)
    named = {folder: _SPLITS[folder.casefold()] for folder in folders if folder.casefold() in _SPLITS}
    others = [folder for folder in folders if folder not in named]
    if "train" in named.values() and len(named) > 1 and others:
        splits, classes = ", ".join(named), ", ".join(others)
        raise CapsellaError(f"{root}: {splits} look like splits, {classes} like classes; move either away")
    if "train" in named.values() and not others:
        passed_over.add_beside(root)
        return [
            ClassFile(path, path.split("/")[1], named[folder])
            for folder in folders
            for path in _files_by_class(root, folder, passed_over)
        ]
    files = _files_by_class(root, "", passed_over)
    _warn_of_deeper_classes(root, files)
    return [ClassFile(path, path.split("/")[0], None) for path in files]


def _warn_of_deeper_classes(root: Path, files: Sequence[str]) -> None:
    """Where all classes hold nothing but the same two folders or more, these may be what was meant."""
    within: dict[str, set[str]] = {}
    for file in files:
        label, name = file.split("/")[:2]
        within.setdefault(label, set()).add(name if file.count("/") > 1 else "")
    first, *others = within.values()
    if len(first) > 1 and "" not in first and all(one == first for one in others):
        classes, deeper = ", ".join(within), ", ".join(sorted(first))
        warn_once(
            f"deeper: {root}",
            f"{root}: the classes are {classes}, and each holds the folders {deeper}. If these are the classes, give "
            "one folder alone, or call them train and test",
        )


def _files_by_class(root: Path, within: str, passed_over: PassedOver) -> list[str]:
    folder = root / within
    classes = sub_folders(folder)
    if len(classes) < 2:
        loose = sum(is_image(entry) for entry in folder.iterdir())
        beside = f"; {pluralize(loose, 'image')} beside: move each into the folder of its class" if loose else ""
        raise CapsellaError(f"{folder}: must have one sub-folder a class, 2 or more, got {classes or 'none'}{beside}")
    passed_over.add_beside(folder)
    found = []
    for name in classes:
        others = len(passed_over)
        files = walk(folder / name, passed_over, frozenset({root.resolve()}))
        if not files:
            raise CapsellaError(
                f"{folder / name}: a class must have images ({', '.join(ENDINGS)}), "
                f"got none among {pluralize(len(passed_over) - others, 'file')}"
            )
        found += sorted(path.relative_to(root).as_posix() for path in files)
    return found


def _class_names(
    root: Path, listed: Sequence[ClassFile], read: Sequence[ClassFile], broken: Sequence[str]
) -> tuple[str, ...]:
    classes = sorted({file.label for file in listed})
    for name in classes:
        if not any(file.label == name for file in read):
            raise CapsellaError(f"{root}: no image of the class {name!r} can be read. Left out: {'; '.join(broken)}")
    return tuple(classes)


def _groups(pattern: str, paths: Sequence[str]) -> Int64[Tensor, " n"]:
    """A number for each distinct text that the pattern captures."""
    texts = []
    for path in paths:
        match = re.search(pattern, path)
        if match is None or match[1] is None:
            raise CapsellaError(f"group: the pattern {pattern!r} must capture a name in every path, got none in {path}")
        texts.append(match[1])
    return torch.from_numpy(np.unique(texts, return_inverse=True)[1].astype(np.int64))


def _about_groups(images: ImageSet) -> tuple[str, ...]:
    """At most one line: a pattern that finds too little puts patients together, or tears them."""
    if "group" not in images.metadata:
        return ()
    sizes = images.metadata["group"].unique(return_counts=True)[1]
    return (f"{pluralize(len(sizes), 'group')} (--group), the largest of {pluralize(int(sizes.max()), 'image')}",)

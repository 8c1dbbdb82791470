"""Your own images in a folder with one subfolder per class: list the files, inspect their headers, decode each once.

    cells/basophil/patient1_003.png          or, already split,   cells/train/basophil/patient1_003.png
    cells/monocyte/patient2_017.tif                               cells/test/monocyte/patient2_017.tif

Sub-folders of a class are read too. A link that leads back to a folder above it is not followed. Files with other
endings, pipes, dangling links and images beside the class folders are not read, and a note counts them; hidden files
and folders are ignored.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from PIL import Image
from torch import Tensor

from capsella.data.cell_crop import MAX_SAMPLES, measured_cut
from capsella.data.decoding import read_all, rgb_images, stack
from capsella.data.duplicates import Fingerprint, fingerprint
from capsella.data.image_file import ENDINGS, FORMATS, depth_of, read_values
from capsella.data.images import ImageSet
from capsella.data.options import FolderData
from capsella.data.reading import UnseenPart, open_file, preprocess, readable, unseen_notes
from capsella.data.splits import SPLIT_NAMES, UNUSED, SourceSplits, SplitTable, group_numbers
from capsella.errors import CapsellaError, pluralize

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_INSPECTED = 200  # files whose headers `inspect_folder` reads, spread evenly, and one of each class
_MAX_NAMES = 3  # skipped files in a note
_PERCENTILES = (0.1, 99.9)  # hot and dead pixels must not set the range
_SAMPLED = 10_000  # values per file
_DEEP_ENDINGS = (".png", ".tif", ".tiff")  # other formats have 8 bits


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


def list_folder(root: Path) -> FolderListing:
    """List every image file with its class, and its split if the folder is split.

    Raises:
        CapsellaError: no such folder, fewer than two classes, a class without images, or splits beside classes.
    """
    folders, beside = _contents(root)
    named = {folder: _SPLITS[folder.casefold()] for folder in folders if folder.casefold() in _SPLITS}
    others = [folder for folder in folders if folder not in named]
    is_split = "train" in named.values() and (not others or len(named) > 1)
    if is_split and others:
        splits, classes = ", ".join(named), ", ".join(others)
        raise CapsellaError(f"{root}: {splits} look like splits, {classes} like classes; move either away")
    files, skipped = list[ClassFile](), beside if is_split else []
    for folder in folders if is_split else ["."]:
        labels, beside = _contents(root / folder)
        if len(labels) < 2:
            raise CapsellaError(
                f"{root / folder}: must have one subfolder per class, 2 or more, got {labels or 'none'}"
            )
        skipped += beside
        for label in labels:
            paths = sorted(path.relative_to(root).as_posix() for path in walk(root / folder / label, skipped))
            if not paths:
                text = f"a class must have images ({', '.join(ENDINGS)}), got none"
                raise CapsellaError(f"{root / folder / label}: {text}")
            files += [ClassFile(path, label, named.get(folder)) for path in paths]
    return FolderListing(root, tuple(files), skipped_notes(skipped))


def walk(folder: Path, skipped: list[str]) -> list[Path]:
    """Return the image files of a folder and its subfolders, and append the names of other files to `skipped`."""
    images = []
    for parent, _, names in _walk(folder):
        for name in names:
            if name.lower().endswith(ENDINGS) and (parent / name).is_file():
                images.append(parent / name)
            else:
                skipped.append(name)
    return images


def _contents(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the folders and of the files in a folder."""
    if not folder.is_dir():
        raise CapsellaError(no_folder(folder))
    return next(_walk(folder))[1:]


def _walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield a folder and those below it, each with the names of the folders and files in it.

    Hidden ones, and links that lead back to a folder above, are left out.
    """

    def fail(error: OSError) -> None:
        raise error

    for name, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        parent = Path(name)
        above = {*parent.resolve().parents, *(path.resolve() for path in (parent, *parent.parents))}
        shown = sorted(name for name in folders if not name.startswith("."))
        folders[:] = [name for name in shown if (parent / name).resolve() not in above]
        yield parent, folders, sorted(name for name in files if not name.startswith("."))


def skipped_notes(skipped: Sequence[str]) -> tuple[str, ...]:
    """Return at most one note on the files that are not read."""
    names = ", ".join(skipped[:_MAX_NAMES]) + (", …" if len(skipped) > _MAX_NAMES else "")
    return (f"skipped {pluralize(len(skipped), 'file')} ({names})",) if skipped else ()


def no_folder(path: Path | str) -> str:
    """Return the error text for a path that is no folder of images."""
    if not Path(path).exists():
        return f"{path}: no such folder"
    return f"{path}: is a file; name the folder that has one subfolder per class, or an .npz file"


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
    pixels, medians of the inspected files. channels: 1 if every inspected file is grey, else 3.
    """

    path: Path
    images: int
    train: int | None
    validation: bool
    classes: tuple[str, ...]
    height: int
    width: int
    channels: int

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
        classes=tuple(sorted(first)),
        height=median_low(image.height for image in headers),
        width=median_low(image.width for image in headers),
        channels=1 if all(image.mode[0] in "1LIF" and image.mode != "LAB" for image in headers) else 3,
    )


def _header(path: Path) -> Image.Image | None:
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # the error is reported when the file is read


def read_folder(options: FolderData, listing: FolderListing, table: SplitTable | None = None) -> SourceSplits:
    """Decode every image once.

    Args:
        options: how to read the images. A radius of nuclei, a stain and a range of values that are needed and not set
            are measured on up to 100 files; the range on training images if the folder, or the split file, is split.
        listing: the files.
        table: a split file; files that it leaves unused are not read.

    Raises:
        CapsellaError: a broken image (unless skip_broken), a class of broken images alone, images that differ in
            channels or size unless the options set these, or too little memory.
    """
    root, split_of = listing.root, {file.path: file.split for file in listing.files}
    if table is not None:
        split_of = {path: table.rows[path].split if path in table.rows else None for path in split_of}
    files = [file for file in listing.files if split_of[file.path] != UNUSED]
    if not files:
        raise CapsellaError(f"{root}: the split file must put images in train and test, but all are unused")
    if options.lacks_cut:
        sample = [root / files[row].path for row in spread(len(files), MAX_SAMPLES)]
        cut, _ = measured_cut(rgb_images(sample), options.cells == "matched")
        options = options.with_measured(None, cut)
    options, notes = _with_range(options, [root / path for path in split_of if split_of[path] in ("train", None)])
    readers = [partial(_read, options, root / file.path) for file in files]
    results, rows, broken = read_all(readers, options.skip_broken)
    pixels, contents, prints, losses = zip(*((image, *facts) for image, facts in results), strict=True)
    classes = tuple(sorted({file.label for file in files}))
    files = [files[row] for row in rows]
    if missing := set(classes) - {file.label for file in files}:
        raise CapsellaError(f"{root}: no image of {min(missing)!r} can be read. Left out: {'; '.join(broken)}")
    paths = tuple(file.path for file in files)
    metadata, about_groups = {"content": torch.tensor(contents)}, tuple[str, ...]()
    if options.duplicates != "ignore":
        metadata["fingerprint"] = torch.from_numpy(np.array(prints))
    if options.group is not None:
        metadata["group"] = group_numbers(options.group, root, paths, listing.paths)
        sizes = metadata["group"].unique(return_counts=True)[1]  # reveal a pattern that joins or divides patients
        text = f"{pluralize(len(sizes), 'group')} (--group), the largest of {pluralize(int(sizes.max()), 'image')}"
        about_groups = (text,)
    labels = torch.tensor([classes.index(file.label) for file in files])
    images = ImageSet(stack(pixels, paths), labels, classes, paths, metadata)
    parts = {split: [row for row, file in enumerate(files) if file.split == split] for split in SPLIT_NAMES}
    if table is not None or not any(parts.values()):
        parts = {"train": [*range(len(files))]}
    elif not (parts["train"] and parts["test"]):
        raise CapsellaError(f"{root}: a folder that is split must have images in train and test")
    return SourceSplits(
        root.resolve().name,
        **{split: images.subset(part) for split, part in parts.items() if part},
        broken=broken,
        notes=(*listing.notes, *about_groups, *notes, *unseen_notes(losses)),
        cut=options.cut,
        value_range=options.range,
        listing=listing.paths,
    )


def _read(options: FolderData, path: Path) -> tuple[UInt8[Tensor, "c h w"], tuple[int, Fingerprint | None, UnseenPart]]:
    """Return the pixels; a digest of the file, which changes if another image is saved under its name; and more."""
    with readable(path, str(path)):
        image = open_file(path)
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=8)).digest()
        pixels, loss = preprocess(image, options.preprocessing)
        found = None if options.duplicates == "ignore" else fingerprint(image)
        return pixels, (int.from_bytes(digest) >> 1, found, loss)


def _with_range(options: FolderData, files: Sequence[Path]) -> tuple[FolderData, tuple[str, ...]]:
    """Return the options with a range of values if there are files of more than 8 bits, and a note on it."""
    if options.range is not None:
        return options, ()
    values = list[Shaped[np.ndarray, " k"]]()
    deep = [file for file in files if _is_deep(file)]
    for file in (deep[row] for row in spread(len(deep), MAX_SAMPLES)):
        with suppress(CapsellaError), readable(file, ""):  # an error is reported when all images are read
            each = read_values(file).ravel()
            values.append(each[np.random.default_rng(0).integers(0, len(each), _SAMPLED)])
    if not values:
        return options, ()
    joined = np.concatenate(values)
    low, high = (float(value) for value in np.percentile(joined, _PERCENTILES, method="nearest"))
    if low == high:  # nearly all is background
        low, high = float(joined.min()), float(joined.max())
    if low == high:
        raise CapsellaError(f"all values are {low:g}; set a range, e.g. --range 0 4095")
    text = f"values {low:,.6g} to {high:,.6g} of files of more than 8 bits become 0 to 255; --range sets it"
    return replace(options, range=(low, high)), (text,)


def _is_deep(file: Path) -> bool:
    """Return whether a file has more than 8 bits per channel, from its header."""
    if not file.name.lower().endswith(_DEEP_ENDINGS):
        return False
    with suppress(CapsellaError), readable(file, ""), Image.open(file, formats=FORMATS) as image:
        return depth_of(image) is not None
    return False

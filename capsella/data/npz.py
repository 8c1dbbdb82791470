"""NumPy .npz files of images: plain arrays, MedMNIST's keys, or JPEG and PNG files joined into one array of bytes.

| arrays | content |
|---|---|
| `images`, `labels` | uint8 [n h w], [n h w c] or [n c h w]; integers [n] or [n 1] |
| `train_images`, `train_labels`, `val_…`, `test_…` | the same for each split (MedMNIST) |
| `image`, `image_offset`, `label` or `category` | image file i is `image[image_offset[i]:image_offset[i + 1]]` |
| `classes` | names of the classes; without it they are called 0, 1, … |
| NAME, `NAME_names` | another class of each image, and its names; `label` in `NpzData` chooses it |
| `split`, `split_names` | a code per image, and names of the codes: train, val or validation, test; others are unused |
| `name` | a file name for each image |
| any other 1-d array of n integers | kept as metadata; `group` in `DataOptions` may name one |
"""

import zipfile
import zlib
from collections.abc import Iterable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int, UInt8
from PIL import Image
from torch import Tensor

from capsella.data.cell_crop import MAX_SAMPLES, measured_cut
from capsella.data.decoding import picture_of, read_all, resize_array, rgb_images, stack
from capsella.data.duplicates import Fingerprint, fingerprint
from capsella.data.folder import spread
from capsella.data.image_file import ImageData, open_image
from capsella.data.images import ImageSet
from capsella.data.options import DataOptions, NpzData, is_table
from capsella.data.reading import UnseenPart, cropped_by, preprocess, readable, unseen_notes
from capsella.data.splits import SPLIT_NAMES, SourceSplits, group_numbers
from capsella.errors import ArgumentError, CapsellaError, errors_of

Arrays = dict[str, np.ndarray]
# A file may unpack to this many bytes, a larger one to MAX_RATIO times its size: deflate packs zeros to a thousandth,
# drawings to a tenth.
MAX_BYTES, MAX_RATIO = 1_000_000_000, 200
MAX_CLASSES = 100_000  # labels from here on cannot be indices of classes
_SPLITS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}
_LABELS = ("labels", "label", "category")
# Metadata with a meaning here; a user's array of the same name means something else.
_RESERVED = {"group", "toy", "domain", "copies", "content", "fingerprint"}
_NO_METADATA = {*_LABELS, "images", "image", "image_offset", "mask_offset", "classes", "split", "split_names"}


class NpzImages(NamedTuple):
    """The images of a file, their positions in it, the errors of those left out, and notes on parts that are unseen."""

    images: ImageSet
    rows: Int[np.ndarray, " n"]
    broken: tuple[str, ...]
    notes: tuple[str, ...]


def read_npz(
    path: Path, options: DataOptions, classes: tuple[str, ...] | None = None, label: str | None = None
) -> SourceSplits:
    """Read a .npz file in any of the layouts above.

    Args:
        path: the file.
        options: its size, channels, group and skip_broken are used.
        classes: names of the classes if the file has none.
        label: the array of classes, as in `NpzData`.

    Raises:
        CapsellaError: no .npz file, arrays missing, pickled, or of a wrong shape or type, an image that is broken.
        ValueError: `options.group` or `label` names no array.
    """
    arrays = load_arrays(path)
    if label is not None:
        arrays = _with_label(path, arrays, label)
    if "train_images" in arrays:
        if options.group is not None:
            raise ArgumentError("group", "be None for a file with train_images, …", options.group)
        arrays = _joined(path, arrays, options)
    options = _with_cut(path, arrays, options)
    parts = {"train": np.arange(len(_labels(path, arrays)))}
    if "split" in arrays:
        parts = _rows_by_split(path, arrays)
    read = image_set(path, arrays, options, classes, np.concatenate([*parts.values()]))
    chosen = {split: np.flatnonzero(np.isin(read.rows, rows)) for split, rows in parts.items()}
    return SourceSplits(
        path.stem,
        **{split: read.images.subset(positions) for split, positions in chosen.items()},  # type: ignore[arg-type]
        broken=read.broken,
        notes=read.notes,
        cut=options.cut,
    )


def _joined(path: Path, arrays: Arrays, options: DataOptions) -> Arrays:
    """Convert MedMNIST's layout, train_images, train_labels and so on, to images, labels and a code for each split."""
    parts = [name.removesuffix("_images") for name in arrays if name.endswith("_images")]
    if unknown := [part for part in parts if part not in _SPLITS]:
        raise CapsellaError(f"{path}: splits must be named {', '.join(_SPLITS)}, got {unknown[0]}_images")
    labels = [_labels(path, {"labels": _first(path, arrays, (f"{part}_labels",))}) for part in parts]
    images = [_channels_last(path, arrays[f"{part}_images"]) for part in parts]
    for one, other in zip(images, labels, strict=True):
        _check_number(path, "images", len(one), len(other))
    if len({part.shape[1:] for part in images}) > 1 and options.cells == "whole":
        images = [resize_array(part, options.preprocessing).permute(0, 2, 3, 1).numpy() for part in images]
    with errors_of(f"{path}: images of all splits must be alike, set --size and --channels"):
        joined = {"images": np.concatenate(images), "labels": np.concatenate(labels)}
    split = np.repeat(np.arange(len(parts)), [len(part) for part in labels])
    names = {name: values for name, values in arrays.items() if name == "classes"}
    return {**names, **joined, "split": split, "split_names": np.array(parts)}


def _with_label(path: Path, arrays: Arrays, label: str) -> Arrays:
    """Return the arrays with the array `label` as the class of each image."""
    if label not in arrays or arrays[label].dtype.kind not in "iu":
        known = ", ".join(sorted(name for name, values in arrays.items() if values.dtype.kind in "iu"))
        raise ArgumentError("label", f"name an array of integers in {path} (it has: {known})", label)
    others = {name: values for name, values in arrays.items() if name not in (*_LABELS, "classes")}
    names = {"classes": arrays[f"{label}_names"]} if f"{label}_names" in arrays else {}
    return {**others, "label": arrays[label], **names}


def _with_cut(path: Path, arrays: Arrays, options: DataOptions) -> DataOptions:
    """Return options with the radius of a typical nucleus and the stain, measured if they are needed and not set."""
    if not options.lacks_cut:
        return options
    images: Iterable[Image.Image]
    if "image_offset" in arrays:
        files = spread(len(arrays["image_offset"]) - 1, MAX_SAMPLES)
        images = rgb_images(_file(path, arrays, row) for row in files)
    else:
        pixels = _channels_last(path, _first(path, arrays, ("images", "image")))
        rows = spread(len(pixels), MAX_SAMPLES) if pixels.shape[3] == 3 else []
        images = (Image.fromarray(pixels[row]) for row in rows)
    return options.with_measured(None, measured_cut(images, options.cells == "matched")[0])


def load_arrays(path: Path) -> Arrays:
    """Read all arrays of a .npz file. Pickled objects are refused: unpickling could run arbitrary code.

    Raises:
        CapsellaError: the file is missing, is no .npz file, is damaged, holds pickled objects, or unpacks to far more
            than images would.
    """
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("it is a single array; a .npz file has several, each with a name")
        with file:
            unpacked, packed = sum(member.file_size for member in file.zip.infolist()), path.stat().st_size
            if unpacked > max(MAX_BYTES, MAX_RATIO * packed):
                raise ValueError(f"{packed:,} bytes unpack to {unpacked:,}, more than {MAX_RATIO} times as many")
            arrays = {name: file[name] for name in file.files}
        text = {name: np.char.decode(values, "utf-8") for name, values in arrays.items() if values.dtype.kind == "S"}
        return arrays | text
    except FileNotFoundError:
        raise CapsellaError(f"{path}: no such file") from None
    except (OSError, EOFError, ValueError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise CapsellaError(f"{path}: must be a .npz file without pickled objects ({error})") from error


def image_set(
    path: Path,
    arrays: Arrays,
    options: DataOptions,
    classes: tuple[str, ...] | None = None,
    rows: Int[np.ndarray, " k"] | None = None,
) -> NpzImages:
    """Read the images of plain or joined arrays, all or those of `rows`; raise errors like `read_npz`."""
    labels = _labels(path, arrays)
    names = _class_names(path, arrays, labels) if classes is None else classes
    rows = np.arange(len(labels)) if rows is None else rows
    broken: tuple[str, ...] = ()
    is_wanted = isinstance(options, NpzData) and options.duplicates != "ignore"
    if "image_offset" in arrays:
        _check_offsets(path, arrays, len(labels))
        readers = [partial(_decode, path, arrays, options, is_wanted, row) for row in rows.tolist()]
        results, positions, broken = read_all(readers, options.skip_broken)
        rows = rows[positions]
        images = stack([image for image, _ in results], [f"{path}, image {row}" for row in rows])
        losses, prints = [loss for _, (loss, _) in results], [found for _, (_, found) in results if found is not None]
        content = torch.from_numpy(np.diff(arrays["image_offset"])[rows].astype(np.int64))
    else:
        pixels = _channels_last(path, _first(path, arrays, ("images", "image")))
        _check_number(path, "images", len(pixels), len(labels))
        images = resize_array(pixels[rows], options.preprocessing)
        losses = len(rows) * [UnseenPart(cropped_by(options.preprocessing, (pixels.shape[2], pixels.shape[1])))]
        prints = [fingerprint(ImageData(picture_of(pixels[row]))) for row in rows.tolist()] if is_wanted else []
        content = torch.tensor([zlib.crc32(pixels[row].tobytes()) for row in rows.tolist()])
    files = _file_names(path, arrays, len(labels))
    metadata = {name: values[rows] for name, values in _metadata(path, arrays, options, len(labels), files).items()}
    if is_wanted:
        metadata["fingerprint"] = np.array(prints, np.int64).reshape(-1, 5)
    tensors = {"content": content} | {name: torch.from_numpy(values) for name, values in metadata.items()}
    chosen = None if files is None else tuple(files[row] for row in rows)
    with errors_of(path):
        found = ImageSet(images, torch.from_numpy(labels[rows]), names, chosen, tensors)
    return NpzImages(found, rows, broken, unseen_notes(losses))


def _file(path: Path, arrays: Arrays, row: int) -> BytesIO:
    """Return one of the image files that are joined in one array."""
    joined, offsets = _first(path, arrays, ("image", "images")), arrays["image_offset"]
    return BytesIO(joined[offsets[row] : offsets[row + 1]].tobytes())


def _decode(
    path: Path, arrays: Arrays, options: DataOptions, is_wanted: bool, row: int
) -> tuple[UInt8[Tensor, "c h w"], tuple[UnseenPart, Fingerprint | None]]:
    content = _file(path, arrays, row)
    with readable(content, f"{path}, image {row}"):
        image = open_image(content)
        pixels, loss = preprocess(image, options.preprocessing)
        return pixels, (loss, fingerprint(image) if is_wanted else None)


def _check_offsets(path: Path, arrays: Arrays, labels: int) -> None:
    joined, offsets = _first(path, arrays, ("image", "images")), arrays["image_offset"]
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise CapsellaError(f"{path}: `image_offset` must be integers, got {offsets.dtype} of shape {offsets.shape}")
    _check_number(path, "images", len(offsets) - 1, labels)
    if (np.diff(offsets) < 0).any() or offsets[0] < 0 or offsets[-1] > len(joined):
        raise CapsellaError(f"{path}: `image_offset` must rise from 0 to {len(joined)}, the bytes of `image`")


def _rows_by_split(path: Path, arrays: Arrays) -> dict[str, Int[np.ndarray, " k"]]:
    """Return the rows for train, validation and test; codes with other names are unused."""
    names = arrays.get("split_names", np.array(["train", "val", "test"])).tolist()
    codes = arrays["split"]
    _check_number(path, "split codes", len(codes), len(_labels(path, arrays)))
    if codes.dtype.kind not in "iu" or codes.min(initial=0) < 0 or codes.max(initial=0) >= len(names):
        raise CapsellaError(f"{path}: `split` must hold codes from 0 to {len(names) - 1} for {names}")
    rows = {_SPLITS[name]: np.flatnonzero(codes == code) for code, name in enumerate(names) if name in _SPLITS}
    for split in ("train", "test"):
        if not len(rows.get(split, ())):
            raise CapsellaError(f"{path}: must have train and test images if it is split, but has no {split}")
    return {split: rows[split] for split in SPLIT_NAMES if len(rows.get(split, ()))}


def _labels(path: Path, arrays: Arrays) -> Int[np.ndarray, " n"]:
    labels = _first(path, arrays, _LABELS)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise CapsellaError(
            f"{path}: must have one integer label per image, got {labels.dtype} of shape {labels.shape}"
        )
    return labels.astype(np.int64)


def _class_names(path: Path, arrays: Arrays, labels: Int[np.ndarray, " n"]) -> tuple[str, ...]:
    if "classes" in arrays:
        if arrays["classes"].ndim != 1:
            raise CapsellaError(f"{path}: classes must be a list of names, got an array of {arrays['classes'].shape}")
        return tuple(str(name) for name in arrays["classes"].tolist())
    if (largest := labels.max(initial=-1)) >= MAX_CLASSES:
        raise CapsellaError(f"{path}: labels must count the classes from 0, got {largest}")
    return tuple(str(label) for label in range(largest + 1))


def _file_names(path: Path, arrays: Arrays, images: int) -> list[str] | None:
    if "name" not in arrays:
        return None
    _check_number(path, "names", len(arrays["name"]), images)
    return [str(name).replace("\\", "/") for name in arrays["name"]]


def _metadata(path: Path, arrays: Arrays, options: DataOptions, images: int, files: list[str] | None) -> Arrays:
    found = {
        name: values.astype(np.int64)
        for name, values in arrays.items()
        if name not in _NO_METADATA and values.shape == (images,) and values.dtype.kind in "iu"
    }
    ambiguous = _RESERVED if isinstance(options, NpzData) else set()
    metadata = {name: values for name, values in found.items() if name not in ambiguous}
    group = options.group
    if group is None:
        return metadata
    if is_table(group) and files is not None:
        return metadata | {"group": group_numbers(group, path, files, files).numpy()}
    if group not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ArgumentError("group", f"name an array of {images} integers in {path} (it has: {known})", group)
    return metadata | {"group": found[group]}


def _channels_last(path: Path, pixels: np.ndarray) -> UInt8[np.ndarray, "n h w c"]:
    if pixels.dtype == np.uint8 and 0 not in pixels.shape[1:]:
        if pixels.ndim == 3:
            return pixels[..., None]
        if pixels.ndim == 4 and pixels.shape[3] in (1, 3):
            return pixels
        if pixels.ndim == 4 and pixels.shape[1] in (1, 3):
            return pixels.transpose(0, 2, 3, 1)
    raise CapsellaError(
        f"{path}: images must be uint8, 0 to 255, of shape [n h w], [n h w c] or [n c h w] with 1 or 3 channels, got "
        f"{pixels.dtype} of shape {pixels.shape}"
    )


def _first(path: Path, arrays: Arrays, names: tuple[str, ...]) -> np.ndarray:
    for name in names:
        if name in arrays:
            return arrays[name]
    raise CapsellaError(f"{path}: must hold an array {' or '.join(names)}, got {', '.join(arrays) or 'none'}")


def _check_number(path: Path, what: str, number: int, labels: int) -> None:
    if number != labels:
        raise CapsellaError(f"{path}: must have as many {what} as labels, got {number} {what} and {labels} labels")

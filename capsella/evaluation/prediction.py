"""What a model makes of image files that nobody has labelled, as a table to open in a spreadsheet."""

import csv
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.data.reading import ENDINGS, read_image
from capsella.errors import CapsellaError
from capsella.evaluation.inference import inference
from capsella.files import write_whole
from capsella.models import ImageClassifier


@dataclass(frozen=True, eq=False)
class Prediction:
    """One file's class, the one with the largest activation, and the activations [classes].

    Of two classes an image, the classes of the two largest, the surer first, as in "8 + 3".
    """

    file: Path
    class_name: str
    activations: Float[Tensor, "classes"]


def find_images(paths: Iterable[Path]) -> list[Path]:
    """The image files that `paths` name: files as given, folders walked in sorted order, each file once.

    In folders, files are taken by suffix (BMP, JPEG, PNG, TIFF); hidden files and folders are passed over, and links to
    folders are not followed.

    Raises:
        CapsellaError: a path that does not exist, a folder without images.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise CapsellaError(f"{path}: there is no such file or folder")
        files = list(_walk(path)) if path.is_dir() else [path]
        if not files:
            raise CapsellaError(f"{path}: the folder holds no image ({', '.join(ENDINGS)})")
        found.update(dict.fromkeys(files))
    return list(found)


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                yield Path(root, name)


def predict_files(
    model: ImageClassifier,
    paths: Iterable[Path],
    *,
    batch_size: int = 64,
    broken: list[str] | None = None,
    classes: int = 1,
) -> Iterator[Prediction]:
    """Classify image files, resized as in training, in the order of `find_images`.

    Args:
        model: any registered model.
        paths: files and folders.
        batch_size: images at a time; changes nothing but speed and memory.
        broken: without it, a file that cannot be read is an error; with a list, such files are passed over and what is
            wrong with each is added to the list.
        classes: how many classes an image shows: 1, or 2 for a model of overlaid pairs.

    Raises:
        ValueError: a batch size below 1, more classes an image than the model has.
        CapsellaError: from `find_images`; a file that cannot be read; no file that can; an activation that is
            not finite.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: must be at least 1, got {batch_size}")
    if not 1 <= classes <= len(model.classes):
        raise ValueError(f"classes: must be from 1 to the model's {len(model.classes)}, got {classes}")
    files = find_images(paths)
    none_read = True
    for start in range(0, len(files), batch_size):
        images = dict(_readable(model, files[start : start + batch_size], broken))
        if images:
            none_read = False
            yield from _predict(model, images, classes)
    if none_read:
        raise CapsellaError(f"predict: none of the {len(files)} images could be read")


def _readable(model: ImageClassifier, files: Sequence[Path], broken: list[str] | None) -> Iterator[tuple[Path, Tensor]]:
    """Each file with its image, uint8 [c h w]."""
    for file in files:
        try:
            yield file, read_image(file, model.image_size, model.channels)
        except CapsellaError as error:
            if broken is None:
                raise
            broken.append(str(error))


def _predict(model: ImageClassifier, images: dict[Path, Tensor], classes: int) -> Iterator[Prediction]:
    batch = torch.stack(list(images.values())).float() / 255
    with inference(model) as device:
        activations = model(batch.to(device)).activations.float().cpu()
    for file, row in zip(images, activations.clone(), strict=True):
        if not row.isfinite().all():
            raise CapsellaError(f"{file}: the model answers NaN or infinity; its weights are broken, so train it anew")
        largest = row.topk(classes).indices.tolist()
        yield Prediction(file, " + ".join(model.classes[k] for k in largest), row)


def write_csv(predictions: Iterable[Prediction], classes: Sequence[str], out: Path | None = None) -> int:
    """Write a row a prediction: file, class, and the activation of every class; returns the number of rows.

    Args:
        predictions: as they come; rows are written as they are made.
        classes: names of the activations' columns.
        out: a file, written whole or not at all (an error half way leaves an older file as it was); None is standard
            output.
    """
    if out is None:
        return _write_rows(predictions, classes, sys.stdout)
    rows = 0

    def write(temporary: Path) -> None:
        nonlocal rows
        # File names are bytes: what is not UTF-8 on disk goes into the table as it is there.
        with open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = _write_rows(predictions, classes, file)

    write_whole(out, write)
    return rows


def _write_rows(predictions: Iterable[Prediction], classes: Sequence[str], file: TextIO) -> int:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["file", "class", *classes])
    rows = 0
    for prediction in predictions:
        activations = (f"{activation:.6f}" for activation in prediction.activations.tolist())
        writer.writerow([prediction.file, prediction.class_name, *activations])
        rows += 1
    return rows

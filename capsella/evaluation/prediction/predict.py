"""What a model makes of image files that nobody has labelled."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.data.decoding import Chunk, decode_files
from capsella.errors import CapsellaError, check_argument, check_minimum
from capsella.evaluation.prediction.listing import image_files
from capsella.losses import strongest_first
from capsella.models import ImageClassifier, Novelty
from capsella.models.inference import inference
from capsella.models.novelty.observe import answer, only_as_needed
from capsella.models.packed import packed


@dataclass(frozen=True, eq=False)
class Prediction:
    """One file's class, the one with the largest activation, and the activations [classes].

    Of two classes an image, the classes of the two largest, the surer first, as in "8 + 3".
    surprises: [scores], how strange the image is by each of the scores in use (`Novelty`); None where none is.
    """

    file: Path
    class_name: str
    activations: Float[Tensor, " classes"]
    surprises: Float[Tensor, " scores"] | None = None


@dataclass(frozen=True)
class Broken:
    """A file that could not be read, and why."""

    file: Path
    reason: str


def predict_files(
    model: ImageClassifier,
    paths: Iterable[Path],
    *,
    batch_size: int = 64,
    workers: int = 0,
    broken: list[Broken] | None = None,
    classes: int = 1,
    novelty: Novelty | None = None,
) -> Iterator[Prediction]:
    """Classify image files, resized and brought to 8 bits as in training, in the order of `image_files`.

    Args:
        model: any registered model.
        paths: files and folders.
        batch_size: images at a time; changes nothing but speed and memory.
        workers: processes that decode and resize; see `decode_files`.
        broken: without it, a file that cannot be read is an error; with a list, such files are passed over and added
            to the list.
        classes: how many classes an image shows: 1, or 2 for a model of overlaid pairs.
        novelty: `model.novelty`, for each image's surprises; None does without.

    Raises:
        ValueError: a batch size below 1, `workers` below 0, more classes an image than the model has.
        CapsellaError: from `image_files`; a file that cannot be read; no file that can; activations not finite.
    """
    files, none_read, found = 0, True, image_files(paths)
    batches = predict_batches(model, found, batch_size=batch_size, workers=workers, classes=classes, novelty=novelty)
    for outcomes in batches:
        files += len(outcomes)
        for outcome in outcomes:
            if isinstance(outcome, Prediction):
                none_read = False
                yield outcome
            elif broken is None:
                raise CapsellaError(f"{outcome.file}: {outcome.reason}")
            else:
                broken.append(outcome)
    if none_read:
        raise CapsellaError(f"predict: none of the {files} images could be read")


def predict_batches(
    model: ImageClassifier,
    files: Iterable[str],
    *,
    batch_size: int,
    workers: int,
    classes: int = 1,
    novelty: Novelty | None = None,
) -> Iterator[list[Prediction | Broken]]:
    """What becomes of each file, in order, `batch_size` files at a time; arguments and errors as `predict_files`."""
    check_speed(batch_size, workers)
    most = len(model.classes)
    check_argument(1 <= classes <= most, f"be from 1 to the model's {most}", classes=classes)
    size, channels, levels = model.image_size, model.channels, model.value_range
    chunks = decode_files(files, size, channels, levels, model.cut, chunk=batch_size, workers=workers)
    quick = packed(only_as_needed(model, novelty))
    return (outcomes_of(quick, chunk, classes, novelty) for chunk in chunks)


def check_speed(batch_size: int, workers: int | None) -> None:
    """Raise `ValueError` for a batch size below 1, or `workers` below 0."""
    check_minimum(1, batch_size=batch_size)
    check_minimum(0, workers=workers)


def outcomes_of(
    model: ImageClassifier, chunk: Chunk, classes: int, novelty: Novelty | None
) -> list[Prediction | Broken]:
    """What becomes of each file of a chunk; arguments and errors as `predict_files`."""
    rows = _answers(model, chunk, novelty) if len(chunk.pixels) else iter(())
    outcomes: list[Prediction | Broken] = []
    for file, reason in zip(map(Path, chunk.files), chunk.reasons, strict=True):
        if reason is not None:
            outcomes.append(Broken(file, reason))
            continue
        row, surprises = next(rows)
        if not row.isfinite().all():
            raise CapsellaError(f"{file}: the model answers NaN or infinity; its weights are broken, so train it anew")
        largest = strongest_first(row, classes).tolist()
        outcomes.append(Prediction(file, " + ".join(model.classes[k] for k in largest), row, surprises))
    return outcomes


def _answers(model: ImageClassifier, chunk: Chunk, novelty: Novelty | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Activations and surprises of each image that was read."""
    with inference(model) as device:
        images = torch.from_numpy(chunk.pixels).to(device).float() / 255
        if novelty is None:
            activations, surprises = model(images).activations, None
        else:
            output, surprises = answer(model, images, novelty)
            activations = output.activations
        rows = activations.float().cpu().clone()
        strange = [None] * len(rows) if surprises is None else surprises.float().cpu().clone()
    return zip(rows, strange, strict=True)

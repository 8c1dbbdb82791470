"""What is fitted to a trained network at the end of a training, or later: how sure it is, and what it knows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from capsella.data import Batch, LabelledImages, batches, evenly
from capsella.errors import CapsellaError, check_argument
from capsella.models import ImageClassifier
from capsella.models.confidence.files import write_confidence
from capsella.models.confidence.fitted import Confidence
from capsella.models.confidence.temperature import fit_confidence
from capsella.models.fitted import weights_digest
from capsella.models.inference import device_of, inference, without_decoder
from capsella.models.novelty.files import write_novelty
from capsella.models.novelty.fit import MOST_TRAINING_IMAGES, fit_novelty
from capsella.models.novelty.fitted import Novelty
from capsella.training.balance import prior_of
from capsella.training.images import own_splits
from capsella.training.precision import kind_of
from capsella.training.run import RunFolder, load_run


def calibrate_model(
    model: ImageClassifier, images: LabelledImages, batch_size: int = 128, prior: Sequence[float] | None = None
) -> Confidence:
    """Fit `model.confidence` on images that it was not trained on, set it, and return it; weights stay as they are.

    Args:
        images: validation images, one class each. Their mix of classes is part of what is fitted.
        prior: as of `Confidence`, where the training drew classes otherwise than they are.

    Raises:
        ValueError: no images, or of two classes each; other sizes than the model's; answers that are not finite.
    """
    if images.labels.ndim != 1:
        raise ValueError("images: must show one class each to be calibrated, got pairs")
    check_argument(len(images) > 0, "be at least one", images=len(images))
    quick = without_decoder(model)
    with inference(quick) as device:
        parts = batches(images, batch_size, device=device)
        answers = [(quick(part).activations.float().cpu(), labels.cpu()) for part, labels, _ in parts]
    activations, labels = (torch.cat(column).clone() for column in zip(*answers, strict=True))
    fitted = fit_confidence(activations, labels, prior)
    model.confidence = replace(fitted, weights=weights_digest(model))
    return model.confidence


def familiarise_model(
    model: ImageClassifier, training: LabelledImages, validation: LabelledImages, batch_size: int = 128
) -> Novelty:
    """Fit `model.novelty`, by which images are told that are like none of its training images; set and return it.

    Args:
        training: images it was trained on, of which at most 5,000 are taken, evenly spread, without random changes.
        validation: images that it was not trained on; the thresholds come from them.

    Raises:
        ValueError: images of two classes each; other sizes than the model's; answers that are not finite.
    """
    if training.labels.ndim != 1 or validation.labels.ndim != 1:
        raise ValueError("training, validation: must show one class each, got pairs")
    device = device_of(model)
    few = batches(training, batch_size, order=evenly(len(training), MOST_TRAINING_IMAGES), device=device)
    fitted = fit_novelty(model, _pairs(few), _pairs(batches(validation, batch_size, device=device)))
    model.novelty = replace(fitted, weights=weights_digest(model))
    return model.novelty


def _pairs(parts: Iterator[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
    return ((images, labels) for images, labels, _ in parts)


def calibrate_folder(
    folder: Path, training: LabelledImages, validation: LabelledImages, device: torch.device, batch_size: int = 128
) -> tuple[Confidence, Novelty]:
    """Fit both for the model saved in `folder`, and write calibration.json and novelty.safetensors there.

    Raises as `calibrate_model`.
    """
    model = ImageClassifier.from_pretrained(folder).to(device)
    recipe = RunFolder(folder).read_config()[1]
    confidence = calibrate_model(model, validation, batch_size, prior_of(recipe, training))
    novelty = familiarise_model(model, training, validation, batch_size)
    write_confidence(model, confidence, folder)
    write_novelty(model, novelty, folder)
    return confidence, novelty


def calibrate_run(folder: str | Path) -> tuple[Confidence, Novelty]:
    """Calibrate a run on its validation images, and fit what it knows; write both into its folder.

    Raises:
        CapsellaError: no run is there, its data is gone, or it is one on pairs; a validation image's answer is NaN.
    """
    folder = Path(folder)
    run = load_run(folder)
    if run.adapted is not None:
        raise CapsellaError(
            f"{folder} was adapted to another laboratory, which calibrates where each class has two labelled images"
        )
    recipe = run.recipe
    if recipe.data.is_paired:
        raise CapsellaError(
            f"{folder}: a run on pairs has no calibrated probabilities; they are for one class an image"
        )
    splits = own_splits(run, skip_broken=True)
    return calibrate_folder(folder, splits.train, splits.validation, torch.device(kind_of("auto")), recipe.batch_size)

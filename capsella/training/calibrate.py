"""Fit calibration and out-of-distribution detection to a trained network."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from capsella.data import LabelledImages, batches, evenly
from capsella.errors import CapsellaError, check_argument
from capsella.models import ImageClassifier
from capsella.models.inference import device_of, inference, without_decoder
from capsella.models.scoring import extract, without_unused_decoder
from capsella.training.balance import log_prior_shift
from capsella.training.precision import kind_of
from capsella.training.run import RunFolder, load_run
from capsella.training.run_splits import load_splits
from capsella.uncertainty import (
    Calibration,
    OODDetector,
    fit_calibration,
    weights_digest,
    write_calibration,
    write_detector,
)
from capsella.uncertainty.ood import ClassGaussian, fit_detector, fit_gaussian

MOST_TRAINING_IMAGES = 5000


def calibrate_model(
    model: ImageClassifier, images: LabelledImages, batch_size: int = 128, prior: Sequence[float] | None = None
) -> Calibration:
    """Fit `model.calibration` on images it was not trained on, set it, and return it.

    Args:
        model: trained; its weights do not change.
        images: validation images of one class each. Their class proportions are part of the fit.
        prior: as in `Calibration`, if training drew classes with other proportions.
    """
    check_argument(images.labels.ndim == 1, "show one class each, not pairs", images="pairs")
    check_argument(len(images) > 0, "be at least one", images=len(images))
    quick = without_decoder(model)
    with inference(quick) as device:
        parts = batches(images, batch_size, device=device)
        outputs = [(quick(part).activations.float().cpu(), labels.cpu()) for part, labels, _ in parts]
    activations, labels = (torch.cat(column).clone() for column in zip(*outputs, strict=True))
    model.calibration = replace(fit_calibration(activations, labels, prior), weights=weights_digest(model))
    return model.calibration


def fit_ood_detector(
    model: ImageClassifier, training: LabelledImages, validation: LabelledImages, batch_size: int = 128
) -> OODDetector:
    """Fit `model.ood_detector`, set it, and return it.

    Args:
        model: trained; its weights do not change.
        training: images it was trained on, for the class Gaussians; at most 5,000 are taken, without augmentation.
        validation: images it was not trained on, for the thresholds.
    """
    single = training.labels.ndim == validation.labels.ndim == 1
    check_argument(single, "show one class each, not pairs", training_and_validation="pairs")
    gaussians = _fit_gaussians(model, training, batch_size)
    columns: dict[str, list[Tensor]] = {}
    with inference(model) as device:
        for images, _, _ in batches(validation, batch_size, device=device):
            output, extracted = extract(model, images, rotate=True)
            predicted = output.activations.argmax(1)
            for name, values in extracted.items():
                scores = gaussians[name].distance(values, predicted) if name in gaussians else values
                columns.setdefault(name, []).append(scores.cpu())
    detector = fit_detector(gaussians, {name: torch.cat(parts).clone() for name, parts in columns.items()})
    model.ood_detector = replace(detector, weights=weights_digest(model))
    return model.ood_detector


def _fit_gaussians(model: ImageClassifier, training: LabelledImages, batch_size: int) -> dict[str, ClassGaussian]:
    """Fit the features of training images; a reconstruction needs no Gaussian, its error is a score by itself."""
    check_argument(len(training) > 0, "be of at least one image", training=0)
    quick = without_unused_decoder(model, None)
    columns: dict[str, list[Tensor]] = {}
    order = evenly(len(training), MOST_TRAINING_IMAGES)
    with inference(quick):
        for images, labels, _ in batches(training, batch_size, order=order, device=device_of(model)):
            _, extracted = extract(quick, images, labels)
            for name, values in {**extracted, "labels": labels}.items():
                columns.setdefault(name, []).append(values.cpu())
    features = {name: torch.cat(parts).clone() for name, parts in columns.items()}
    labels = features.pop("labels")
    return {name: fit_gaussian(values, labels, len(model.classes)) for name, values in features.items()}


def calibrate_folder(
    folder: Path, training: LabelledImages, validation: LabelledImages, device: torch.device, batch_size: int = 128
) -> tuple[Calibration, OODDetector]:
    """Fit both for the model saved in `folder`, and write calibration.json and ood_detector.safetensors there."""
    model = ImageClassifier.from_pretrained(folder).to(device)
    recipe = RunFolder(folder).read_config()[1]
    calibration = calibrate_model(model, validation, batch_size, log_prior_shift(recipe, training))
    detector = fit_ood_detector(model, training, validation, batch_size)
    write_calibration(model, calibration, folder)
    write_detector(model, detector, folder)
    return calibration, detector


def calibrate_run(folder: str | Path) -> tuple[Calibration, OODDetector]:
    """Fit calibration and OOD detection of a run on its own images, and write both into its folder."""
    folder = Path(folder)
    run = load_run(folder)
    if run.adapted is not None:
        raise CapsellaError(
            f"{folder} was adapted to another domain: there, calibration needs two labelled images of each class"
        )
    if run.recipe.data.is_paired:
        raise CapsellaError(f"{folder} is a run on pairs: calibrated probabilities need one class per image")
    splits, batch_size = load_splits(run, skip_broken=True), run.recipe.batch_size
    return calibrate_folder(folder, splits.train, splits.validation, torch.device(kind_of("auto")), batch_size)

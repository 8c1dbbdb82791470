"""Fit calibration and out-of-distribution detection to a trained network."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.data import LabelledImages, batches, evenly
from capsella.errors import check_argument
from capsella.models import ImageClassifier
from capsella.models.inference import device_of, extract, inference, without_decoder, without_unused_decoder
from capsella.uncertainty.calibration import Calibration, fit_calibration
from capsella.uncertainty.ood import ClassGaussian, OODDetector, fit_detector, fit_gaussian
from capsella.uncertainty.saving import weights_digest

MOST_TRAINING_IMAGES = 5000
CHANGED_BATCH = 8  # augmentation draws some changes once per batch
Change = Callable[[Float[Tensor, "b c h w"]], Float[Tensor, "b c h w"]]


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
    model: ImageClassifier,
    training: LabelledImages,
    validation: LabelledImages,
    batch_size: int = 128,
    change: Change | None = None,
) -> OODDetector:
    """Fit `model.ood_detector`, set it, and return it.

    Args:
        model: trained; its weights do not change.
        training: images it was trained on, for the class Gaussians; at most 5,000 are taken, without augmentation.
        validation: images it was not trained on, for the thresholds.
        change: the training's augmentation that imitates other laboratories, for the threshold of other kinds of image.
    """
    single = training.labels.ndim == validation.labels.ndim == 1
    check_argument(single, "show one class each, not pairs", training_and_validation="pairs")
    gaussians = fit_gaussians(model, training, batch_size)
    shifted = None if change is None else ood_scores(model, gaussians, validation, CHANGED_BATCH, change)
    detector = fit_detector(gaussians, ood_scores(model, gaussians, validation, batch_size), shifted)
    model.ood_detector = replace(detector, weights=weights_digest(model))
    return model.ood_detector


def ood_scores(
    model: ImageClassifier,
    gaussians: Mapping[str, ClassGaussian],
    images: LabelledImages,
    batch_size: int = 128,
    change: Change | None = None,
) -> dict[str, Float[Tensor, " n"]]:
    """Return the scores of images by name, before they are normalised; `fit_detector` takes those of new images."""
    columns: dict[str, list[Tensor]] = {}
    with inference(model) as device, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for pixels, _, _ in batches(images, batch_size, device=device):
            pixels = pixels if change is None else change(pixels)
            output, extracted = extract(model, pixels, rotate=True)
            predicted = output.activations.argmax(1)
            for name, values in extracted.items():
                scores = gaussians[name].distance(values, predicted) if name in gaussians else values
                columns.setdefault(name, []).append(scores.cpu())
    return {name: torch.cat(parts).clone() for name, parts in columns.items()}


def fit_gaussians(model: ImageClassifier, training: LabelledImages, batch_size: int = 128) -> dict[str, ClassGaussian]:
    """Fit class Gaussians to features of training images; a reconstruction error is a score without them."""
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

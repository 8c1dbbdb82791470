"""Calibration of a trained network on its validation images, at the end of a training or later."""

from pathlib import Path

import torch

from capsella.data import LabelledImages, batches, load_data
from capsella.errors import CapsellaError
from capsella.models import ImageClassifier
from capsella.models.confidence.files import weights_digest, write_confidence
from capsella.models.confidence.fitted import Confidence
from capsella.models.confidence.temperature import fit_confidence
from capsella.models.inference import inference, without_decoder
from capsella.training.run import load_run


def calibrate_model(model: ImageClassifier, images: LabelledImages, batch_size: int = 128) -> Confidence:
    """Fit `model.confidence` on images that it was not trained on, set it, and return it; weights stay as they are.

    Args:
        images: validation images, one class each. Their mix of classes is part of what is fitted.

    Raises:
        ValueError: images of two classes each; other sizes than the model's; answers that are not finite.
    """
    if images.labels.ndim != 1:
        raise ValueError("images: must show one class each to be calibrated, got pairs")
    quick = without_decoder(model)
    with inference(quick) as device:
        parts = batches(images, batch_size, device=device)
        answers = [(quick(part).activations.float().cpu(), labels.cpu()) for part, labels, _ in parts]
    activations, labels = (torch.cat(column).clone() for column in zip(*answers, strict=True))
    fitted = fit_confidence(activations, labels)
    model.confidence = Confidence(**{**vars(fitted), "weights": weights_digest(model)})
    return model.confidence


def calibrate_folder(folder: Path, images: LabelledImages, device: torch.device, batch_size: int = 128) -> Confidence:
    """Calibrate the model saved in `folder`, and write calibration.json there. Raises as `calibrate_model`."""
    model = ImageClassifier.from_pretrained(folder).to(device)
    confidence = calibrate_model(model, images, batch_size)
    write_confidence(model, confidence, folder)
    return confidence


def calibrate_run(folder: str | Path) -> Confidence:
    """Calibrate a run on its validation images, and write calibration.json into its folder.

    Raises:
        CapsellaError: no run is there, its data is gone, or it is one on pairs; a validation image's answer is NaN.
    """
    folder = Path(folder)
    run = load_run(folder)
    if run.adapted is not None:
        raise CapsellaError(f"{folder} was adapted to another laboratory, and calibrated on its labelled images then")
    recipe = run.recipe
    if recipe.data.is_paired:
        raise CapsellaError(
            f"{folder}: a run on pairs has no calibrated probabilities; they are for one class an image"
        )
    return calibrate_folder(folder, load_data(recipe.data).validation, torch.device("cpu"), recipe.batch_size)

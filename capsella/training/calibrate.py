"""Calibration and out-of-distribution detection of a run, fitted and saved in its folder."""

from pathlib import Path

import torch

from capsella.data import LabelledImages
from capsella.errors import CapsellaError
from capsella.models import ImageClassifier
from capsella.training.balance import log_prior_shift
from capsella.training.precision import resolve_accelerator
from capsella.training.run import RunFolder, load_run
from capsella.training.run_splits import load_splits
from capsella.uncertainty import (
    Calibration,
    OODDetector,
    calibrate_model,
    fit_ood_detector,
    save_fitted,
)


def calibrate_folder(
    folder: Path, training: LabelledImages, validation: LabelledImages, device: torch.device, batch_size: int = 128
) -> tuple[Calibration, OODDetector]:
    """Fit calibration and OOD detector to the model in `folder`; save calibration.json and ood_detector.safetensors."""
    model = ImageClassifier.from_pretrained(folder).to(device)
    recipe = RunFolder(folder).read_config()[1]
    calibration = calibrate_model(model, validation, batch_size, log_prior_shift(recipe, training))
    detector = fit_ood_detector(model, training, validation, batch_size)
    save_fitted(model, calibration, detector, folder)
    return calibration, detector


def calibrate_run(folder: str | Path) -> tuple[Calibration, OODDetector]:
    """Fit calibration and OOD detection of a run on its own images, and write both into its folder."""
    folder = Path(folder)
    run = load_run(folder)
    if run.adapted is not None:
        raise CapsellaError(
            f"{folder} was adapted to another domain; `capsella adapt` calibrates it, given two images per class"
        )
    if run.recipe.data.is_paired:
        raise CapsellaError(f"{folder} is a run on pairs: calibrated probabilities need one class per image")
    splits, batch_size = load_splits(run, skip_broken=True), run.recipe.batch_size
    device = torch.device(resolve_accelerator("auto"))
    return calibrate_folder(folder, splits.train, splits.validation, device, batch_size)

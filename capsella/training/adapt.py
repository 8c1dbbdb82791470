"""Adapt a trained network to another domain with a few labelled images of each class.

Three ways, in the order of how much they change:

    statistics  means and variances of batch norms, recomputed on the images; labels are not used (AdaBN: Li, Wang,
                Shi, Liu, Hou 2016, arXiv:1603.04779)
    last        also the weights of the last layer: the class capsules, or the linear layer
    all         also all other weights that the training changed, at a tenth of its learning rate

The learning rates were fixed before any test. The number of steps was halved to save time after one look at test
images. Both are the same for every network.
"""

import copy
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from capsella.data import ImageSet, balanced_order, batches
from capsella.data.holdout import Items, hold_out_fold
from capsella.errors import CapsellaError
from capsella.losses import total_loss
from capsella.models import ImageClassifier
from capsella.models.inference import device_of, inference, without_decoder
from capsella.progress import tracked
from capsella.training.augment import Augment
from capsella.training.config import AdaptOptions, ComputeOptions, OptimizerOptions
from capsella.training.recipe import Recipe
from capsella.training.run import Run, RunFolder
from capsella.uncertainty import fit_calibration, weights_digest
from capsella.uncertainty.fit import CHANGED_BATCH, fit_gaussians, ood_scores
from capsella.uncertainty.ood import fit_detector

# Folds of the labelled images; each is predicted by a network that was adapted to the other folds.
FOLDS = 5
_RATE_FACTOR = {"last": 1.0, "all": 0.1}


def adapt_model(
    model: ImageClassifier, recipe: Recipe, images: ImageSet, options: AdaptOptions, label: str = "adapting"
) -> ImageClassifier:
    """Return a copy of `model` that is adapted to labelled images.

    Args:
        model: the trained network, which stays as it is.
        recipe: the recipe of its training, for loss, augmentation and optimizer.
        images: labelled images of the model's classes; a class may have none.
        options: how to adapt.
        label: the label of the progress bar.

    Raises:
        CapsellaError: `how` is "statistics", but the model has no batch norm or there is only one image; or the weights
            diverge.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if options.how == "statistics" and not norms:
        raise CapsellaError(f"how: {model.name} has no batch norm whose statistics could change; use last or all")
    if options.how == "statistics" and len(images) < 2:
        raise CapsellaError("images: must be at least 2 for statistics, got 1; use --how last")
    adapted = copy.deepcopy(model)
    adapted.calibration = adapted.ood_detector = None  # these belong to the old weights
    torch.manual_seed(options.seed)
    if len(images) > 1 and norms:
        update_batch_norms(adapted, images)
    if options.how != "statistics":
        _train(adapted, recipe, images, options, label)
    return adapted.eval()


def update_batch_norms(model: ImageClassifier, images: ImageSet) -> None:
    """Recompute the means and variances of all trainable batch norms on these images, without their labels.

    Batch norms of a frozen backbone keep their statistics, which belong to its weights.
    """
    model.train()
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over batches
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    number = math.ceil(len(images) / 128)  # batches count equally, so their sizes must be similar
    encoder, device = without_decoder(model), device_of(model)
    with torch.no_grad():
        for part in batches(images, math.ceil(len(images) / number), order=order, device=device):
            encoder(part.images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()


def _train(model: ImageClassifier, recipe: Recipe, images: ImageSet, options: AdaptOptions, label: str) -> None:
    trained = model if options.how == "all" else model.last_layer()
    weights = [parameter for parameter in trained.parameters() if parameter.requires_grad]
    model.requires_grad_(False)
    for weight in weights:
        weight.requires_grad_(True)
    rate = options.learning_rate or recipe.optimizer.learning_rate * _RATE_FACTOR[options.how]
    schedule = OptimizerOptions(learning_rate=rate, schedule="cosine")
    optimizer = recipe.optimizer.create(weights)
    device = device_of(model)
    augment = Augment(recipe.augment, model.image_size).to(device)
    classes = images.labels.unique(return_inverse=True)[1]  # without gaps, because a class may have no image
    generator = torch.Generator().manual_seed(options.seed)
    order = balanced_order(classes, options.steps * options.batch_size, generator, math.inf)
    model.train(options.how == "all")
    parts = batches(images, options.batch_size, order=order, device=device)
    for step, (pixels, labels, _) in enumerate(tracked(parts, label, options.steps)):
        pixels = augment(pixels)
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate_at(step, options.steps)
        losses = total_loss(model(pixels, labels), pixels, labels, recipe.loss, spread=recipe.loss.spread_last)
        optimizer.zero_grad()
        losses.total.backward()
        if recipe.optimizer.gradient_clip is not None:
            nn.utils.clip_grad_norm_(weights, recipe.optimizer.gradient_clip)
        optimizer.step()
    if not all(bool(weight.isfinite().all()) for weight in weights):
        raise CapsellaError(f"the adaptation diverged at a learning rate of {rate:.3g}; use a smaller --learning-rate")


class HeldOutPredictions(NamedTuple):
    """Predictions for images by networks that were adapted without them.

    activations [n classes], labels [n]. ood_scores: the scores of out-of-distribution detection [n], by name.
    shifted_scores: those of the images changed as by another laboratory; empty if the recipe has no such augmentation.
    """

    activations: Float[Tensor, "n classes"]
    labels: Int64[Tensor, " n"]
    ood_scores: dict[str, Float[Tensor, " n"]]
    shifted_scores: dict[str, Float[Tensor, " n"]]

    @property
    def error(self) -> float:
        """The error rate in per cent."""
        return 100 * float((self.activations.argmax(1) != self.labels).double().mean())


def predict_held_out(
    model: ImageClassifier, recipe: Recipe, images: ImageSet, options: AdaptOptions
) -> HeldOutPredictions | None:
    """Predict each labelled image with a network that was adapted to the other folds (cross-validation).

    Return None if this is impossible: a class has a single image, or there are fewer than three images.
    """
    folds = min(FOLDS, *(count for count in images.counts().values() if count))
    if folds < 2 or len(images) < 3:
        return None
    activations, labels, scores, shifted = [], [], [], []
    change = Augment(recipe.augment, model.image_size).to(device_of(model)).domain_shift
    for fold in range(folds):
        rows = hold_out_fold(Items.of(images), folds, fold, options.seed)
        others, held = (images.subset(part) for part in rows)
        label = f"predicting the labelled images, fold {fold + 1} of {folds}"
        network = adapt_model(model, recipe, others, options, label)
        with inference(network):
            parts = list(batches(held, 128, device=device_of(network)))
            activations += [without_decoder(network)(part.images).activations.float().cpu() for part in parts]
        labels += [part.labels.cpu() for part in parts]
        gaussians = fit_gaussians(network, others)
        scores.append(ood_scores(network, gaussians, held))
        shifted.append({} if change is None else ood_scores(network, gaussians, held, CHANGED_BATCH, change))
    columns = ({name: torch.cat([fold[name] for fold in part]) for name in part[0]} for part in (scores, shifted))
    return HeldOutPredictions(torch.cat(activations).clone(), torch.cat(labels), *columns)


def calibrate_adapted(model: ImageClassifier, images: ImageSet, predictions: HeldOutPredictions) -> None:
    """Fit `model.calibration` and `model.ood_detector` to held-out predictions of the labelled images.

    The model itself was trained on these images; they give only the class Gaussians of the detector.
    """
    weights = weights_digest(model)
    model.calibration = replace(fit_calibration(predictions.activations, predictions.labels), weights=weights)
    detector = fit_detector(fit_gaussians(model, images), predictions.ood_scores, predictions.shifted_scores)
    model.ood_detector = replace(detector, weights=weights)


def save_adapted(run: Run, model: ImageClassifier, folder: Path, about: Mapping[str, Any]) -> None:
    """Save the adapted network as a run with the recipe of `run`; `about` becomes adapted.json.

    Raises:
        CapsellaError: `folder` already holds a run.
    """
    files, before = RunFolder(folder), RunFolder(run.folder)
    files.check_unused()
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    files.write("adapted", about)
    files.write_config(run.name, run.recipe, ComputeOptions(), before.images())
    if before.split.exists():
        shutil.copyfile(before.split, files.split)

"""Adapting a trained network to another laboratory with a few labelled images of each class.

Three ways, from the least to the most that changes:

    statistics  means and variances of the batch normalisations, taken anew on the images; labels are not used
                (AdaBN: Li, Wang, Shi, Liu, Hou 2016, arXiv:1603.04779)
    last        those, and the weights of the last layer: the class capsules, or the linear layer
    all         those, and all weights that the training changed, at a tenth of its learning rate

Rates were fixed before any test; steps were halved to save time, after one look at test images. Both are the same for
every network.
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
from capsella.data.images import join
from capsella.errors import CapsellaError
from capsella.losses import total_loss
from capsella.models import ImageClassifier
from capsella.models.inference import device_of, inference, without_decoder
from capsella.progress import tracked
from capsella.training.augment import Augment
from capsella.training.config import AdaptOptions, OptimizerOptions, Recipe
from capsella.training.run import Run, RunFolder
from capsella.uncertainty import weights_digest
from capsella.uncertainty.calibration import fit_calibration

FOLDS = 5
"""Parts of the labelled images, each judged by a network that was adapted with the others."""
_SHARE_OF_RATE = {"last": 1.0, "all": 0.1}


def adapt_model(
    model: ImageClassifier,
    recipe: Recipe,
    images: ImageSet,
    options: AdaptOptions,
    replay: ImageSet | None = None,
    said: str = "adapting",
) -> ImageClassifier:
    """A copy of `model`, adapted to labelled images.

    Args:
        model: trained; it stays as it is.
        recipe: of its training: loss, changes of the images, optimizer.
        images: labelled, with the model's classes; not every class needs to have some.
        options: how.
        replay: the model's own training images: half of those that statistics are taken on, and of each step.
        said: before the bar of the steps, on a terminal.

    Raises:
        CapsellaError: `statistics`, but the model has no batch normalisation, or there is a single image; the weights
            diverge.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if options.how == "statistics" and not norms:
        raise CapsellaError(
            f"how: {model.name} has no batch normalisation whose statistics could be taken anew; use --how last or "
            "--how all"
        )
    if options.how == "statistics" and len(images) < 2:
        raise CapsellaError("images: statistics can be taken of two or more, got 1; use --how last")
    adapted = copy.deepcopy(model)
    adapted.calibration = adapted.ood_detector = None  # of other weights
    torch.manual_seed(options.seed)
    if len(images) > 1 and norms:
        take_statistics(adapted, images if replay is None else join([images, _as_many(replay, images, options)]))
    if options.how != "statistics":
        _learn(adapted, recipe, images, options, replay, said)
    return adapted.eval()


def _as_many(replay: ImageSet, images: ImageSet, options: AdaptOptions) -> ImageSet:
    """As many of the one as of the other."""
    generator = torch.Generator().manual_seed(options.seed)
    return replay.subset(balanced_order(_dense(replay.labels), len(images), generator))


def take_statistics(model: ImageClassifier, images: ImageSet) -> None:
    """Means and variances of all batch normalisations that learn, over these images, whatever their labels.

    Those of a frozen stem stay: they belong to its weights.
    """
    model.train()
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    number = math.ceil(len(images) / 128)  # batches count alike, so none may be a small rest
    encoder, device = without_decoder(model), device_of(model)
    with torch.no_grad():
        parts = batches(images, math.ceil(len(images) / number), order=order, device=device)
        for seen, part in enumerate(parts, 1):
            for norm in norms:
                norm.momentum = 1 / seen  # the mean over batches
            encoder(part.images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()


def _learn(
    model: ImageClassifier,
    recipe: Recipe,
    images: ImageSet,
    options: AdaptOptions,
    replay: ImageSet | None,
    said: str,
) -> None:
    """Steps of the training's optimizer on changed images."""
    learned = model if options.how == "all" else model.last_layer()
    weights = [parameter for parameter in learned.parameters() if parameter.requires_grad]
    model.requires_grad_(False)
    for weight in weights:
        weight.requires_grad_(True)
    rate = options.learning_rate or recipe.optimizer.learning_rate * _SHARE_OF_RATE[options.how]
    schedule = OptimizerOptions(learning_rate=rate, schedule="cosine")
    optimizer = recipe.optimizer.create(weights)
    device = device_of(model)
    augment = Augment(recipe.augment, model.image_size).to(device)
    sets = [images] if replay is None else [images, replay]
    orders = [_order(one, options, options.batch_size // len(sets)) for one in sets]
    model.train(options.how == "all")
    for step in tracked(range(options.steps), said):
        taken = [one.take(order[step]) for one, order in zip(sets, orders, strict=True)]
        shown = augment(torch.cat([part.images for part in taken]).to(device).float() / 255)
        labels = torch.cat([part.labels for part in taken]).to(device)
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate_at(step, options.steps)
        losses = total_loss(model(shown, labels), shown, labels, recipe.loss, spread=recipe.loss.spread_last)
        optimizer.zero_grad()
        losses.total.backward()
        if recipe.optimizer.gradient_clip is not None:
            nn.utils.clip_grad_norm_(weights, recipe.optimizer.gradient_clip)
        optimizer.step()
    if not all(bool(weight.isfinite().all()) for weight in weights):
        raise CapsellaError(f"the adaptation diverged at a learning rate of {rate:.3g}; give a smaller --learning-rate")


def _order(images: ImageSet, options: AdaptOptions, each: int) -> Int64[Tensor, "steps each"]:
    """Rows for each step; every class that has images is drawn alike."""
    generator = torch.Generator().manual_seed(options.seed)
    order = balanced_order(_dense(images.labels), options.steps * each, generator, float("inf"))
    return order.view(options.steps, each)


def _dense(labels: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Numbered without gaps: a class of the network may have no image."""
    return labels.unique(return_inverse=True)[1]


class Judged(NamedTuple):
    """What networks that were adapted without an image say of it: activations [n classes], labels [n]."""

    activations: Float[Tensor, "n classes"]
    labels: Int64[Tensor, " n"]

    @property
    def error(self) -> float:
        """In per cent."""
        return 100 * float((self.activations.argmax(1) != self.labels).double().mean())


def cross_fitted(
    model: ImageClassifier, recipe: Recipe, images: ImageSet, options: AdaptOptions, replay: ImageSet | None = None
) -> Judged | None:
    """Each labelled image judged by a network that was adapted, in the same way, with the other folds of them.

    None where a class has a single image, so that there are no folds, or where a fold would leave one image.
    """
    folds = min(FOLDS, *(count for count in images.counts().values() if count))
    if folds < 2 or len(images) < 3:
        return None
    activations, labels = [], []
    for fold in range(folds):
        rows = hold_out_fold(Items.of(images), folds, fold, options.seed)
        others, held = (images.subset(part) for part in rows)
        said = f"judging the labelled images, part {fold + 1} of {folds}"
        network = adapt_model(model, recipe, others, options, replay, said)
        with inference(network):
            parts = list(batches(held, 128, device=device_of(network)))
            activations += [without_decoder(network)(part.images).activations.float().cpu() for part in parts]
        labels += [part.labels.cpu() for part in parts]
    return Judged(torch.cat(activations).clone(), torch.cat(labels))


def calibrate_adapted(model: ImageClassifier, judged: Judged) -> None:
    """Fit `model.calibration` on what the networks of the folds said, which are as the model but for fewer images.

    The labelled images themselves would flatter a network that has learned them.
    """
    fitted = fit_calibration(*judged)
    model.calibration = replace(fitted, weights=weights_digest(model))


def save_adapted(run: Run, model: ImageClassifier, folder: Path, about: Mapping[str, Any]) -> None:
    """Write the adapted network as a run of the same recipe; `about`: what adapted.json holds.

    Raises:
        CapsellaError: a run is in `folder` already.
    """
    files = RunFolder(folder)
    files.check_unused()
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    files.write("adapted", about)
    before = RunFolder(run.folder)
    files.write_config(run.name, run.recipe, before.read_compute(), before.images())
    if before.split.exists():
        shutil.copyfile(before.split, files.split)

"""The networks of a comparison, each with the recipe that trains it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from capsella.data import Splits
from capsella.errors import ArgumentError, CapsellaError, unknown_name, warn_once
from capsella.experiments.compare.options import ComparisonOptions
from capsella.models import CapsuleClassifier, ImageClassifier, list_models
from capsella.models.backbones import Backbone, efficientnet
from capsella.models.base import shipped_parameters
from capsella.papers.own_images import SIDES, SMALL_BATCH_BELOW, recipe_for, usual_epochs
from capsella.training import Recipe
from capsella.training.config import Balance, ResolvedPrecision
from capsella.training.registry import get_recipe

Family = Literal["capsules", "CNN", "pretrained"]
FAMILIES: tuple[Family, ...] = ("capsules", "CNN", "pretrained")
PRETRAINED = "backbone_linear"
GROUPS: dict[str, tuple[str, ...]] = {
    "default": ("mazzia2021_efficient_capsnet", "he2016_resnet10", PRETRAINED),
    # The founding papers' networks for small images, and the second paper's CNN.
    "small": ("sabour2017_capsnet", "hinton2018_matrix_capsnet_small", "hinton2018_cnn"),
    # The best networks of Forslöv 2018 (Table 3), which enlarge images to 224×224.
    "thesis": ("forslov2018_capsnet1_init1", "forslov2018_emnet1_init1", "forslov2018_cnnnet3_init1"),
}
TITLES = {
    "mazzia2021_efficient_capsnet": "Efficient-CapsNet",
    "he2016_resnet10": "ResNet-10",
    "sabour2017_capsnet": "CapsNet",
    "hinton2018_matrix_capsnet_small": "Matrix capsules",
    "hinton2018_cnn": "CNN of 2018",
    "forslov2018_capsnet1_init1": "CAPSNET 1",
    "forslov2018_emnet1_init1": "EM-NET 1",
    "forslov2018_cnnnet3_init1": "CNN-NET 3",
}
# Pixels per side that networks from scratch and pretrained ones see. On 377 cells, fitted to 500 others, a logistic
# regression on EfficientNet-Lite0 had an accuracy of 79.0, 83.0 and 88.3 % with 64, 128 and 160 pixels.
LARGEST, PRETRAINED_SIDE = 64, 160
LEAST_EPOCHS, LEAST_FINE_TUNING = 5, 3
WITHOUT_PACKAGE = (
    "without a pretrained network, which often is the best for few images: pip install 'capsella[pretrained]' adds it"
)


@dataclass(frozen=True)
class Contender:
    """A network of a comparison.

    name: the registered network. title: its name in reports. parameters: their number, without the decoder, which only
    training uses. recipe_name, recipe: how it is trained, with the recommended epochs; the split is not set yet.
    """

    name: str
    title: str
    family: Family
    parameters: int
    recipe_name: str
    recipe: Recipe

    @property
    def is_fitted(self) -> bool:
        """True if the network is a logistic regression on a frozen backbone, which is fitted without epochs."""
        return self.recipe.optimizer.method == "logistic_regression"

    @property
    def least_epochs(self) -> int:
        """The fewest epochs for which the network may be trained; a pretrained one needs fewer."""
        return LEAST_FINE_TUNING if self.family == "pretrained" else LEAST_EPOCHS

    def epochs_for(self, images: int, fraction: float = 1.0) -> int:
        """Return a fraction of the epochs that the recipe suggests for this many training images."""
        if self.is_fitted:
            return 1
        return max(1, round(fraction * usual_epochs(self.recipe.epochs, images)))


def side_for(side: int, largest: int) -> int:
    """Return the largest supported image side that exceeds neither `largest` nor the images' own `side`."""
    return max((known for known in SIDES if known <= min(side, largest)), default=min(SIDES))


def network_names(words: Sequence[str]) -> tuple[str, ...]:
    """Expand groups, shell patterns and names to registered names.

    Raises:
        ArgumentError: a word is none of them; suggests the nearest.
    """
    names: dict[str, None] = {}
    for word in words:
        matching = GROUPS.get(word) or tuple(list_models(word))
        if not matching:
            where = "`capsella list models` lists the networks"
            raise unknown_name("networks", word, (*GROUPS, *list_models()), where)
        names |= dict.fromkeys(matching)
    return tuple(names)


def make_contenders(
    names: Sequence[str],
    options: ComparisonOptions,
    splits: Splits,
    side: int,
    balance: Balance,
    precision: ResolvedPrecision,
) -> list[Contender]:
    """Return the networks of a comparison; each is built on the meta device to check that it fits the images.

    Args:
        names: registered networks.
        options: options of the comparison.
        splits: images at the size that networks trained from scratch see.
        side: pixels of the shorter side of the original images.
        balance, precision: used for every network.

    Raises:
        ArgumentError: a network cannot take the images, or there are fewer than two networks.
    """
    contenders = []
    for name in names:
        by_default = name == PRETRAINED and name not in options.networks and options.backbone == efficientnet.NAME
        if not by_default or _has_weights():
            contenders.append(_contender(name, options, splits, side, balance, precision))
    if len(contenders) < 2:
        raise ArgumentError("networks", "be at least two to compare", tuple(names))
    return contenders


def _has_weights() -> bool:
    """Return whether the package with ImageNet weights is installed; if not, warn how to install it."""
    try:
        efficientnet.weights_file()
    except CapsellaError:
        warn_once("no pretrained network", WITHOUT_PACKAGE)
        return False
    return True


def _contender(
    name: str, options: ComparisonOptions, splits: Splits, side: int, balance: Balance, precision: ResolvedPrecision
) -> Contender:
    recipe_name, recipe = recipe_for(name)
    if "backbone" in recipe.model.options:
        if options.fine_tune and name == PRETRAINED:
            recipe_name, recipe = "images-fine-tuned", get_recipe("images-fine-tuned")
        recipe = recipe.with_model(backbone=options.backbone)
        size = max(splits.image_size[0], min(side, PRETRAINED_SIDE))
    else:
        size = splits.image_size[0]
    is_fitted = recipe.optimizer.method == "logistic_regression"
    shift = round(options.augment.shift * size / LARGEST)
    recipe = replace(
        recipe,
        augment=recipe.augment if is_fitted else replace(options.augment, shift=shift),
        batch_size=min(recipe.batch_size, 16) if len(splits.train) < SMALL_BATCH_BELOW else recipe.batch_size,
        epoch_images=None,
        patience=None,
        precision=precision,
        balance=balance,
        data=options.data.replace(size=size, channels=splits.channels, cells=options.cells, split_file=None),
    )
    model = _outline(recipe, splits, size)
    backbone = next((module for module in model.modules() if isinstance(module, Backbone)), None)
    family: Family = "capsules" if isinstance(model, CapsuleClassifier) else "CNN"
    title = TITLES.get(name, name)
    if backbone is not None:
        title = {"efficientnet_lite0": "EfficientNet-Lite0"}.get(backbone.description.kind, Path(options.backbone).name)
        how = "frozen" if backbone.is_frozen else "fine-tuned"
        title += f", {how}" if family == "CNN" else f", {how}, with capsules"
        family = "pretrained" if family == "CNN" else "capsules"
    return Contender(name, title, family, shipped_parameters(model), recipe_name, recipe)


def _outline(recipe: Recipe, splits: Splits, size: int) -> ImageClassifier:
    try:
        with torch.device("meta"):
            return recipe.model.create((size, size), splits.channels, splits.classes)
    except (ValueError, RuntimeError) as error:
        shape = f"{size}×{size}×{splits.channels} in {len(splits.classes)} classes"
        rule = f"be able to take the images of {splits.name}, {shape}"
        raise ArgumentError("networks", rule, recipe.model.name, str(error)) from error

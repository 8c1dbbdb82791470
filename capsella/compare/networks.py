"""The networks of a comparison: which are compared by default, and how each is trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from capsella.data import Splits
from capsella.errors import unknown_name
from capsella.models import CapsuleClassifier, ImageClassifier, count_parameters, list_models
from capsella.models.base import shipped_parameters
from capsella.papers.own_images import recipe_for
from capsella.training import Recipe

Family = Literal["capsules", "CNN"]

GROUPS: dict[str, tuple[str, ...]] = {
    "capsules-small": ("sabour2017_capsnet", "hinton2018_matrix_capsnet_small", "mazzia2021_efficient_capsnet"),
    "cnn-small": ("hinton2018_cnn", "he2016_resnet10"),
    "capsules-thesis": ("forslov2018_capsnet1_init1", "forslov2018_emnet1_init1"),
    "cnn-thesis": ("forslov2018_cnnnet3_init1", "he2016_resnet10"),
}
"""For small images the founding papers' networks and Efficient-CapsNet, and of the CNNs the second paper's (the first
one's costs eight times as much) and a small residual network. Of the thesis's, which enlarge images to 224×224, the
best (Forslöv 2018, Table 3: EM-NET 1 and CAPSNET 1; CNN-NET 3), and the residual network: capsules must beat a CNN of
today too."""
GROUPS["thesis"] = GROUPS["capsules-thesis"] + GROUPS["cnn-thesis"]

WITH_BACKBONE = ("stem_capsules", "stem_linear")
"""Two heads on one pretrained backbone: class capsules, and a linear layer."""

LARGE = 64
"""Pixels on the shorter side from which on the networks of the thesis are the default, beside Efficient-CapsNet."""


@dataclass(frozen=True)
class Candidate:
    """A network that is compared.

    parameters: without the decoder, which is not shipped. recipe_name, recipe: see `recipe_for`; its data, changes of
    images, epochs and batches are still to be set.
    """

    network: str
    family: Family
    parameters: int
    decoder_parameters: int
    recipe_name: str
    recipe: Recipe


def suited(image_size: tuple[int, int]) -> tuple[str, ...]:
    """Capsule networks and CNNs for images of a size."""
    if min(image_size) < LARGE:
        return GROUPS["capsules-small"] + GROUPS["cnn-small"]
    return ("mazzia2021_efficient_capsnet", *GROUPS["thesis"])


def names_of(words: Sequence[str]) -> tuple[str, ...]:
    """Registered names for groups, shell patterns and names.

    Raises:
        ValueError: a word is none of them; suggests the nearest.
    """
    names: dict[str, None] = {}
    for word in words:
        found = GROUPS.get(word) or tuple(list_models(word))
        if not found:
            raise unknown_name("models", word, (*GROUPS, *list_models()), "`capsella list models` lists the networks")
        names |= dict.fromkeys(found)
    return tuple(names)


def candidates(names: Sequence[str], splits: Splits, backbone: str | None = None) -> list[Candidate]:
    """The networks by their names, each made once without memory, so that one that does not fit is known at once.

    `backbone`: that of the networks with a pretrained backbone.

    Raises:
        ValueError: a network that cannot take the images, or not at least one capsule network and one CNN.
    """
    found = []
    for name in names:
        recipe_name, recipe = recipe_for(name)
        if backbone is not None and name in WITH_BACKBONE:
            recipe = recipe.with_model(backbone=backbone)
        model = _outline(recipe, splits)
        family: Family = "capsules" if isinstance(model, CapsuleClassifier) else "CNN"
        shipped = shipped_parameters(model)
        found.append(Candidate(name, family, shipped, count_parameters(model) - shipped, recipe_name, recipe))
    if len({one.family for one in found}) < 2:
        raise ValueError(
            f"models: must have at least one capsule network and one CNN to compare, got {', '.join(names) or 'none'}"
        )
    return found


def _outline(recipe: Recipe, splits: Splits) -> ImageClassifier:
    """The network for these images, on the device that has no memory."""
    height, width = splits.image_size
    try:
        with torch.device("meta"):
            return recipe.model.create(splits.image_size, splits.channels, splits.classes)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"models: {recipe.model.name} must be able to take the images of {splits.name}, "
            f"{height}×{width}×{splits.channels} in {len(splits.classes)} classes, but: {error}"
        ) from error

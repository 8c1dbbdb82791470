"""`balance`: whether rare classes are drawn more often, or weigh more in the loss, and what "auto" is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from capsella.data.batching import balanced_order, epoch_order, even_shares
from capsella.data.show import UNEVEN
from capsella.data.split.sets import LabelledImages
from capsella.errors import pluralize
from capsella.training.recipe import Recipe

Settled = Literal["none", "sampling", "weights"]


@dataclass(frozen=True)
class BalanceChoice:
    """What "auto" is for these images, and why, in a few words."""

    balance: Settled
    why: str

    def __str__(self) -> str:
        return f"auto → {self.balance}: {self.why}"


def choose_balance(counts: Mapping[str, int]) -> BalanceChoice:
    """What "auto" is for so many training images of each class: sampling where they are uneven.

    >>> print(choose_balance({"neutrophil": 160, "monocyte": 16}))
    auto → sampling: neutrophil has 10.0 times the training images of monocyte (160 and 16)
    >>> print(choose_balance({"cat": 12, "dog": 10}))
    auto → none: cat has 1.2 times the training images of dog (12 and 10)
    """
    large, small = (function(counts, key=counts.__getitem__) for function in (max, min))
    ratio = counts[large] / counts[small]
    if ratio == 1:
        return BalanceChoice("none", f"every class has {pluralize(counts[large], 'training image')}")
    why = f"{large} has {ratio:.1f} times the training images of {small} ({counts[large]} and {counts[small]})"
    return BalanceChoice("sampling" if ratio >= UNEVEN else "none", why)


def settle_balance(recipe: Recipe, images: LabelledImages) -> tuple[Recipe, BalanceChoice | None]:
    """The recipe with the balance that "auto" is for these training images, and why; any other recipe as it is."""
    if recipe.balance != "auto":
        return recipe, None
    if recipe.data.is_paired:
        choice = BalanceChoice("none", "pairs are drawn from all classes")
    elif "laboratory" in images.metadata:
        choice = BalanceChoice("sampling", "each class of each laboratory is drawn as often")
    else:
        choice = choose_balance(images.counts())
    return replace(recipe, balance=choice.balance), choice


def order_of(recipe: Recipe, images: LabelledImages, generator: torch.Generator) -> Int64[Tensor, " k"]:
    """Rows of the training images, in the order of an epoch."""
    if recipe.balance == "sampling":
        if "laboratory" in images.metadata:
            return balanced_order(_cells(images), recipe.epoch_images, generator, math.inf)
        return balanced_order(images.labels, recipe.epoch_images, generator)
    return epoch_order(len(images), recipe.epoch_images, generator)


def _cells(images: LabelledImages) -> Int64[Tensor, " n"]:
    """A number for each class of each laboratory. All are drawn alike, however few images one has.

    Otherwise the laboratory would tell the class: where neutrophils are commoner, its colours would be theirs.
    """
    cells = images.labels + len(images.classes) * images.metadata["laboratory"]
    return cells.unique(return_inverse=True)[1]


def class_weights(recipe: Recipe, images: LabelledImages) -> Float[Tensor, " classes"] | None:
    """Weights [classes] in the loss, of mean 1 over the training images; None where the recipe has no weights.

    In the mean over an epoch they do what sampling does: a class weighs as many times more as it would be drawn.
    """
    if recipe.balance != "weights":
        return None
    counts = list(images.counts().values())
    shares = even_shares(counts)
    return torch.tensor([share * sum(counts) / count for share, count in zip(shares, counts, strict=True)])


def prior_of(recipe: Recipe, images: LabelledImages) -> tuple[float, ...] | None:
    """For each class ln of its share of the training images over its share of the draws; None where both are alike.

    A network learns how likely a class is among what it is shown. Added to its logits, these bring that back to the
    images as they are (Saerens, Latinne and Decaestecker 2002).
    """
    if recipe.balance == "none" or recipe.data.is_paired:
        return None
    counts = list(images.counts().values())
    drawn = even_shares(counts)
    if recipe.balance == "sampling" and "laboratory" in images.metadata:
        cells = _cells(images)
        alike = 1 / len(cells.unique())  # each class of each laboratory
        drawn = [alike * len(cells[images.labels == label].unique()) for label in range(len(counts))]
    return tuple(math.log(count / sum(counts) / share) for count, share in zip(counts, drawn, strict=True))

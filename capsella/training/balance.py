"""The option `balance` of a recipe: draw rare classes more often."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from capsella.data.batching import balanced_order, epoch_order, even_shares
from capsella.data.splits import LabelledImages
from capsella.data.summary import UNEVEN
from capsella.errors import pluralize
from capsella.training.config import Balance
from capsella.training.recipe import Recipe


def choose_balance(counts: Mapping[str, int]) -> tuple[Balance, str]:
    """Return what `balance="auto"` means for these numbers of training images per class, and the reason.

    >>> choose_balance({"neutrophil": 160, "monocyte": 16})
    ('sampling', 'neutrophil has 10.0 times the training images of monocyte (160 and 16)')
    >>> choose_balance({"cat": 12, "dog": 10})
    ('none', 'cat has 1.2 times the training images of dog (12 and 10)')
    """
    largest, smallest = (function(counts, key=counts.__getitem__) for function in (max, min))
    ratio = counts[largest] / counts[smallest]
    if ratio == 1:
        return "none", f"every class has {pluralize(counts[largest], 'training image')}"
    numbers = f"({counts[largest]} and {counts[smallest]})"
    why = f"{largest} has {ratio:.1f} times the training images of {smallest} {numbers}"
    return "sampling" if ratio >= UNEVEN else "none", why


def resolve_balance(recipe: Recipe, images: LabelledImages) -> tuple[Recipe, list[str]]:
    """Return the recipe with `balance="auto"` resolved for these training images, and a line if there was a choice."""
    if recipe.balance != "auto":
        return recipe, []
    balance: Balance
    if recipe.data.is_paired:
        balance, why = "none", "pairs are drawn from all classes"
    elif "domain" in images.metadata:
        balance, why = "sampling", "each class of each laboratory is drawn equally often"
    else:
        balance, why = choose_balance(images.counts())
    return replace(recipe, balance=balance), [f"balance auto → {balance}: {why}"]


def epoch_rows(recipe: Recipe, images: LabelledImages, generator: torch.Generator) -> Int64[Tensor, " k"]:
    """Return the indices of the training images in the order in which an epoch visits them."""
    if recipe.balance == "sampling":
        if "domain" in images.metadata:
            return balanced_order(classes_of_domains(images), recipe.epoch_images, generator, math.inf)
        return balanced_order(images.labels, recipe.epoch_images, generator)
    return epoch_order(len(images), recipe.epoch_images, generator)


def classes_of_domains(images: LabelledImages) -> Int64[Tensor, " n"]:
    """Return each image's index of its (domain, class) pair, for balanced sampling.

    All pairs are drawn equally often, however few images one has. Otherwise a network could predict the class from the
    domain: if one laboratory has more neutrophils, its colours would indicate a neutrophil.
    """
    numbers = images.labels + len(images.classes) * images.metadata["domain"]
    return numbers.unique(return_inverse=True)[1]


def draw_weights(images: LabelledImages) -> Float64[Tensor, " n"]:
    """Return how many times as often each image is drawn by balanced sampling as in a pass over all images."""
    if "domain" in images.metadata:
        pairs = classes_of_domains(images)
        drawn = pairs.bincount().double()
        return len(pairs) / (len(drawn) * drawn[pairs])
    counts = list(images.counts().values())
    factors = [share * sum(counts) / count for share, count in zip(even_shares(counts), counts, strict=True)]
    return torch.tensor(factors, dtype=torch.float64)[images.labels]


def log_prior_shift(recipe: Recipe, images: LabelledImages) -> tuple[float, ...] | None:
    """Return ln(proportion of the training images / proportion of the draws) per class; None without balancing.

    A network learns the class priors of the images that it is shown. Adding these numbers to its logits restores the
    priors of the training set (Saerens, Latinne and Decaestecker 2002).
    """
    if recipe.balance == "none" or recipe.data.is_paired:
        return None
    weights = draw_weights(images)
    return tuple(-math.log(weights[images.labels == label].mean()) for label in range(len(images.classes)))

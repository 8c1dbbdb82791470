"""Fit the linear head of a frozen backbone by logistic regression: each image passes through the backbone once."""

import warnings
from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import nn

from capsella.data import ImageSet, LabelledImages, batches, evenly, single_images
from capsella.errors import check_argument, warn_once
from capsella.models import ImageClassifier
from capsella.models.backbones import Backbone
from capsella.models.inference import inference
from capsella.training.balance import draw_weights
from capsella.training.config import Balance

INVERSE_STRENGTHS = tuple(10.0**power for power in range(-5, 4))  # scikit-learn's C
DEFAULT_C = 1e-2  # where no image can be held out
CV_FOLDS, MOST_CV_IMAGES, ITERATIONS = 4, 4_000, 300
FLOOR = 1e-12  # the smallest probability in a log loss


class HeadFit(NamedTuple):
    """The chosen inverse regularisation strength C, and the mean loss and number of errors on the training images."""

    c: float
    loss: float
    errors: int


def fit_head(model: ImageClassifier, training: LabelledImages, balance: Balance, batch_size: int) -> HeadFit:
    """Set batch norm and linear layer behind a frozen backbone to a logistic regression on standardised features.

    The regularisation is the one with the lowest cross-validated loss on the training images; groups stay together.
    With balanced classes, images of rare classes weigh more, as sampling would draw them more often.

    Args:
        model: `backbone_linear` with a frozen backbone.
        training: images of one class each; they are not augmented.
        balance: as in `Recipe`, without "auto".
        batch_size: affects speed and memory only.
    """
    from sklearn.linear_model import LogisticRegression  # a second to import

    images, layers = single_images(training, "logistic regressions"), cast(nn.Sequential, getattr(model, "network", ()))
    is_frozen = len(layers) > 2 and isinstance(layers[0], Backbone) and layers[0].is_frozen
    check_argument(
        is_frozen, "be adam or sgd unless the network is a linear layer on a frozen backbone", method=model.name
    )
    norm, linear = cast(nn.BatchNorm2d, layers[1]), cast(nn.Linear, layers[-1])
    features, variance_of_maps = _features(model, images, batch_size)
    labels = images.labels.numpy()
    weights = np.ones(len(images)) if balance == "none" else draw_weights(images).numpy()
    mean, variance = features.mean(0), features.var(0)
    scaled = (features - mean) / np.sqrt(variance + norm.eps)
    c = _choose_c(scaled, labels, weights, None if images.group is None else images.group.numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it may stop before it converges
        fit = LogisticRegression(C=c, max_iter=ITERATIONS).fit(scaled, labels, weights)
    probabilities = fit.predict_proba(scaled)
    coefficients, intercepts = fit.coef_, fit.intercept_
    if len(coefficients) == 1:  # for two classes, scikit-learn fits the difference of both rows
        coefficients = np.concatenate([-coefficients, coefficients]) / 2
        intercepts = np.concatenate([-intercepts, intercepts]) / 2
    with torch.no_grad():
        for tensor, values in (
            (norm.running_mean, mean),
            (norm.running_var, variance_of_maps),  # as adaptation would measure it, so that it can replace it
            (norm.weight, np.sqrt((variance_of_maps + norm.eps) / (variance + norm.eps))),
            (norm.bias, np.zeros_like(mean)),
            (linear.weight, coefficients),
            (linear.bias, intercepts),
        ):
            cast(torch.Tensor, tensor).copy_(torch.from_numpy(values))
    true = probabilities[np.arange(len(labels)), labels]
    errors = int((probabilities.argmax(1) != labels).sum())
    return HeadFit(c, float(-np.log(np.maximum(true, FLOOR)).mean()), errors)


def _features(
    model: ImageClassifier, images: ImageSet, batch_size: int
) -> tuple[Float[np.ndarray, "n width"], Float[np.ndarray, " width"]]:
    """Return the backbone's features, averaged over positions, and their variance over images and positions."""
    backbone = cast(nn.Sequential, model.network)[0]
    means, squares = [], []
    with inference(model) as device:
        for part in batches(images, batch_size, device=device):
            maps = backbone(part.images).float()
            means.append(maps.mean((2, 3)).cpu())
            squares.append(maps.square().mean((2, 3)).cpu())
    features = torch.cat(means).clone().numpy()
    mean_square = torch.cat(squares).double().mean(0).numpy()
    return features, np.maximum(mean_square - features.mean(0, dtype=np.float64) ** 2, 0).astype(features.dtype)


def _choose_c(
    features: Float[np.ndarray, "n width"],
    labels: Int[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"],
    groups: Int[np.ndarray, " n"] | None,
) -> float:
    """Return the inverse strength with the lowest cross-validated log loss, or `DEFAULT_C` if none can be measured."""
    from sklearn.linear_model import LogisticRegression

    few = evenly(len(labels), MOST_CV_IMAGES).numpy()
    features, labels, weights = features[few], labels[few], weights[few]
    losses = np.zeros(len(INVERSE_STRENGTHS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about classes with fewer images than folds
        for train, held in _splits(labels, None if groups is None else groups[few]):
            column, known = np.full(labels.max() + 1, -1), np.unique(labels[train])
            column[known] = np.arange(len(known))
            held = held[column[labels[held]] >= 0]  # a class without a training image has no probability
            if not len(held):
                continue
            for index, c in enumerate(INVERSE_STRENGTHS):
                fit = LogisticRegression(C=c, max_iter=ITERATIONS).fit(features[train], labels[train], weights[train])
                true = fit.predict_proba(features[held])[np.arange(len(held)), column[labels[held]]]
                losses[index] -= float((weights[held] * np.log(np.maximum(true, FLOOR))).sum())
    if not losses.any():
        text = f"too few images or groups to cross-validate the logistic regression; it uses C = {DEFAULT_C}"
        warn_once("no cross-validation", text)
        return DEFAULT_C
    return INVERSE_STRENGTHS[int(losses.argmin())]


def _splits(
    labels: Int[np.ndarray, " n"], groups: Int[np.ndarray, " n"] | None
) -> Iterator[tuple[Int[np.ndarray, " train"], Int[np.ndarray, " held"]]]:
    """Yield training and test indices of stratified folds that keep groups whole and train on at least two classes."""
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    largest = int(np.bincount(labels).max())
    units = largest if groups is None else len(np.unique(groups))
    folds = min(CV_FOLDS, largest, units)
    if folds < 2:
        return
    splitter = StratifiedKFold if groups is None else StratifiedGroupKFold
    for train, held in splitter(folds, shuffle=True, random_state=0).split(labels, labels, groups):
        if len(np.unique(labels[train])) > 1:
            yield train, held

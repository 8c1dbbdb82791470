"""All losses of a batch added up, with the reconstruction, and with what was mixed into the images."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsella.errors import ArgumentError, check_argument
from capsella.losses.classification import cross_entropy, margin_loss, multi_hot, sigmoid_cross_entropy, spread_loss
from capsella.losses.options import FOR_TWO_CLASSES, LossOptions, Reduction
from capsella.types import Output, at_least_float32


class Others(NamedTuple):
    """What was mixed into a batch of images (Zhang et al. 2018): the classes of other images, and their share."""

    labels: Int[Tensor, " b"]
    share: Float[Tensor, " b"]


class Losses(NamedTuple):
    """The parts of a loss, each a scalar; `reconstruction` is weighted, and zero for a model without decoder."""

    total: Tensor
    classification: Tensor
    reconstruction: Tensor


def reconstruction_loss(
    reconstruction: Float[Tensor, "b c h w"], images: Float[Tensor, "b c h w"], reduction: Reduction = "sum"
) -> Float[Tensor, ""]:
    """Squared differences of an image's pixels, summed (Sabour et al. 2017, §4.1) or averaged (Forslöv 2018).

    Unweighted.

    Raises:
        ValueError: shapes differ, or an unknown reduction.
    """
    if reconstruction.shape != images.shape:
        raise ValueError(
            f"reconstruction: must have the images' shape {tuple(images.shape)}, got {tuple(reconstruction.shape)}"
        )
    squared = (at_least_float32(reconstruction) - images).square().flatten(1)
    check_argument(reduction in ("sum", "mean"), "be 'sum' or 'mean'", reduction=reduction)
    return squared.sum(1).mean() if reduction == "sum" else squared.mean()


def total_loss(
    output: Output,
    images: Tensor,
    labels: Tensor,
    options: LossOptions,
    *,
    parts: Tensor | None = None,
    spread: float | None = None,
    class_weights: Float[Tensor, " classes"] | None = None,
    others: Others | None = None,
) -> Losses:
    """The classification loss, plus the weighted reconstruction loss where the model has a decoder.

    Args:
        output: of a model called with `labels`.
        images: [b c h w] in [0, 1], what a reconstruction is compared with.
        labels: class numbers [b], or [b 2] where each image overlays one of each class.
        options: the loss.
        parts: [b 2 c h w], the images that each of `images` overlays: each capsule is to draw its own ([S] §6).
        spread: the margin of the spread loss now, by `options.spread_at`; without it, the last one.
        class_weights: [classes], what an image's classification loss is multiplied by, by its class.
        others: what was mixed into the images. The classification loss is that of `labels` and that of the others,
            each by its share; the reconstruction is compared with the mixture.

    Raises:
        ValueError: two classes an image and a loss that is for one, class weights or others; parts of another shape
            than the reconstructions.
    """
    if others is None:
        classification = _classification(output, labels, options, spread, class_weights)
    else:
        own = _classification(output, labels, options, spread, class_weights, 1 - others.share)
        classification = own + _classification(output, others.labels, options, spread, class_weights, others.share)
    if output.reconstruction is None:
        return Losses(classification, classification, torch.zeros_like(classification))
    weight = options.reconstruction_weight
    reconstruction = weight * _reconstruction(output.reconstruction, images, parts, options.reconstruction)
    return Losses(classification + reconstruction, classification, reconstruction)


def _classification(
    output: Output,
    labels: Tensor,
    options: LossOptions,
    spread: float | None,
    class_weights: Tensor | None,
    shares: Tensor | None = None,
) -> Tensor:
    if labels.ndim == 2 and options.name not in FOR_TWO_CLASSES:
        raise ArgumentError("loss", f"be {' or '.join(FOR_TWO_CLASSES)} for images of two classes", options.name)
    if labels.ndim == 2 and class_weights is not None:
        raise ValueError("class_weights: must be None for images of two classes, got some")
    if labels.ndim == 2 and shares is not None:
        raise ValueError("others: must be None for images of two classes, got some")
    present = multi_hot(labels, output.activations.shape[1]) if labels.ndim == 2 else labels
    each = shares if class_weights is None else class_weights[labels.long()] * (1.0 if shares is None else shares)
    if options.name == "margin":
        constants = options.positive_margin, options.negative_margin, options.absent_weight
        return margin_loss(output.activations, present, *constants, image_weights=each)
    if options.name == "sigmoid_cross_entropy":
        return sigmoid_cross_entropy(output, present, each)
    if options.name == "spread":
        margin = options.spread_last if spread is None else spread
        return spread_loss(output.activations, labels, margin, each)
    return cross_entropy(output, labels, each)


def _reconstruction(drawn: Tensor, images: Tensor, parts: Tensor | None, reduction: Reduction) -> Tensor:
    if parts is None:
        return reconstruction_loss(drawn, images, reduction)
    if drawn.shape != parts.shape:
        raise ArgumentError("reconstruction", f"have the parts' shape {tuple(parts.shape)}", tuple(drawn.shape))
    losses = [
        reconstruction_loss(one, part, reduction) for one, part in zip(drawn.unbind(1), parts.unbind(1), strict=True)
    ]
    return torch.stack(losses).sum()

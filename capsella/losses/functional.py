"""Losses on class activations, logits and reconstructions, each a mean over the batch; and error counts."""

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from capsella.errors import ArgumentError, check_argument
from capsella.losses.options import FOR_TWO_CLASSES, LossOptions, Reduction
from capsella.types import Output, at_least_float32

# `ignore_index` of the cross-entropy: no label has this value. PyTorch would silently ignore labels of −100.
_NO_LABEL = -(2**31)


def margin_loss(
    activations: Float[Tensor, "b classes"],
    labels: Int[Tensor, " b"] | Shaped[Tensor, "b classes"],
    positive_margin: float = 0.9,
    negative_margin: float = 0.1,
    absent_weight: float = 0.5,
    image_weights: Float[Tensor, " b"] | None = None,
) -> Float[Tensor, ""]:
    """Return the margin loss, summed over classes (Sabour et al. 2017, Eq. 4).

    L_k = T_k max(0, m⁺ − ‖v_k‖)² + λ (1 − T_k) max(0, ‖v_k‖ − m⁻)².

    Args:
        activations: [b classes], in [0, 1].
        labels: class indices [b], or 0/1 for each class [b classes] if several may be present.
        positive_margin, negative_margin, absent_weight: m⁺, m⁻ and λ.
        image_weights: [b], by which the images' losses are multiplied before the mean.

    Raises:
        ValueError: labels of another batch size or number of classes, weights of another batch size.

    >>> margin_loss(torch.tensor([[0.9, 0.1, 0.3]]), torch.tensor([0]))  # 0.5 · 0.2²
    tensor(0.0200)
    """
    present = _present(activations, labels)
    missing = present * (positive_margin - activations).clamp(min=0).square()
    excess = (1 - present) * (activations - negative_margin).clamp(min=0).square()
    return _mean((missing + absent_weight * excess).sum(1), image_weights)


def spread_loss(
    activations: Float[Tensor, "b classes"],
    labels: Int[Tensor, " b"],
    margin: float = 0.9,
    image_weights: Float[Tensor, " b"] | None = None,
) -> Float[Tensor, ""]:
    """Return the spread loss Σ_{i≠t} max(0, m − (a_t − a_i))² over the classes i ≠ t (Hinton et al. 2018, Eq. 3).

    Args:
        activations: [b classes], in [0, 1].
        labels: class indices [b], one class per image.
        margin: m, which rises during training: see `LossOptions.spread_at`.
        image_weights: [b], by which the images' losses are multiplied before the mean.

    Raises:
        ValueError: labels that are not class indices [b], weights of another batch size.

    >>> spread_loss(torch.tensor([[0.9, 0.1, 0.5]]), torch.tensor([0]), margin=0.7)  # 0 + 0.3²
    tensor(0.0900)
    """
    if labels.shape != activations.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"labels: must be class indices [b] = ({len(activations)},) for the spread loss, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    true = _numbers(labels)[:, None]
    excess = (margin - (activations.gather(1, true) - activations)).clamp(min=0).square()
    return _mean(excess.scatter(1, true, 0.0).sum(1), image_weights)


def cross_entropy(
    output: Output, labels: Int[Tensor, " b"], image_weights: Float[Tensor, " b"] | None = None
) -> Float[Tensor, ""]:
    """Return the softmax cross-entropy of logits; without logits, of activations as if they were logits.

    The authors' code of [H] takes activations for its Table 1. As they lie in [0, 1], the loss is at least
    ln(1 + 4/e) = 0.905 for five classes.

    Raises:
        ValueError: weights of another batch size.
    """
    logits, labels = at_least_float32(output.activations if output.logits is None else output.logits), _numbers(labels)
    entropy = partial(torch.nn.functional.cross_entropy, logits, labels, ignore_index=_NO_LABEL)
    return entropy() if image_weights is None else _mean(entropy(reduction="none"), image_weights)


def sigmoid_cross_entropy(
    output: Output,
    labels: Int[Tensor, " b"] | Shaped[Tensor, "b classes"],
    image_weights: Float[Tensor, " b"] | None = None,
) -> Float[Tensor, ""]:
    """Return −Σ_k [T_k ln p_k + (1 − T_k) ln(1 − p_k)], p_k the logistic of the logit of class k ([S] §6).

    Args:
        output: the output of a model that has logits.
        labels: class indices [b], or 0/1 for each class [b classes] if several may be present.
        image_weights: [b], by which the images' losses are multiplied before the mean.

    Raises:
        ValueError: an output without logits, labels of another batch size or number of classes, weights of another
            batch size.
    """
    if output.logits is None:
        raise ValueError("output: must have logits for sigmoid_cross_entropy; capsules take the margin loss")
    logits = at_least_float32(output.logits)
    present, bce = _present(logits, labels), torch.nn.functional.binary_cross_entropy_with_logits
    if image_weights is None:
        return bce(logits, present, reduction="sum") / len(logits)
    return _mean(bce(logits, present, reduction="none").sum(1), image_weights)


def _mean(losses: Float[Tensor, " b"], weights: Float[Tensor, " b"] | None) -> Float[Tensor, ""]:
    if weights is None:
        return losses.mean()
    if weights.shape != losses.shape:
        raise ValueError(
            f"image_weights: must be one number per image [b] = ({len(losses)},), got shape {tuple(weights.shape)}"
        )
    return (weights * losses).mean()


def _numbers(labels: Tensor) -> Tensor:
    """Convert class indices of any integer dtype to int64."""
    if labels.dtype == torch.bool or labels.is_floating_point():
        raise ArgumentError("labels", "be class indices, of an integer dtype", labels.dtype)
    return labels.long()


def _present(activations: Tensor, labels: Tensor) -> Tensor:
    """Turn labels into T [b classes] of zeros and ones."""
    batch, classes = activations.shape
    if labels.ndim == 1 and len(labels) == batch and not labels.is_floating_point():
        return torch.nn.functional.one_hot(_numbers(labels), classes).to(activations)
    if labels.shape == activations.shape:
        return labels.to(activations)
    raise ValueError(
        f"labels: must be class indices [b] = ({batch},) or 0/1 [b classes] = ({batch}, {classes}), "
        f"got {labels.dtype} of shape {tuple(labels.shape)}"
    )


def predicted_classes(activations: Float[Tensor, "b classes"], labels: Int[Tensor, " b *k"]) -> Int[Tensor, " b *k"]:
    """Return the class of the largest activation; for labels of two classes, the classes of the two largest ([S] §6).

    Of two predicted classes, one that is a label stands at the position of that label.

    >>> predicted_classes(torch.tensor([[0.1, 0.8, 0.3, 0.9]]), torch.tensor([[1, 2]]))
    tensor([[1, 3]])
    """
    if labels.ndim == 1:
        return activations.argmax(1)
    first, second = top_classes(activations, 2).unbind(1)
    crossed = (first == labels[:, 1]) | (second == labels[:, 0])
    return torch.stack([torch.where(crossed, second, first), torch.where(crossed, first, second)], 1)


def top_classes(activations: Float[Tensor, "*b classes"], number: int) -> Int[Tensor, "*b number"]:
    """Return the classes of the `number` largest activations; of equal ones the first comes first, as for `argmax`.

    >>> top_classes(torch.ones(5), 2)
    tensor([0, 1])
    """
    return activations.argsort(dim=-1, descending=True, stable=True)[..., :number]


def count_errors(activations: Float[Tensor, "b classes"], labels: Int[Tensor, " b *k"]) -> int:
    """Count the images that are classified wrongly; if an image has two classes, both must be found ([S] §6)."""
    wrong = predicted_classes(activations, labels) != labels
    return int(wrong.flatten(1).any(1).sum() if wrong.ndim == 2 else wrong.sum())


class MixupTargets(NamedTuple):
    """For each image of a batch, the class of the image that mixup has mixed in (Zhang et al. 2018), and its share."""

    labels: Int[Tensor, " b"]
    share: Float[Tensor, " b"]


class Losses(NamedTuple):
    """A loss and its terms, each a scalar; `reconstruction` is weighted, and zero for a model without decoder."""

    total: Tensor
    classification: Tensor
    reconstruction: Tensor


def reconstruction_loss(
    reconstruction: Float[Tensor, "b c h w"], images: Float[Tensor, "b c h w"], reduction: Reduction = "sum"
) -> Float[Tensor, ""]:
    """Return the squared error, summed ([S] §4.1) or averaged (Forslöv 2018) over an image's pixels, without weight.

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
    mixup: MixupTargets | None = None,
) -> Losses:
    """Return the classification loss plus the weighted reconstruction loss of a model with a decoder.

    Args:
        output: the output of a model called with `labels`.
        images: [b c h w] in [0, 1], with which a reconstruction is compared.
        labels: class indices [b], or [b 2] for images that overlay two images of different classes.
        options: the losses to add up, and their constants.
        parts: [b 2 c h w], the two images that each of `images` overlays: each class capsule must reconstruct its own
            ([S] §6).
        spread: the current margin of the spread loss, by `options.spread_at`; None takes the last one.
        mixup: the targets of mixup. The classification loss is then that of both labels, each weighted by its share,
            and the reconstruction is compared with the mixed image.

    Raises:
        ValueError: two classes per image together with mixup or a loss for one class; parts of another shape than the
            reconstructions.
    """
    if mixup is None:
        classification = _classification(output, labels, options, spread)
    else:
        here = _classification(output, labels, options, spread, 1 - mixup.share)
        classification = here + _classification(output, mixup.labels, options, spread, mixup.share)
    if output.reconstruction is None:
        return Losses(classification, classification, torch.zeros_like(classification))
    weight, drawn = options.reconstruction_weight, output.reconstruction
    if parts is not None:  # the sum over both images
        weight, drawn, images = 2 * weight, drawn.flatten(0, 1), parts.flatten(0, 1)
    reconstruction = weight * reconstruction_loss(drawn, images, options.reconstruction)
    return Losses(classification + reconstruction, classification, reconstruction)


def _classification(
    output: Output,
    labels: Tensor,
    options: LossOptions,
    spread: float | None,
    shares: Tensor | None = None,
) -> Tensor:
    if labels.ndim == 2 and options.name not in FOR_TWO_CLASSES:
        raise ArgumentError("loss", f"be {' or '.join(FOR_TWO_CLASSES)} for images of two classes", options.name)
    if labels.ndim == 2 and shares is not None:
        raise ValueError("mixup: must be None for images of two classes, got targets")
    present = labels
    if labels.ndim == 2:  # 1 for each class that is present
        present = torch.nn.functional.one_hot(labels.long(), output.activations.shape[1]).amax(1)
    if options.name == "margin":
        constants = options.positive_margin, options.negative_margin, options.absent_weight
        return margin_loss(output.activations, present, *constants, image_weights=shares)
    if options.name == "sigmoid_cross_entropy":
        return sigmoid_cross_entropy(output, present, shares)
    if options.name == "spread":
        margin = options.spread_last if spread is None else spread
        return spread_loss(output.activations, labels, margin, shares)
    return cross_entropy(output, labels, shares)

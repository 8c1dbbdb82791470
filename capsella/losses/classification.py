"""The losses on class activations or logits, each the mean over the batch of one number an image."""

from functools import partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from capsella.errors import ArgumentError
from capsella.types import Output, at_least_float32

_NO_LABEL = -(2**31)
"""What PyTorch's cross-entropy is told to pass over: no label, for −100, its own, would be passed over in silence."""


def margin_loss(
    activations: Float[Tensor, "b classes"],
    labels: Int[Tensor, " b"] | Shaped[Tensor, "b classes"],
    positive_margin: float = 0.9,
    negative_margin: float = 0.1,
    absent_weight: float = 0.5,
    image_weights: Float[Tensor, " b"] | None = None,
) -> Float[Tensor, ""]:
    """L_k = T_k max(0, m⁺ − ‖v_k‖)² + λ (1 − T_k) max(0, ‖v_k‖ − m⁻)², summed over classes (Sabour et al. 2017, Eq. 4).

    Args:
        activations: [b classes], in [0, 1].
        labels: class numbers [b], or 0/1 for each class [b classes] where several may be present.
        positive_margin, negative_margin, absent_weight: m⁺, m⁻ and λ.
        image_weights: [b], what each image's loss is multiplied by before the mean.

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
    """Σ_{i≠t} max(0, m − (a_t − a_i))² over the classes i other than the true t (Hinton et al. 2018, Eq. 3).

    Args:
        activations: [b classes], in [0, 1].
        labels: class numbers [b]; the loss is for one class an image.
        margin: m, which rises during training: see `LossOptions.spread_at`.
        image_weights: [b], what each image's loss is multiplied by before the mean.

    Raises:
        ValueError: labels that are not class numbers [b], weights of another batch size.

    >>> spread_loss(torch.tensor([[0.9, 0.1, 0.5]]), torch.tensor([0]), margin=0.7)  # 0 + 0.3²
    tensor(0.0900)
    """
    if labels.shape != activations.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"labels: must be class numbers [b] = ({len(activations)},) for the spread loss, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    true = _numbers(labels)[:, None]
    excess = (margin - (activations.gather(1, true) - activations)).clamp(min=0).square()
    return _mean(excess.scatter(1, true, 0.0).sum(1), image_weights)


def cross_entropy(
    output: Output, labels: Int[Tensor, " b"], image_weights: Float[Tensor, " b"] | None = None
) -> Float[Tensor, ""]:
    """Softmax cross-entropy of a CNN's logits, or of capsule activations taken as logits ([H], Table 1, its code).

    Activations lie in [0, 1], so that of five classes this is at least ln(1 + 4/e) = 0.905.

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
    """−Σ_k [T_k ln p_k + (1 − T_k) ln(1 − p_k)], p_k the logistic of a CNN's logit of class k ([S] §6).

    Args:
        output: of a model that has logits.
        labels: class numbers [b], or 0/1 for each class [b classes] where several may be present.
        image_weights: [b], what each image's loss is multiplied by before the mean.

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


def multi_hot(labels: Int[Tensor, "b k"], classes: int) -> Int[Tensor, "b classes"]:
    """Class numbers as 1 for each class that is present, 0 for the others.

    >>> multi_hot(torch.tensor([[2, 0]]), 4)
    tensor([[1, 0, 1, 0]])
    """
    return torch.nn.functional.one_hot(labels.long(), classes).amax(1)


def _mean(losses: Float[Tensor, " b"], weights: Float[Tensor, " b"] | None) -> Float[Tensor, ""]:
    if weights is None:
        return losses.mean()
    if weights.shape != losses.shape:
        raise ValueError(
            f"image_weights: must be one number an image [b] = ({len(losses)},), got shape {tuple(weights.shape)}"
        )
    return (weights * losses).mean()


def _numbers(labels: Tensor) -> Tensor:
    """Class numbers of any integer type as PyTorch's functions take them."""
    if labels.dtype == torch.bool or labels.is_floating_point():
        raise ArgumentError("labels", "be class numbers, of an integer type", labels.dtype)
    return labels.long()


def _present(activations: Tensor, labels: Tensor) -> Tensor:
    """Labels as T [b classes] of zeros and ones."""
    batch, classes = activations.shape
    if labels.ndim == 1 and len(labels) == batch and not labels.is_floating_point():
        return torch.nn.functional.one_hot(_numbers(labels), classes).to(activations)
    if labels.shape == activations.shape:
        return labels.to(activations)
    raise ValueError(
        f"labels: must be class numbers [b] = ({batch},) or 0/1 [b classes] = ({batch}, {classes}), "
        f"got {labels.dtype} of shape {tuple(labels.shape)}"
    )

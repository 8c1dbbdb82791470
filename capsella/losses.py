"""Losses, each the mean over the batch of one number an image; and what counts as an error."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from capsella.errors import require, unknown_name
from capsella.types import Output

Classification = Literal["margin", "spread", "cross_entropy", "sigmoid_cross_entropy"]
FOR_TWO_CLASSES: tuple[Classification, ...] = ("margin", "sigmoid_cross_entropy")
"""The losses for images that show two classes."""
Reduction = Literal["sum", "mean"]


@dataclass(frozen=True)
class LossOptions:
    """Which losses are added up, and their constants. Defaults: Sabour et al. 2017, section 3 and 4.1."""

    name: Classification = "margin"
    """The loss on the class activations (or the logits of a CNN, for both cross-entropies). Images of two classes need
    margin or sigmoid_cross_entropy."""
    positive_margin: float = 0.9
    """m⁺: no loss for a present class that is longer."""
    negative_margin: float = 0.1
    """m⁻: no loss for an absent class that is shorter."""
    absent_weight: float = 0.5
    """λ: weight of the classes that are absent."""
    spread_schedule: Literal["linear", "stairs"] = "linear"
    """How the margin of the spread loss rises: evenly (Hinton et al. 2018), or by 0.1 at a time (Forslöv's thesis)."""
    spread_first: float = 0.2
    """The spread loss's margin at the first step."""
    spread_last: float = 0.9
    """The margin that it reaches and keeps; validation always uses it, so that epochs compare."""
    spread_steps: int | None = None
    """Steps until the last margin (linear; None: the whole training), or of one stair (None: 3,000, the thesis's)."""
    reconstruction: Reduction = "sum"
    """Add up squared differences over an image's pixels (Sabour et al. 2017), or average them (Forslöv's thesis)."""
    reconstruction_weight: float = 0.0005
    """Weight of the reconstruction: 0.0005 with sum, as published; 0.392 with mean is the same for 784 pixels."""

    def __post_init__(self) -> None:
        for field, allowed in (("name", get_args(Classification)), ("reconstruction", get_args(Reduction))):
            if getattr(self, field) not in allowed:
                raise unknown_name(f"loss {field}", getattr(self, field), allowed)
        first, last, steps = self.spread_first, self.spread_last, self.spread_steps
        require(0 < first <= last <= 1, "rise within (0, 1]", spread_first=first, spread_last=last)
        require(steps is None or steps >= 1, "be at least 1 or None", spread_steps=steps)

    def spread_at(self, step: int, total_steps: int) -> float:
        """The spread loss's margin at a step, counted from 0, of a training of `total_steps`.

        >>> options = LossOptions(spread_schedule="stairs")
        >>> [round(options.spread_at(step, 100_000), 1) for step in (0, 2_999, 3_000, 21_000, 99_999)]
        [0.2, 0.2, 0.3, 0.9, 0.9]
        """
        if self.spread_schedule == "stairs":
            risen = 0.1 * (step // (self.spread_steps or 3000))
        else:
            last_step = (self.spread_steps or total_steps) - 1
            risen = (self.spread_last - self.spread_first) * (step / last_step if last_step else 1.0)
        return min(self.spread_first + risen, self.spread_last)


class Losses(NamedTuple):
    """The parts of a loss, each a scalar; `reconstruction` is weighted, and zero for a model without decoder."""

    total: Tensor
    classification: Tensor
    reconstruction: Tensor


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
        ValueError: labels of another batch size or number of classes.

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
        ValueError: labels that are not class numbers [b].

    >>> spread_loss(torch.tensor([[0.9, 0.1, 0.5]]), torch.tensor([0]), margin=0.7)  # 0 + 0.3²
    tensor(0.0900)
    """
    if labels.shape != activations.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"labels: must be class numbers [b] = ({len(activations)},) for the spread loss, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    a_t = activations.gather(1, labels[:, None].long())
    excess = (margin - (a_t - activations)).clamp(min=0).square()
    return _mean(excess.scatter(1, labels[:, None].long(), 0.0).sum(1), image_weights)


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
    squared = (reconstruction.float() - images).square().flatten(1)
    require(reduction in ("sum", "mean"), "be 'sum' or 'mean'", reduction=reduction)
    return squared.sum(1).mean() if reduction == "sum" else squared.mean()


def cross_entropy(
    output: Output, labels: Int[Tensor, " b"], image_weights: Float[Tensor, " b"] | None = None
) -> Float[Tensor, ""]:
    """Softmax cross-entropy of a CNN's logits, or of capsule activations taken as logits ([H], Table 1)."""
    logits = (output.activations if output.logits is None else output.logits).float()
    if image_weights is None:
        return torch.nn.functional.cross_entropy(logits, labels)
    return _mean(torch.nn.functional.cross_entropy(logits, labels, reduction="none"), image_weights)


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
        ValueError: an output without logits, labels of another batch size or number of classes.
    """
    if output.logits is None:
        raise ValueError("output: must have logits for sigmoid_cross_entropy; capsules take the margin loss")
    logits = output.logits.float()
    present, bce = _present(logits, labels), torch.nn.functional.binary_cross_entropy_with_logits
    if image_weights is None:
        return bce(logits, present, reduction="sum") / len(logits)
    return _mean(bce(logits, present, reduction="none").sum(1), image_weights)


def total_loss(
    output: Output,
    images: Tensor,
    labels: Tensor,
    options: LossOptions,
    *,
    parts: Tensor | None = None,
    spread: float | None = None,
    class_weights: Float[Tensor, " classes"] | None = None,
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

    Raises:
        ValueError: two classes an image and a loss that is for one, or class weights; parts of another shape than the
            reconstructions.
    """
    classification = _classification(output, labels, options, spread, class_weights)
    if output.reconstruction is None:
        return Losses(classification, classification, torch.zeros_like(classification))
    weight = options.reconstruction_weight
    reconstruction = weight * _reconstruction(output.reconstruction, images, parts, options.reconstruction)
    return Losses(classification + reconstruction, classification, reconstruction)


def multi_hot(labels: Int[Tensor, "b k"], classes: int) -> Int[Tensor, "b classes"]:
    """Class numbers as 1 for each class that is present, 0 for the others.

    >>> multi_hot(torch.tensor([[2, 0]]), 4)
    tensor([[1, 0, 1, 0]])
    """
    return torch.nn.functional.one_hot(labels, classes).amax(1)


def strongest(activations: Float[Tensor, "b classes"], labels: Int[Tensor, "b *k"]) -> Int[Tensor, "b *k"]:
    """What a model says an image shows: the class of the largest activation, or those of the two largest for `labels`
    of two classes an image ([S] §6), the one that is a label in the place of that label.

    >>> strongest(torch.tensor([[0.1, 0.8, 0.3, 0.9]]), torch.tensor([[1, 2]]))
    tensor([[1, 3]])
    """
    if labels.ndim == 1:
        return activations.argmax(1)
    first, second = activations.topk(2, 1).indices.unbind(1)
    crossed = (first == labels[:, 1]) | (second == labels[:, 0])
    return torch.stack([torch.where(crossed, second, first), torch.where(crossed, first, second)], 1)


def count_errors(activations: Float[Tensor, "b classes"], labels: Int[Tensor, "b *k"]) -> int:
    """Images classified wrong; of two classes an image, both must be found ([S] §6)."""
    wrong = strongest(activations, labels) != labels
    return int(wrong.flatten(1).any(1).sum() if wrong.ndim == 2 else wrong.sum())


def _classification(
    output: Output, labels: Tensor, options: LossOptions, spread: float | None, class_weights: Tensor | None
) -> Tensor:
    if labels.ndim == 2 and options.name not in FOR_TWO_CLASSES:
        raise ValueError(f"loss: must be {' or '.join(FOR_TWO_CLASSES)} for images of two classes, got {options.name}")
    if labels.ndim == 2 and class_weights is not None:
        raise ValueError("class_weights: must be None for images of two classes, got some")
    present = multi_hot(labels, output.activations.shape[1]) if labels.ndim == 2 else labels
    each = None if class_weights is None else class_weights[labels]
    if options.name == "margin":
        constants = options.positive_margin, options.negative_margin, options.absent_weight
        return margin_loss(output.activations, present, *constants, image_weights=each)
    if options.name == "sigmoid_cross_entropy":
        return sigmoid_cross_entropy(output, present, each)
    if options.name == "spread":
        margin = options.spread_last if spread is None else spread
        return spread_loss(output.activations, labels, margin, each)
    return cross_entropy(output, labels, each)


def _mean(losses: Float[Tensor, " b"], weights: Float[Tensor, " b"] | None) -> Float[Tensor, ""]:
    return losses.mean() if weights is None else (weights * losses).mean()


def _reconstruction(drawn: Tensor, images: Tensor, parts: Tensor | None, reduction: Reduction) -> Tensor:
    if parts is None:
        return reconstruction_loss(drawn, images, reduction)
    if drawn.shape != parts.shape:
        raise ValueError(f"reconstruction: must have the parts' shape {tuple(parts.shape)}, got {tuple(drawn.shape)}")
    losses = [
        reconstruction_loss(one, part, reduction) for one, part in zip(drawn.unbind(1), parts.unbind(1), strict=True)
    ]
    return torch.stack(losses).sum()


def _present(activations: Tensor, labels: Tensor) -> Tensor:
    """Labels as T [b classes] of zeros and ones."""
    batch, classes = activations.shape
    if labels.ndim == 1 and len(labels) == batch and not labels.is_floating_point():
        return torch.nn.functional.one_hot(labels, classes).to(activations)
    if labels.shape == activations.shape:
        return labels.to(activations)
    raise ValueError(
        f"labels: must be class numbers [b] = ({batch},) or 0/1 [b classes] = ({batch}, {classes}), "
        f"got {labels.dtype} of shape {tuple(labels.shape)}"
    )

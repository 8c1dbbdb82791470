"""Does the routing route? How spread the couplings are, and how many capsules never wake.

In deep capsule stacks routing can turn static and capsules starve (Mitterreiter et al. 2023): these two numbers
show it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.evaluation.inference import inference
from capsella.models import ImageClassifier
from capsella.routing import RoutingTrace, length, record

# The margin loss presses absent classes below m⁻ = 0.1 (Sabour et al. 2017, Eq. 4): shorter means "not there".
DEAD_BELOW = 0.1


@dataclass(frozen=True)
class LayerDiagnostics:
    """One routed layer, over a set of images.

    name: its place in the network and its routing method. parents: parent capsule types that compete.
    entropy: per iteration, mean normalised coupling entropy in [0, 1].
    dead_share: share of parent types that stay shorter than `DEAD_BELOW` on every image and at every position.
    """

    name: str
    parents: int
    entropy: tuple[float, ...]
    dead_share: float


def coupling_entropy(couplings: Float[Tensor, "b i j"]) -> Float[Tensor, "b i"]:
    """Entropy of each child's couplings over its j parents, divided by ln j.

    1 means spread evenly (nothing routed), 0 that all goes to one parent. Couplings that sum to less than one
    (leaky routing) are first divided by their sum; a child that gives nothing to any parent counts as 0.

    Raises:
        ValueError: not three axes, fewer than two parents, a negative coupling.
    """
    if couplings.ndim != 3 or couplings.shape[2] < 2:
        raise ValueError(f"couplings: must be [b i j] with at least 2 parents j, got shape {tuple(couplings.shape)}")
    if (couplings < 0).any():
        raise ValueError(f"couplings: must not be negative, got {couplings.min().item():.3g}")
    given = couplings.sum(2, keepdim=True)
    shares = torch.where(given > 0, couplings / given, 0)
    return torch.special.entr(shares).sum(2) / math.log(couplings.shape[2])


def dead_share(activations: Float[Tensor, "n c"], threshold: float = DEAD_BELOW) -> float:
    """Share of the c capsule types whose activation stays below `threshold` in all n rows (images, or their positions).

    Raises:
        ValueError: not two axes, or no rows or types.
    """
    if activations.ndim != 2 or 0 in activations.shape:
        raise ValueError(f"activations: must be [n c], at least one of each, got shape {tuple(activations.shape)}")
    return (activations.amax(0) < threshold).double().mean().item()


def routing_diagnostics(
    model: ImageClassifier, images: Float[Tensor, "n c h w"], batch_size: int = 16
) -> list[LayerDiagnostics]:
    """Coupling entropy and dead capsules of every routed layer with at least two parents, over `images`.

    A parent's activation is taken to be the length of its pose after the last iteration, as in dynamic routing.

    Returns:
        One entry a routed layer, in the order of the forward pass; none for a model without routing.

    Raises:
        ValueError: no images, or images of another shape than the model's.
    """
    model.check_images(images)
    if len(images) == 0:
        raise ValueError("images: must hold at least one image, got none")
    recorded: list[list[_Summary]] = []
    with inference(model) as device:
        for batch in images.split(batch_size):
            with record() as traces:
                model(batch.to(device))
            recorded.append(
                [_summary(index, trace) for index, trace in enumerate(traces, 1) if trace.couplings[-1].shape[2] > 1]
            )
    return [_merge(parts) for parts in zip(*recorded, strict=True)]


@dataclass(frozen=True)
class _Summary:
    """What one batch leaves behind, so that no couplings need to be kept."""

    name: str
    rows: int  # images · positions, the weight of this batch in the mean
    entropy: list[float]  # per iteration
    longest: Tensor  # [j], over the batch


def _summary(index: int, trace: RoutingTrace) -> _Summary:
    entropy = [coupling_entropy(couplings.float()).mean().item() for couplings in trace.couplings]
    longest = length(trace.poses[-1].float()).amax(0).cpu()
    return _Summary(f"routing layer {index} ({trace.name})", len(trace.couplings[-1]), entropy, longest)


def _merge(parts: Sequence[_Summary]) -> LayerDiagnostics:
    total = sum(part.rows for part in parts)
    iterations = zip(*(part.entropy for part in parts), strict=True)
    longest = torch.stack([part.longest for part in parts])
    return LayerDiagnostics(
        name=parts[0].name,
        parents=longest.shape[1],
        entropy=tuple(sum(e * p.rows for e, p in zip(row, parts, strict=True)) / total for row in iterations),
        dead_share=dead_share(longest),
    )

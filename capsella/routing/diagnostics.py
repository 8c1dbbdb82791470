"""Coupling entropy and dead capsules, which show whether children choose between parents and all parents are used.

In deep capsule stacks routing can turn static and capsules starve (Mitterreiter et al. 2023).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import ArgumentError, check_argument
from capsella.routing.base import ROUTINGS
from capsella.routing.recording import RoutingTrace

# The margin loss pushes absent classes below m⁻ = 0.1 (Sabour et al. 2017, Eq. 4): lower means "not there".
DEAD_BELOW = 0.1


@dataclass(frozen=True)
class LayerDiagnostics:
    """Diagnostics of one routed layer over a set of images.

    Attributes:
        name: the layer's place in the network and its routing method.
        parents: number of parent capsule types that compete.
        entropy: per iteration, mean normalised coupling entropy in [0, 1].
        dead_share: share of parent types whose activation stays below `DEAD_BELOW` on every image and at every
            position; for self-routing, whose activations sum to 1 over the types, below a tenth of a uniform share.
    """

    name: str
    parents: int
    entropy: tuple[float, ...]
    dead_share: float


def coupling_entropy(couplings: Float[Tensor, "b i j"]) -> Float[Tensor, "b i"]:
    """Return the entropy of each child's couplings over its j parents, divided by ln j.

    1 means uniform couplings (nothing routed), 0 that the child goes to one parent alone. Couplings that sum to less
    than one (leaky routing, or a child for which other positions compete too) are first divided by their sum; a child
    that goes to no parent has an entropy of 0. Couplings of NaN have an entropy of NaN.

    Raises:
        ArgumentError: not three axes, fewer than two parents, or a negative coupling.
    """
    shape = tuple(couplings.shape)
    check_argument(len(shape) == 3 and shape[2] > 1, "be [b i j] with at least 2 parents j", couplings=shape)
    if (couplings < 0).any():
        least = couplings.min().item()
        raise ArgumentError("couplings", "not be negative", least, shown=f"{least:.3g}")
    total = couplings.sum(2, keepdim=True)
    shares = torch.where(total == 0, 0, couplings / total)
    return torch.special.entr(shares).sum(2) / math.log(shape[2])


def dead_share(activations: Float[Tensor, "n c"], threshold: float = DEAD_BELOW) -> float:
    """Return the share of the c capsule types whose activation stays below `threshold` in all n rows.

    Rows are images, or their positions. The share is NaN where an activation is.

    Raises:
        ArgumentError: not two axes, or no rows or types.
    """
    shape = tuple(activations.shape)
    check_argument(len(shape) == 2 and 0 not in shape, "be [n c], at least one of each", activations=shape)
    largest = activations.amax(0)
    return float("nan") if largest.isnan().any() else (largest < threshold).double().mean().item()


def diagnose(recorded: Iterable[Sequence[RoutingTrace]]) -> list[LayerDiagnostics]:
    """Return coupling entropy and dead capsules of every routed layer with at least two parents.

    Args:
        recorded: for each batch of images, the traces that `record()` collected. Batches are read one at a time, so a
            generator needs memory for the couplings of one batch only.

    Returns:
        One entry per routed layer, in the order of the forward pass; none for a model without routing.
    """
    batches = [
        [_summary(index, trace) for index, trace in enumerate(traces, 1) if trace.couplings[-1].shape[2] > 1]
        for traces in recorded
    ]
    return [_merge(summaries) for summaries in zip(*batches, strict=True)]


@dataclass(frozen=True)
class _Summary:
    """One layer and batch without its couplings."""

    name: str
    routing: str
    rows: int  # images · positions, the weight of this batch in the mean
    entropy: list[float]  # per iteration
    highest: Tensor  # [j], the highest activation in the batch


def _summary(index: int, trace: RoutingTrace) -> _Summary:
    entropy = [coupling_entropy(couplings.float()).mean().item() for couplings in trace.couplings]
    highest = trace.activations[-1].float().amax(0).cpu()
    return _Summary(f"routing layer {index} ({trace.name})", trace.name, len(trace.couplings[-1]), entropy, highest)


def _merge(batches: Sequence[_Summary]) -> LayerDiagnostics:
    rows = sum(batch.rows for batch in batches)
    iterations = zip(*(batch.entropy for batch in batches), strict=True)
    highest = torch.stack([batch.highest for batch in batches])
    parents, kind = highest.shape[1], ROUTINGS.get(batches[0].routing)
    sums_to_one = kind is not None and kind.activation_kind == "shares"
    return LayerDiagnostics(
        name=batches[0].name,
        parents=parents,
        entropy=tuple(sum(e * b.rows for e, b in zip(row, batches, strict=True)) / rows for row in iterations),
        dead_share=dead_share(highest, DEAD_BELOW / parents if sums_to_one else DEAD_BELOW),
    )

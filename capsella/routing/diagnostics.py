"""Does the routing route? How spread the couplings are, and how many capsules never wake.

In deep capsule stacks routing can turn static and capsules starve (Mitterreiter et al. 2023): these two numbers
show it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import ArgumentError
from capsella.routing.base import ROUTINGS
from capsella.routing.recording import RoutingTrace

# The margin loss presses absent classes below m⁻ = 0.1 (Sabour et al. 2017, Eq. 4): lower means "not there".
DEAD_BELOW = 0.1


@dataclass(frozen=True)
class LayerDiagnostics:
    """One routed layer, over a set of images.

    name: its place in the network and its routing method. parents: parent capsule types that compete.
    entropy: per iteration, mean normalised coupling entropy in [0, 1].
    dead_share: share of parent types that stay less active than `DEAD_BELOW` on every image and at every position; of
        self-routing, whose activations sum to 1 over the types, than a tenth of an even share.
    """

    name: str
    parents: int
    entropy: tuple[float, ...]
    dead_share: float


def coupling_entropy(couplings: Float[Tensor, "b i j"]) -> Float[Tensor, "b i"]:
    """Entropy of each child's couplings over its j parents, divided by ln j.

    1 means spread evenly (nothing routed), 0 that all goes to one parent. Couplings that sum to less than one (leaky
    routing, or a child for which other positions compete too) are first divided by their sum; a child that gives
    nothing to any parent counts as 0. Couplings that are not numbers have an entropy that is none.

    Raises:
        ValueError: not three axes, fewer than two parents, a negative coupling.
    """
    if couplings.ndim != 3 or couplings.shape[2] < 2:
        raise ValueError(f"couplings: must be [b i j] with at least 2 parents j, got shape {tuple(couplings.shape)}")
    if (couplings < 0).any():
        raise ArgumentError(
            "couplings", "not be negative", couplings.min().item(), shown=f"{couplings.min().item():.3g}"
        )
    given = couplings.sum(2, keepdim=True)
    shares = torch.where(given == 0, 0, couplings / given)
    return torch.special.entr(shares).sum(2) / math.log(couplings.shape[2])


def dead_share(activations: Float[Tensor, "n c"], threshold: float = DEAD_BELOW) -> float:
    """Share of the c capsule types whose activation stays below `threshold` in all n rows (images, or their positions).

    Not-a-number where an activation is.

    Raises:
        ValueError: not two axes, or no rows or types.
    """
    if activations.ndim != 2 or 0 in activations.shape:
        raise ValueError(f"activations: must be [n c], at least one of each, got shape {tuple(activations.shape)}")
    largest = activations.amax(0)
    return float("nan") if largest.isnan().any() else (largest < threshold).double().mean().item()


def diagnose(recorded: Iterable[Sequence[RoutingTrace]]) -> list[LayerDiagnostics]:
    """Coupling entropy and dead capsules of every routed layer with at least two parents.

    `recorded`: what `record()` collected for each batch of images, taken one at a time, so that a generator need not
    hold the couplings of more than one.

    Returns:
        One entry a routed layer, in the order of the forward pass; none for a model without routing.
    """
    batches = [
        [_summary(index, trace) for index, trace in enumerate(traces, 1) if trace.couplings[-1].shape[2] > 1]
        for traces in recorded
    ]
    return [_merge(parts) for parts in zip(*batches, strict=True)]


@dataclass(frozen=True)
class _Summary:
    """What one batch leaves behind, so that no couplings need to be kept."""

    name: str
    routing: str
    rows: int  # images · positions, the weight of this batch in the mean
    entropy: list[float]  # per iteration
    highest: Tensor  # [j], the highest activation in the batch


def _summary(index: int, trace: RoutingTrace) -> _Summary:
    entropy = [coupling_entropy(couplings.float()).mean().item() for couplings in trace.couplings]
    highest = trace.activations[-1].float().amax(0).cpu()
    return _Summary(f"routing layer {index} ({trace.name})", trace.name, len(trace.couplings[-1]), entropy, highest)


def _merge(parts: Sequence[_Summary]) -> LayerDiagnostics:
    total = sum(part.rows for part in parts)
    iterations = zip(*(part.entropy for part in parts), strict=True)
    highest = torch.stack([part.highest for part in parts])
    return LayerDiagnostics(
        name=parts[0].name,
        parents=highest.shape[1],
        entropy=tuple(sum(e * p.rows for e, p in zip(row, parts, strict=True)) / total for row in iterations),
        dead_share=dead_share(highest, _dead_below(parts[0].routing, highest.shape[1])),
    )


def _dead_below(routing: str, parents: int) -> float:
    """`DEAD_BELOW`; where activations are shares, which sum to 1 over the parents, a tenth of an even one."""
    kind = ROUTINGS[routing].activation_kind if routing in ROUTINGS else None
    return DEAD_BELOW / parents if kind == "shares" else DEAD_BELOW

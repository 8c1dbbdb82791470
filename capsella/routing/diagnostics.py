"""Coupling entropy and dead capsules, which show whether children choose between parents and all parents are used.

In deep capsule stacks routing can turn static and capsules starve (Mitterreiter et al. 2023).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import check_argument
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
        ArgumentError: not three axes, or fewer than two parents.
    """
    shape = tuple(couplings.shape)
    check_argument(len(shape) == 3 and shape[2] > 1, "be [b i j] with at least 2 parents j", couplings=shape)
    total = couplings.sum(2, keepdim=True)
    shares = torch.where(total == 0, 0, couplings / total)
    return torch.special.entr(shares).sum(2) / math.log(shape[2])


def dead_share(activations: Float[Tensor, "n c"], threshold: float = DEAD_BELOW) -> float:
    """Return the share of the c capsule types whose activation stays below `threshold` in all n rows.

    Rows are images, or their positions. The share is NaN where an activation is.
    """
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
        [_summary(number, trace) for number, trace in enumerate(traces, 1) if trace.couplings[-1].shape[2] > 1]
        for traces in recorded
    ]
    return [_merge(*zip(*summaries, strict=True)) for summaries in zip(*batches, strict=True)]


def _summary(number: int, trace: RoutingTrace) -> tuple[int, str, int, Tensor, Tensor]:
    """Return number and routing of a layer, its images · positions, entropies by iteration, highest activations [j]."""
    entropy = torch.stack([coupling_entropy(couplings.float()).mean().cpu() for couplings in trace.couplings])
    return number, trace.name, len(trace.couplings[-1]), entropy, trace.activations[-1].float().amax(0).cpu()


def _merge(
    numbers: Sequence[int],
    names: Sequence[str],
    rows: Sequence[int],
    entropies: Sequence[Tensor],
    highest: Sequence[Tensor],
) -> LayerDiagnostics:
    mean = torch.tensor(rows, dtype=torch.float64) @ torch.stack(list(entropies)).double() / sum(rows)
    parents, kind = len(highest[0]), ROUTINGS.get(names[0])
    sums_to_one = kind is not None and kind.activation_kind == "shares"
    return LayerDiagnostics(
        name=f"routing layer {numbers[0]} ({names[0]})",
        parents=parents,
        entropy=tuple(mean.tolist()),
        dead_share=dead_share(torch.stack(list(highest)), DEAD_BELOW / parents if sums_to_one else DEAD_BELOW),
    )

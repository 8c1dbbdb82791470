"""Uniform couplings: the ablation that asks whether routing iterations earn their keep (Paik et al. 2019)."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from capsella.routing.base import Routed, Routing, register_routing
from capsella.routing.checks import check_names, check_votes
from capsella.routing.recording import new_trace
from capsella.routing.squash import length, squash


@check_names("argument of uniform_routing")
def uniform_routing(votes: Float[Tensor, "b i j d"]) -> Routed:
    """Every child gives each of the j parents 1/j of itself: v_j = squash(Σ_i V_ij / j).

    The same as one iteration of dynamic routing, written without the iteration.

    Returns:
        poses [b j d], activations ‖v‖ [b j], couplings [b i j], all 1/j.
    """
    check_votes(votes)
    parents = votes.shape[2]
    v = squash(votes.sum(1) / parents)
    couplings = votes.new_full(votes.shape[:3], 1 / parents)
    activations = length(v)
    new_trace("uniform").add(couplings, v, activations)
    return Routed(v, activations, couplings)


@register_routing
@dataclass(frozen=True)
class UniformRouting(Routing):
    """`uniform_routing` for a capsule layer; it has no options."""

    name: ClassVar[str] = "uniform"

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """`uniform_routing` of the votes."""
        return uniform_routing(votes)

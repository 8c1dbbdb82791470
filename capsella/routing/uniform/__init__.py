"""Uniform couplings: the ablation that asks whether routing iterations earn their keep (Paik et al. 2019)."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from capsella.routing.base import Routed, Routing, register_routing
from capsella.routing.checks import check_votes
from capsella.routing.convolution import CapsuleConv
from capsella.routing.fixed import fixed_capsule_conv, squashed_sums
from capsella.types import Capsules


def uniform_routing(votes: Float[Tensor, "b i j d"]) -> Routed:
    """Every child gives each of the j parents 1/j of itself: v_j = squash(Σ_i V_ij / j).

    The same as one iteration of dynamic routing, written without the iteration.

    Returns:
        poses [b j d], activations ‖v‖ [b j], couplings [b i j], all 1/j.
    """
    check_votes(votes)
    parents = votes.shape[2]
    return squashed_sums("uniform", votes.sum(1) / parents, votes.new_full(votes.shape[:3], 1 / parents))


@register_routing
@dataclass(frozen=True)
class UniformRouting(Routing):
    """`uniform_routing` for a capsule layer; it has no options."""

    name: ClassVar[str] = "uniform"

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """`uniform_routing` of the votes."""
        return uniform_routing(votes)

    def capsule_conv(self, conv: CapsuleConv, **parameters: Tensor) -> Capsules:
        """Every window, with no vote made."""
        sizes = conv.sizes
        return fixed_capsule_conv(self.name, conv, conv.poses.new_full((sizes.i, sizes.c_out), 1 / sizes.c_out))

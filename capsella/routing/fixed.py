"""Couplings that are the same for all images and sites: ablations that test whether routing contributes anything.

Paik et al. 2019 and Gu and Tresp 2020 make such comparisons. As Σ_i c (u·W) = Σ_i u·(c W), a layer multiplies couplings
into its weights and makes no votes.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.routing.base import Routed, Routing, register_routing
from capsella.routing.convolution import RoutingInputs, gather_windows
from capsella.routing.functional import check_votes, length, squash
from capsella.routing.recording import new_trace
from capsella.types import Capsules


def uniform_routing(votes: Float[Tensor, "b i j d"]) -> Routed:
    """Give each of the j parents 1/j of every child: v_j = squash(Σ_i V_ij / j).

    This is one iteration of dynamic routing, written without the iteration.

    Returns:
        Poses [b j d], activations ‖v‖ [b j], couplings [b i j], all 1/j.
    """
    check_votes(votes)
    parents = votes.shape[2]
    return _squash_sums("uniform", votes.sum(1) / parents, votes.new_full(votes.shape[:3], 1 / parents))


def random_routing(votes: Float[Tensor, "b i j d"], seed: int = 0) -> Routed:
    """Route by couplings c_i = softmax over the parents of standard normal logits, drawn once from `seed`.

    The same i × j couplings serve every image and every position of a convolution.

    Returns:
        Poses [b j d], activations ‖v‖ [b j], couplings [b i j].
    """
    check_votes(votes)
    batch, children, parents, _ = votes.shape
    couplings = random_couplings(children, parents, seed).to(votes)
    return _squash_sums("random", torch.einsum("ij,bijd->bjd", couplings, votes), couplings.expand(batch, -1, -1))


# An operator, because torch.compile cannot trace a generator.
@torch.library.custom_op("capsella::random_couplings", mutates_args=())
def random_couplings(children: int, parents: int, seed: int) -> Tensor:
    """Return a softmax over the parents of standard normal logits [i j], in float64 on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(children, parents, generator=generator, dtype=torch.float32, device="cpu")
    return logits.double().softmax(1)


@random_couplings.register_fake
def _(children, parents, seed):  # type: ignore[no-untyped-def]
    return torch.empty(children, parents, dtype=torch.float64)


def _squash_sums(name: str, s: Float[Tensor, "b j d"], couplings: Float[Tensor, "b i j"]) -> Routed:
    """Squash the sums s = Σ_i c V, and record the result under the routing's name."""
    v = squash(s)
    activations = length(v)
    new_trace(name).add(couplings, v, activations)
    return Routed(v, activations, couplings)


def _route_windows(name: str, inputs: RoutingInputs, couplings: Float[Tensor, "i j"]) -> Capsules:
    routed = _squash_sums(name, _weighted_sums(inputs, couplings), couplings.expand(inputs.shape.n, -1, -1))
    return inputs.parents(routed.poses, routed.activations)


def _weighted_sums(inputs: RoutingInputs, couplings: Float[Tensor, "i j"]) -> Float[Tensor, "n j d"]:
    """Return Σ_i c_ij V_ij of every window by one product of matrices."""
    shape = inputs.shape
    W = inputs.weight.reshape(-1, shape.c_in, shape.c_out, shape.q, shape.e).expand(shape.k, -1, -1, -1, -1)
    W = W.flatten(0, 1) * couplings[:, :, None, None]  # [i j q e]
    u = gather_windows(inputs.poses, inputs.geometry).reshape(shape.n, shape.i, shape.r, shape.q)
    u = u.transpose(1, 2).reshape(shape.n * shape.r, shape.i * shape.q)
    s = u @ W.transpose(1, 2).reshape(shape.i * shape.q, shape.c_out * shape.e)
    s = s.reshape(shape.n, shape.r, shape.c_out, shape.e).transpose(1, 2).reshape(shape.n, shape.c_out, shape.d)
    if inputs.vote_offset is None:
        return s
    offsets = gather_windows(inputs.vote_offset[None], inputs.geometry).reshape(-1, shape.k, shape.d)  # [sites k d]
    by_slot = couplings.unflatten(0, (shape.k, shape.c_in)).sum(1)  # all types of a position share its offset
    added = torch.einsum("kj,skd->sjd", by_slot, offsets)
    return (s.unflatten(0, (shape.batch, shape.rows * shape.columns)) + added).flatten(0, 1)


@register_routing
@dataclass(frozen=True)
class UniformRouting(Routing):
    """`uniform_routing` for a capsule layer; it has no options."""

    name: ClassVar[str] = "uniform"

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """See `Routing`."""
        return uniform_routing(votes)

    def route_windows(self, inputs: RoutingInputs, **parameters: Tensor) -> Capsules:
        """See `Routing`; no vote is made."""
        shape = inputs.shape
        return _route_windows(self.name, inputs, inputs.poses.new_full((shape.i, shape.c_out), 1 / shape.c_out))


@register_routing
@dataclass(frozen=True)
class RandomRouting(Routing):
    """`random_routing` for a capsule layer."""

    name: ClassVar[str] = "random"

    seed: int = 0
    """Seed of the couplings."""

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """See `Routing`."""
        return random_routing(votes, self.seed)

    def route_windows(self, inputs: RoutingInputs, **parameters: Tensor) -> Capsules:
        """See `Routing`; no vote is made."""
        couplings = random_couplings(inputs.shape.i, inputs.shape.c_out, self.seed)
        return _route_windows(self.name, inputs, couplings.to(inputs.poses))

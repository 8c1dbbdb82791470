"""Self-attention routing (Mazzia, Salvetti, Chiaberge 2021, "Efficient-CapsNet", arXiv 2101.12491, section 3.2)."""

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from capsella.routing.backends import Backend, choose_backend
from capsella.routing.base import ProductRouting, Routed, register_routing
from capsella.routing.convolution import RoutingInputs
from capsella.routing.functional import check_shape, check_votes, length, squash_exponential
from capsella.routing.recording import new_trace
from capsella.routing.reference import self_attention_routing_reference
from capsella.routing.votes import DenseVotes, FusedVotes


def self_attention_routing(
    votes: Float[Tensor, "b i j d"], prior: Float[Tensor, "i j"] | None = None, *, backend: str = "auto"
) -> Routed:
    """Weigh each vote by its agreement with all votes for the same parent, once, without iterations.

    c_ij = softmax over the parents of Σ_k û_ij·û_kj / √d, s_j = Σ_i (c_ij + b_ij) û_ij, v_j = (1 − e^−‖s_j‖) s_j/‖s_j‖.

    Args:
        votes: [b i j d], child i's prediction û of parent j's pose.
        prior: [i j], b, added to each coupling; the same for every image. None is zero.
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        Poses v [b j d], activations ‖v‖ [b j], couplings c [b i j]. The couplings are without the prior: c sums to 1
        over j, c + b need not.

    Raises:
        ArgumentError: votes without the four axes, a prior of another shape, an unknown backend.

    >>> import torch
    >>> routed = self_attention_routing(torch.randn(2, 5, 3, 8))
    >>> routed.poses.shape, routed.couplings.sum(2).allclose(torch.ones(2, 5))
    (torch.Size([2, 3, 8]), True)
    """
    check_votes(votes)
    if prior is not None:
        check_shape("prior", prior, tuple(votes.shape[1:3]), "[i j]")
    if choose_backend(backend) == "reference":
        return Routed(*self_attention_routing_reference(votes, prior))
    return _attend_to_all(DenseVotes(votes), prior)


def _attend_to_all(votes: DenseVotes | FusedVotes, prior: Tensor | None) -> Routed:
    # Σ_k û_i·û_k = û_i·(Σ_k û_k): the matrix of all agreements [b j i i], which the authors write to memory, is not
    # needed for its sums.
    total = votes.sums(votes.ones())
    couplings = (votes.agreements(total).transpose(1, 2) / math.sqrt(total.shape[2])).softmax(2)
    v = squash_exponential(votes.sums((couplings if prior is None else couplings + prior).transpose(1, 2)))
    activations = length(v)
    new_trace("self_attention").add(couplings, v, activations)
    return Routed(v, activations, couplings)


@register_routing
@dataclass(frozen=True)
class SelfAttentionRouting(ProductRouting):
    """Options of `self_attention_routing` for a capsule layer."""

    name: ClassVar[str] = "self_attention"

    prior: bool = True
    """Learn the prior b, one number per child and parent, initially zero; the windows of a convolution share it."""
    backend: Backend = "auto"
    """The implementation that runs: reference, eager or native."""

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Return the shape [i j] of the prior, if there is one."""
        return {"prior": (children, types)} if self.prior else {}

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """Route by `self_attention_routing`; the children's activations, lengths of their poses, are not used."""
        return self_attention_routing(votes, parameters.get("prior"), backend=self.backend)

    def route_votes(self, votes: DenseVotes | FusedVotes, inputs: RoutingInputs, **parameters: Tensor) -> Routed:
        """See `ProductRouting`."""
        if (prior := parameters.get("prior")) is not None:
            check_shape("prior", prior, (inputs.shape.i, inputs.shape.c_out), "[i j]")
        return _attend_to_all(votes, prior)

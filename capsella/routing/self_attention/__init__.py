"""Self-attention routing (Mazzia, Salvetti, Chiaberge 2021, "Efficient-CapsNet", arXiv 2101.12491, section 3.2)."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from capsella.routing.backends import Backend, choose_backend
from capsella.routing.base import Routed, register_routing
from capsella.routing.checks import check_shape, check_votes
from capsella.routing.convolution import CapsuleConv
from capsella.routing.self_attention.eager import attend_to_all, self_attention_routing_eager
from capsella.routing.self_attention.reference import self_attention_routing_reference
from capsella.routing.votes import ProductRouting, Votes

BACKENDS = {"eager": self_attention_routing_eager, "reference": self_attention_routing_reference}


def self_attention_routing(
    votes: Float[Tensor, "b i j d"], prior: Float[Tensor, "i j"] | None = None, *, backend: str = "auto"
) -> Routed:
    """Weigh each vote by its agreement with all votes for the same parent, once, without iterations.

    c_ij = softmax over the parents of Σ_k û_ij·û_kj / √d, s_j = Σ_i (c_ij + b_ij) û_ij, v_j = (1 − e^−‖s_j‖) s_j/‖s_j‖.

    Args:
        votes: [b i j d], child i's prediction û of parent j's pose.
        prior: [i j], b, what each coupling starts from; the same for every image. None is zero.
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        poses v [b j d], activations ‖v‖ [b j], couplings c [b i j], without the prior: they sum to 1 over j, while
        c + b may be anything.

    Raises:
        ValueError: votes without the four axes, a prior of another shape, an unknown backend.

    >>> import torch
    >>> routed = self_attention_routing(torch.randn(2, 5, 3, 8))
    >>> routed.poses.shape, routed.couplings.sum(2).allclose(torch.ones(2, 5))
    (torch.Size([2, 3, 8]), True)
    """
    check_votes(votes)
    if prior is not None:
        check_shape("prior", prior, tuple(votes.shape[1:3]), "[i j]")
    return BACKENDS[choose_backend(backend, BACKENDS, auto="eager")](votes, prior)


@register_routing
@dataclass(frozen=True)
class SelfAttentionRouting(ProductRouting):
    """Options of `self_attention_routing` for a capsule layer."""

    name: ClassVar[str] = "self_attention"

    prior: bool = True
    """Learn the prior b, one number a child and parent, zero at the start; the windows of a convolution share it."""
    backend: Backend = "auto"
    """Which implementation runs: reference, eager or native."""

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """A prior [i j] where asked for."""
        return {"prior": (children, types)} if self.prior else {}

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """`self_attention_routing`; the children's activations are the lengths of their poses, so they are not used."""
        return self_attention_routing(votes, parameters.get("prior"), backend=self.backend)

    def route_by_products(self, votes: Votes, conv: CapsuleConv, **parameters: Tensor) -> Routed:
        """See `ProductRouting`."""
        if (prior := parameters.get("prior")) is not None:
            check_shape("prior", prior, (conv.sizes.i, conv.sizes.c_out), "[i j]")
        return attend_to_all(votes, prior)

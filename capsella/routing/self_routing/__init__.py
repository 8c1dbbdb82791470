"""Self-routing (Hahn, Pyeon, Kim 2019, "Self-Routing Capsule Networks", NeurIPS)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.routing.backends import Backend, choose_backend
from capsella.routing.base import ActivationKind, Routed, register_routing
from capsella.routing.checks import check_shape, check_votes
from capsella.routing.convolution import CapsuleConv, capsule_votes
from capsella.routing.parts import in_parts
from capsella.routing.self_routing.eager import route_by_children, self_routing_eager
from capsella.routing.self_routing.reference import self_routing_reference
from capsella.routing.votes import ProductRouting, Votes, windows_of
from capsella.types import Capsules

BACKENDS = {"eager": self_routing_eager, "reference": self_routing_reference}


def self_routing(
    votes: Float[Tensor, "b i j d"],
    activations: Float[Tensor, "b i"],
    logits: Float[Tensor, "b i j"],
    *,
    backend: str = "auto",
) -> Routed:
    """Weigh each vote as its child alone says, in one pass: no agreement, no iterations.

    R_ij = softmax over the parents of logits_ij; a_j = Σ_i a_i R_ij / Σ_i a_i;
    pose_j = Σ_i a_i R_ij V_ij / Σ_i a_i R_ij.

    Args:
        votes: [b i j d], child i's prediction V of parent j's pose.
        activations: [b i], the children's, in [0, 1].
        logits: [b i j], what each child says of each parent; in a layer, w_ij·u_i + b_ij of the child's pose u_i.
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        poses [b j d], activations [b j], which sum to 1 over j, couplings R [b i j]. A sum that a_j or
        pose_j is divided by counts as at least 1e-6. So activations fall to zero where no child is active, and a pose
        where a parent receives next to nothing, with finite slopes.

    Raises:
        ValueError: votes without the four axes, activations or logits of another shape, an unknown backend.

    >>> import torch
    >>> routed = self_routing(torch.randn(2, 5, 3, 8), torch.rand(2, 5), torch.randn(2, 5, 3))
    >>> routed.poses.shape, routed.activations.sum(1).allclose(torch.ones(2))
    (torch.Size([2, 3, 8]), True)
    """
    check_votes(votes)
    check_shape("activations", activations, tuple(votes.shape[:2]), "[b i]")
    check_shape("logits", logits, tuple(votes.shape[:3]), "[b i j]")
    return BACKENDS[choose_backend(backend, BACKENDS, auto="eager")](votes, activations, logits)


@register_routing
@dataclass(frozen=True)
class SelfRouting(ProductRouting):
    """Options of `self_routing` for a capsule layer, which reads the logits off its children's poses."""

    name: ClassVar[str] = "self"
    activation_kind: ClassVar[ActivationKind] = "shares"

    backend: Backend = "auto"
    """Which implementation runs: reference, eager or native."""

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """W [i j p] and b [i j] of every child in a window; a tied layer too tells its positions apart by them."""
        return {"weight": (children, types, child_pose), "bias": (children, types)}

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """`self_routing` of children whose poses are zero: votes alone do not tell them, and b alone decides."""
        check_votes(votes)
        children, parents = votes.shape[1:3]
        check_shape("bias", parameters["bias"], (children, parents), "[i j]")
        return self_routing(votes, activations, parameters["bias"].expand(votes.shape[:3]), backend=self.backend)

    def route_by_products(self, votes: Votes, conv: CapsuleConv, **parameters: Tensor) -> Routed:
        """By the children's poses."""
        return route_by_children(votes, windows_of(conv, conv.activations), self._logits(conv, **parameters))

    def conv_with_votes(self, backend: Backend, conv: CapsuleConv, **parameters: Tensor) -> Capsules:
        """See `ProductRouting`; by the children's poses."""

        def route(children: Capsules) -> Capsules:
            part = conv.of(children)
            votes, activations = capsule_votes(part)
            routed = self_routing(votes, activations, self._logits(part, **parameters), backend=backend)
            return part.parents(routed.poses, routed.activations)

        return in_parts(route, Capsules(conv.poses, conv.activations), conv.sizes.votes_of_an_image)

    def _logits(self, conv: CapsuleConv, weight: Tensor, bias: Tensor) -> Tensor:
        """What each child says of each parent: [n i j]."""
        sizes = conv.sizes
        check_shape("weight", weight, (sizes.i, sizes.c_out, sizes.r * sizes.q), "[i j p]")
        check_shape("bias", bias, (sizes.i, sizes.c_out), "[i j]")
        return torch.einsum("nip,ijp->nij", windows_of(conv, conv.poses), weight) + bias

"""Self-routing (Hahn, Pyeon, Kim 2019, "Self-Routing Capsule Networks", NeurIPS)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.routing.backends import Backend, choose_backend
from capsella.routing.base import ActivationKind, ProductRouting, Routed, register_routing
from capsella.routing.convolution import RoutingInputs, by_window, capsule_votes
from capsella.routing.functional import check_shape, check_votes
from capsella.routing.recording import new_trace
from capsella.routing.reference import LEAST_SUM, self_routing_reference
from capsella.routing.votes import DenseVotes, FusedVotes


def self_routing(
    votes: Float[Tensor, "b i j d"],
    activations: Float[Tensor, "b i"],
    logits: Float[Tensor, "b i j"],
    *,
    backend: str = "auto",
) -> Routed:
    """Weigh each vote by its child alone, in one pass: no agreement, no iterations.

    R_ij = softmax over the parents of logits_ij; a_j = Σ_i a_i R_ij / Σ_i a_i;
    pose_j = Σ_i a_i R_ij V_ij / Σ_i a_i R_ij.

    Args:
        votes: [b i j d], child i's prediction V of parent j's pose.
        activations: [b i], the children's, in [0, 1].
        logits: [b i j], each child's preference for each parent; in a layer, w_ij·u_i + b_ij for the child's pose u_i.
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        Poses [b j d], activations [b j], which sum to 1 over j, couplings R [b i j]. The denominators of a_j and pose_j
        are at least 1e-6. So activations go to zero if no child is active, poses if a parent receives next to nothing,
        and gradients stay finite.

    Raises:
        ArgumentError: votes without the four axes, activations or logits of another shape, an unknown backend.

    >>> import torch
    >>> routed = self_routing(torch.randn(2, 5, 3, 8), torch.rand(2, 5), torch.randn(2, 5, 3))
    >>> routed.poses.shape, routed.activations.sum(1).allclose(torch.ones(2))
    (torch.Size([2, 3, 8]), True)
    """
    check_votes(votes)
    check_shape("activations", activations, tuple(votes.shape[:2]), "[b i]")
    check_shape("logits", logits, tuple(votes.shape[:3]), "[b i j]")
    if choose_backend(backend) == "reference":
        return Routed(*self_routing_reference(votes, activations, logits))
    return _route_by_children(DenseVotes(votes), activations, logits)


def _route_by_children(votes: DenseVotes | FusedVotes, activations: Tensor, logits: Tensor) -> Routed:
    couplings = logits.softmax(2)
    given = activations.unsqueeze(2) * couplings  # a_i R_ij
    received = given.sum(1)  # [b j]
    a = received / activations.sum(1, keepdim=True).clamp(min=LEAST_SUM)
    poses = votes.sums(given.transpose(1, 2)) / received.clamp(min=LEAST_SUM).unsqueeze(2)
    new_trace("self").add(couplings, poses, a)
    return Routed(poses, a, couplings)


@register_routing
@dataclass(frozen=True)
class SelfRouting(ProductRouting):
    """Options of `self_routing` for a capsule layer, which reads the logits off its children's poses."""

    name: ClassVar[str] = "self"
    activation_kind: ClassVar[ActivationKind] = "shares"

    backend: Backend = "auto"
    """The implementation that runs: reference, eager or native."""

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of W [i j p] and b [i j]; both differ between the positions even of a tied layer."""
        return {"weight": (children, types, child_pose), "bias": (children, types)}

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """Route by `self_routing` with logits b alone, as if poses were zero: votes do not determine the poses."""
        check_votes(votes)
        bias = parameters["bias"]
        check_shape("bias", bias, tuple(votes.shape[1:3]), "[i j]")
        return self_routing(votes, activations, bias.expand(votes.shape[:3]), backend=self.backend)

    def route_inputs(self, inputs: RoutingInputs, **parameters: Tensor) -> Routed:
        """See `Routing`; logits are computed from the children's poses."""
        votes, activations = capsule_votes(inputs)
        return self_routing(votes, activations, self._logits(inputs, **parameters), backend=self.backend)

    def route_votes(self, votes: DenseVotes | FusedVotes, inputs: RoutingInputs, **parameters: Tensor) -> Routed:
        """See `ProductRouting`; logits are computed from the children's poses."""
        activations = by_window(inputs, inputs.activations)
        return _route_by_children(votes, activations, self._logits(inputs, **parameters))

    def _logits(self, inputs: RoutingInputs, weight: Tensor, bias: Tensor) -> Tensor:
        """Return each child's preference for each parent: [n i j]."""
        shape = inputs.shape
        check_shape("weight", weight, (shape.i, shape.c_out, shape.r * shape.q), "[i j p]")
        check_shape("bias", bias, (shape.i, shape.c_out), "[i j]")
        return torch.einsum("nip,ijp->nij", by_window(inputs, inputs.poses), weight) + bias

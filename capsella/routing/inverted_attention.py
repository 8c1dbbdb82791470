"""Inverted dot-product attention routing (Tsai, Srivastava, Goh, Salakhutdinov 2020, arXiv 2002.04764)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm

from capsella.routing.backends import Backend, choose_backend, choose_layer_backend
from capsella.routing.base import ActivationKind, ProductRouting, Routed, register_routing
from capsella.routing.convolution import RoutingInputs, capsule_votes
from capsella.routing.functional import check_iterations, check_shape, check_votes
from capsella.routing.recording import new_trace
from capsella.routing.reference import LAYER_NORM_EPSILON, attend_reference
from capsella.routing.votes import DenseVotes, FusedVotes


def attend(
    votes: Float[Tensor, "b i j d"],
    poses: Float[Tensor, "b j d"] | None,
    scale: Float[Tensor, " d"],
    shift: Float[Tensor, " d"],
    *,
    backend: str = "auto",
) -> Routed:
    """Run one round: each child attends to the parents whose poses agree with its votes; parents get new poses.

    R_ij = softmax over the parents of V_ij·p_j/√d; p_j = scale · normalised(Σ_i R_ij V_ij) + shift, normalised to zero
    mean and unit variance over its d elements (layer normalisation).

    Args:
        votes: [b i j d], child i's prediction V of parent j's pose.
        poses: [b j d], the parents' poses before this round; None in the first round, whose couplings are uniform.
        scale, shift: [d], of the layer normalisation, shared by all parents. Poses of one element are not normalised.
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        Poses p [b j d], activations [b j], all 1 because this routing has none, and couplings R [b i j].

    Raises:
        ArgumentError: shapes that do not fit together, an unknown backend.
    """
    check_votes(votes)
    batch, _, parents, d = votes.shape
    if poses is not None:
        check_shape("poses", poses, (batch, parents, d), "[b j d]")
    _check_norm(d, scale, shift)
    if choose_backend(backend) == "reference":
        return Routed(*attend_reference(votes, poses, scale, shift))
    return _attend(DenseVotes(votes), poses, scale, shift)


def inverted_attention_routing(
    votes: Float[Tensor, "b i j d"],
    scale: Float[Tensor, " d"],
    shift: Float[Tensor, " d"],
    iterations: int = 2,
    *,
    backend: str = "auto",
) -> Routed:
    """Route one layer by several rounds of `attend`, the first with uniform couplings.

    Args:
        votes, scale, shift, backend: as for `attend`.
        iterations: rounds, at least 1; the authors' best network takes 2.

    Returns:
        The result of the last round.

    Raises:
        ArgumentError: fewer than one iteration; as for `attend`.

    >>> import torch
    >>> routed = inverted_attention_routing(torch.randn(2, 5, 3, 8), torch.ones(8), torch.zeros(8))
    >>> routed.poses.shape, routed.couplings.sum(2).allclose(torch.ones(2, 5))
    (torch.Size([2, 3, 8]), True)
    """
    check_iterations(iterations)
    return _rounds(lambda poses: attend(votes, poses, scale, shift, backend=backend), iterations)


def _attend(votes: DenseVotes | FusedVotes, poses: Tensor | None, scale: Tensor, shift: Tensor) -> Routed:
    if poses is None:
        couplings = votes.ones().transpose(1, 2).softmax(2)  # uniform
    else:
        couplings = (votes.agreements(poses).transpose(1, 2) / math.sqrt(poses.shape[2])).softmax(2)
    s = votes.sums(couplings.transpose(1, 2))
    d = s.shape[2]
    p = s if d == 1 else layer_norm(s, (d,), scale, shift, LAYER_NORM_EPSILON)
    return Routed(p, torch.ones_like(p[..., 0]), couplings)


def _check_norm(d: int, scale: Tensor, shift: Tensor) -> None:
    check_shape("scale", scale, (d,), "[d]")
    check_shape("shift", shift, (d,), "[d]")


def _rounds(attend_from: Callable[[Tensor | None], Routed], iterations: int) -> Routed:
    """Run rounds one after the other, each from the poses of the previous round; the first gets None."""
    trace = new_trace("inverted_attention")
    poses = None
    for _ in range(iterations):
        routed = attend_from(poses)
        trace.add(routed.couplings, routed.poses, routed.activations)
        poses = routed.poses
    return routed


@register_routing
@dataclass(frozen=True)
class InvertedAttentionRouting(ProductRouting):
    """Options of `inverted_attention_routing` for a capsule layer; `AttentionStack` routes several layers at once."""

    name: ClassVar[str] = "inverted_attention"
    activation_kind: ClassVar[ActivationKind] = "none"

    iterations: int = 2
    """Rounds; in the first, couplings are uniform."""
    backend: Backend = "auto"
    """The implementation that runs: reference, eager or native."""

    def __post_init__(self) -> None:
        check_iterations(self.iterations)

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Return scale and shift [d] of the layer normalisation."""
        return {"scale": (pose,), "shift": (pose,)}

    def init_parameters(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, Tensor]:
        """Return ones and zeros."""
        return {"scale": torch.ones(pose), "shift": torch.zeros(pose)}

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """Route by `inverted_attention_routing`; it has no activations, so the children's are not used."""
        return inverted_attention_routing(votes, **parameters, iterations=self.iterations, backend=self.backend)

    def route_votes(self, votes: DenseVotes | FusedVotes, inputs: RoutingInputs, **parameters: Tensor) -> Routed:
        """See `ProductRouting`."""
        _check_norm(inputs.shape.d, **parameters)
        return _rounds(lambda poses: _attend(votes, poses, **parameters), self.iterations)

    def round(self, inputs: RoutingInputs, poses: Tensor | None, scale: Tensor, shift: Tensor) -> Routed:
        """Run one round of `attend` in every window, from the parents' poses [n j d], or None in the first round."""
        backend = choose_layer_backend(self, inputs)
        if backend != "native":
            return attend(capsule_votes(inputs)[0], poses, scale, shift, backend=backend)
        _check_norm(inputs.shape.d, scale, shift)
        return _attend(FusedVotes(inputs), poses, scale, shift)

"""Inverted dot-product attention routing (Tsai, Srivastava, Goh, Salakhutdinov 2020, arXiv 2002.04764)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.routing.backends import Backend, choose_backend
from capsella.routing.base import ActivationKind, Routed, register_routing
from capsella.routing.checks import check_iterations, check_shape, check_votes
from capsella.routing.convolution import CapsuleConv, capsule_votes
from capsella.routing.inverted_attention.eager import attend_by_products, attend_eager
from capsella.routing.inverted_attention.reference import attend_reference
from capsella.routing.recording import new_trace
from capsella.routing.votes import FusedVotes, ProductRouting, Votes

BACKENDS = {"eager": attend_eager, "reference": attend_reference}


def attend(
    votes: Float[Tensor, "b i j d"],
    poses: Float[Tensor, "b j d"] | None,
    scale: Float[Tensor, " d"],
    shift: Float[Tensor, " d"],
    *,
    backend: str = "auto",
) -> Routed:
    """One round: parents whose poses are like a child's votes get its attention, and new poses from it.

    R_ij = softmax over the parents of V_ij·p_j/√d; p_j = scale · normalised(Σ_i R_ij V_ij) + shift, normalised to zero
    mean and unit variance over its d elements (layer normalisation).

    Args:
        votes: [b i j d], child i's prediction V of parent j's pose.
        poses: [b j d], the parents' before this round; None in the first round, whose couplings are even.
        scale, shift: [d] of the layer normalisation, the same for all parents. Poses of one element are not normalised.
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        poses p [b j d], activations [b j], all 1, for this routing has none, couplings R [b i j].

    Raises:
        ValueError: shapes that do not fit together, an unknown backend.
    """
    check_votes(votes)
    batch, _, parents, d = votes.shape
    if poses is not None:
        check_shape("poses", poses, (batch, parents, d), "[b j d]")
    scale, shift = checked_norm(d, scale, shift)
    return BACKENDS[choose_backend(backend, BACKENDS, auto="eager")](votes, poses, scale, shift)


def inverted_attention_routing(
    votes: Float[Tensor, "b i j d"],
    scale: Float[Tensor, " d"],
    shift: Float[Tensor, " d"],
    iterations: int = 2,
    *,
    backend: str = "auto",
) -> Routed:
    """`attend` several times, the first with even couplings: the parents of one layer, routed by themselves.

    Args:
        votes, scale, shift, backend: as for `attend`.
        iterations: rounds, at least 1; the authors' best network takes 2.

    Returns:
        Those of the last round.

    Raises:
        ValueError: fewer than one iteration; as for `attend`.

    >>> import torch
    >>> routed = inverted_attention_routing(torch.randn(2, 5, 3, 8), torch.ones(8), torch.zeros(8))
    >>> routed.poses.shape, routed.couplings.sum(2).allclose(torch.ones(2, 5))
    (torch.Size([2, 3, 8]), True)
    """
    check_iterations(iterations)
    return _rounds(lambda poses: attend(votes, poses, scale, shift, backend=backend), iterations)


def checked_norm(d: int, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Both, of the layer normalisation of poses of d elements."""
    check_shape("scale", scale, (d,), "[d]")
    check_shape("shift", shift, (d,), "[d]")
    return scale, shift


def _rounds(attend_from: Callable[[Tensor | None], Routed], iterations: int) -> Routed:
    """One round after another, each from the poses of the one before; the first from none."""
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
    """Rounds; in the first, couplings are even."""
    backend: Backend = "auto"
    """Which implementation runs: reference, eager or native."""

    def __post_init__(self) -> None:
        check_iterations(self.iterations)

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Scale and shift [d] of the layer normalisation."""
        return {"scale": (pose,), "shift": (pose,)}

    def first_parameters(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, Tensor]:
        """Ones and zeros."""
        return {"scale": torch.ones(pose), "shift": torch.zeros(pose)}

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """`inverted_attention_routing`; this routing has no activations, so the children's are not used."""
        return inverted_attention_routing(votes, **parameters, iterations=self.iterations, backend=self.backend)

    def route_by_products(self, votes: Votes, conv: CapsuleConv, **parameters: Tensor) -> Routed:
        """See `ProductRouting`."""
        scale, shift = checked_norm(conv.sizes.d, **parameters)
        return _rounds(lambda poses: attend_by_products(votes, poses, scale, shift), self.iterations)

    def round(self, conv: CapsuleConv, poses: Tensor | None, scale: Tensor, shift: Tensor) -> Routed:
        """`attend` once in every window of a convolution, from the parents' poses [n j d], or from none."""
        backend = self.backend_for(conv)
        if backend != "native":
            return attend(capsule_votes(conv)[0], poses, scale, shift, backend=backend)
        return attend_by_products(FusedVotes(conv), poses, *checked_norm(conv.sizes.d, scale, shift))

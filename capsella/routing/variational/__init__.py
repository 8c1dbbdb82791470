"""Variational Bayes routing (Ribeiro, Leontidis, Kollias 2020, "Capsule Routing via Variational Bayes", 1905.11455)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.routing.backends import Backend, choose_backend, choose_conv_backend
from capsella.routing.base import LogisticRouting, Routed, Scored, register_routing
from capsella.routing.checks import check_shape, check_votes
from capsella.routing.convolution import CapsuleConv, capsule_votes
from capsella.routing.variational.eager import variational_routing_eager
from capsella.routing.variational.reference import variational_routing_reference
from capsella.routing.variational.settings import VariationalSettings
from capsella.types import ScoredCapsules

BACKENDS = {"eager": variational_routing_eager, "reference": variational_routing_reference}
SLOWER = "Variational Bayes routing runs in PyTorch, 10 to 20 times slower"


def variational_routing(
    votes: Float[Tensor, "b i j d"],
    activations: Float[Tensor, "b i"],
    bias: Float[Tensor, " j"] | None = None,
    iterations: int = 3,
    *,
    proportions: bool = True,
    concentration: float = 1.0,
    mean_weight: float = 1.0,
    precision: float = 1.0,
    degrees: float = 2.0,
    backend: str = "auto",
) -> Routed:
    """Fit a mixture of Gaussians with priors to the votes of active children: EM whose parents cannot collapse.

    With r = R_ij a_i and R_j = Σ_i r: α_j = α₀ + R_j, κ_j = κ₀ + R_j, ν_j = ν₀ + R_j, μ_j = Σ_i r V / R_j,
    m_j = R_j μ_j / κ_j, Ψ_j⁻¹ = Ψ₀⁻¹ + Σ_i r (V − μ_j)² + (κ₀ R_j / κ_j) μ_j², element by element.
    E ln π_j = ψ(α_j) − ψ(Σ_j α_j); E ln|Λ_j| = Σ_{d<D} ψ((ν_j − d)/2) + D ln 2 + ln|Ψ_j|;
    ln p_ij = ½ E ln|Λ_j| − ½ D ln 2π − ½ (D/κ_j + ν_j Σ_h Ψ_jh (V − m_j)²_h); R_ij = π_j p_ij / Σ_j π_j p_ij.
    a_j = logistic(β_j − π_j H_j), with π_j = exp(E ln π_j) and H_j = ½ D ln 2πe − ½ E ln|Λ_j|, the entropy; weighed
    by π_j, not R_j, and diagonal, as in the authors' code. Batch normalisation is the layer's, by `norm="batch"`.

    Args:
        votes, activations: [b i j d], child i's prediction V_ij of parent j's pose, and [b i], a_i in [0, 1].
        bias: [j], β = β_a − β_u of the paper, whose difference alone counts; None is zero.
        iterations, proportions, …, degrees: see the fields of `VariationalSettings`.
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        poses m [b j d], activations [b j], couplings R [b i j] behind the last poses, without a_i; float32 at least.

    Raises:
        ValueError: shapes that disagree, a number out of its range, an unknown backend.

    >>> variational_routing(torch.randn(2, 5, 3, 16), torch.rand(2, 5)).poses.shape
    torch.Size([2, 3, 16])
    """
    settings = VariationalSettings(iterations, proportions, concentration, mean_weight, precision, degrees)
    return _score(votes, activations, bias, settings, backend).routed()


@register_routing
@dataclass(frozen=True)
class VariationalRouting(VariationalSettings, LogisticRouting):
    """Options of `variational_routing` for a capsule layer.

    In a convolution the types at one site compete for the children of its window, as in the authors' code: each window
    is a mixture of its own.
    """

    name: ClassVar[str] = "variational"
    fused: ClassVar[tuple[str, ...]] = ("native",)
    compares_poses: ClassVar[bool] = True

    bias: bool = True
    """Learn β, one number a parent type, from zero. Batch normalisation takes any such number away again: a layer with
    it needs none."""
    backend: Backend = "auto"
    """Which implementation runs: reference, eager or native."""

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """A bias [j] where asked for."""
        return {"bias": (types,)} if self.bias else {}

    def once(self) -> LogisticRouting:
        """See `LogisticRouting`."""
        return replace(self, iterations=1)

    def score(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Scored:
        """`variational_routing`, with log-odds."""
        return _score(votes, activations, parameters.get("bias"), self, self.backend)

    def score_conv(self, conv: CapsuleConv, **parameters: Tensor) -> ScoredCapsules:
        """See `LogisticRouting`."""
        backend = choose_conv_backend(self.backend, (*BACKENDS, *self.fused), conv, SLOWER)
        if backend != "native":
            scored = _score(*capsule_votes(conv), parameters.get("bias"), self, backend)
            return conv.scored_parents(scored.poses, scored.log_odds)
        from capsella.routing.variational.native import variational_capsule_conv_native

        bias = parameters.get("bias", conv.weight.new_zeros(conv.sizes.c_out))
        check_shape("bias", bias, (conv.sizes.c_out,), "[j]")
        return variational_capsule_conv_native(conv, bias, self)


def _score(
    votes: Tensor, activations: Tensor, bias: Tensor | None, settings: VariationalSettings, backend: str
) -> Scored:
    """`variational_routing` with its options in one value, and log-odds."""
    check_votes(votes)
    parents = votes.shape[2]
    bias = votes.new_zeros(parents) if bias is None else bias
    check_shape("activations", activations, tuple(votes.shape[:2]), "[b i]")
    check_shape("bias", bias, (parents,), "[j]")
    run = BACKENDS[choose_backend(backend, BACKENDS, auto="eager")]
    dtype = torch.promote_types(votes.dtype, torch.float32)
    with torch.autocast(votes.device.type, enabled=False):
        return run(votes.to(dtype), activations.to(dtype), bias.to(dtype), settings)

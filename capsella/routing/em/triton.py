"""EM routing of a capsule convolution whose votes are never written: Triton kernels, forward and backward."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from capsella.routing.convolution import CapsuleConv, Geometry
from capsella.routing.em.eager import compete_everywhere, compete_here, em_procedure
from capsella.routing.em.settings import EMSettings
from capsella.routing.triton import Factors, keep, kept, vote_factors
from capsella.types import ScoredCapsules


def em_capsule_conv_triton(
    conv: CapsuleConv, beta_u: Tensor, beta_a: Tensor, settings: EMSettings, everywhere: bool
) -> ScoredCapsules:
    """`EMRouting.score_conv` on a CUDA device: Hinton et al. 2018, Procedure 1, in memory O(children × parents).

    Poses and weight of float32, bfloat16 or float16; results are float32 (float64 for float64).

    Raises:
        ValueError: tensors that are not on a CUDA device.
    """
    factors, children = vote_factors(conv)
    compete = compete_everywhere(conv) if everywhere else compete_here
    beta_u, beta_a = beta_u.to(children.dtype), beta_a.to(children.dtype)
    with torch.autocast(conv.poses.device.type, enabled=False):
        scored = em_procedure(TritonVotes(conv.geometry, factors), children, beta_u, beta_a, settings, compete)
    return conv.scored_parents(scored.poses, scored.log_odds)


@dataclass(frozen=True)
class TritonVotes:
    """`Votes` that are computed anew in each pass."""

    geometry: Geometry
    factors: Factors

    def moments(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """See `Votes`."""
        mu, variance = _Moments.apply(self.geometry, *self.factors, shares)
        return mu, variance

    def scaled_distance(self, mu: Tensor, precision: Tensor) -> Tensor:
        """See `Votes`."""
        distance: Tensor = _ScaledDistance.apply(self.geometry, *self.factors, mu, precision)
        return distance


class _Moments(torch.autograd.Function):
    """The formulas of `capsella.routing.moments`, with δ = V − μ."""

    @staticmethod
    def forward(ctx: Any, geometry: Geometry, *inputs: Any) -> tuple[Tensor, Tensor]:
        *factors, shares = inputs
        V = Factors(*factors)
        (mu,) = V.sums(shares)
        _, variance = V.sums(shares, mu)
        keep(ctx, geometry, V, shares, mu)
        return mu, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mu: Tensor, grad_variance: Tensor) -> tuple[Tensor | None, ...]:
        V, (shares, mu) = kept(ctx)
        # ∂μ/∂s = V = μ + δ, ∂σ²/∂s = δ²; ∂L/∂V = s (g + 2 g₂ δ)
        grad_shares = V.scores(grad_mu, mu, grad_variance) + (mu * grad_mu).sum(2, keepdim=True)
        return *V.gradients(ctx, shares, grad_mu, mu, 2 * grad_variance), grad_shares


class _ScaledDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, geometry: Geometry, *inputs: Any) -> Tensor:
        *factors, mu, precision = inputs
        V = Factors(*factors)
        keep(ctx, geometry, V, mu, precision)
        return V.scores(torch.zeros_like(mu), mu, precision)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        V, (mu, precision) = kept(ctx)
        # ∂L/∂V = e 2 precision δ
        first, grad_precision = V.sums(grad, mu)
        of_factors = V.gradients(ctx, grad, torch.zeros_like(mu), mu, 2 * precision)
        return *of_factors, -2 * precision * first, grad_precision

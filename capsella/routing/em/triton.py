"""EM routing of a capsule convolution whose votes are never written: Triton kernels, forward and backward."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from capsella.routing.checks import check_shape
from capsella.routing.convolution import Geometry, check_capsule_conv
from capsella.routing.em.eager import compete_everywhere, compete_here, em_procedure
from capsella.routing.triton import Factors, vote_factors
from capsella.types import Capsules

if TYPE_CHECKING:
    from capsella.routing.em import EMRouting


def em_capsule_conv_triton(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    geometry: Geometry,
    vote_offset: Tensor | None,
    beta_u: Tensor,
    beta_a: Tensor,
    routing: "EMRouting",
) -> Capsules:
    """`EMRouting.capsule_conv` on a CUDA device: Hinton et al. 2018, Procedure 1, in memory O(children × parents).

    Poses and weight of float32, bfloat16 or float16; results are float32 (float64 for float64).

    Raises:
        ValueError: shapes that disagree, or tensors that are not on a CUDA device.
    """
    *grid, d = check_capsule_conv(poses, activations, weight, geometry, vote_offset)
    check_shape("beta_u", beta_u, (grid[3],), "[j]")
    check_shape("beta_a", beta_a, (grid[3],), "[j]")
    factors, children = vote_factors(poses, activations, weight, geometry, vote_offset)
    everywhere = compete_everywhere(geometry, grid[0], (poses.shape[1], poses.shape[2]), poses.shape[3])
    compete = everywhere if routing.competition == "all" else compete_here
    beta_u, beta_a = beta_u.to(children.dtype), beta_a.to(children.dtype)
    with torch.autocast(poses.device.type, enabled=False):
        mu, a, _ = em_procedure(TritonVotes(geometry, factors), children, beta_u, beta_a, routing, compete)
    return Capsules(mu.reshape(*grid, d), a.reshape(grid))


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
    """The formulas of `capsella.routing.em.moments`, with δ = V − μ."""

    @staticmethod
    def forward(
        ctx: Any,
        geometry: Geometry,
        poses: Tensor,
        weight: Tensor,
        offset: Tensor | None,
        slots: Tensor,
        short: bool,
        shares: Tensor,
    ) -> tuple[Tensor, Tensor]:
        factors = Factors(poses, weight, offset, slots, short)
        (mu,) = factors.sums(shares)
        _, variance = factors.sums(shares, mu)
        ctx.fixed = geometry, short
        ctx.save_for_backward(*factors[:4], shares, mu)
        return mu, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mu: Tensor, grad_variance: Tensor) -> tuple[Tensor | None, ...]:
        poses, weight, offset, slots, shares, mu = ctx.saved_tensors
        geometry, short = ctx.fixed
        V = Factors(poses, weight, offset, slots, short)
        # ∂μ/∂s = V = μ + δ, ∂σ²/∂s = δ²; ∂L/∂V = s (g + 2 g₂ δ)
        grad_shares = V.scores(grad_mu, mu, grad_variance) + (mu * grad_mu).sum(2, keepdim=True)
        wanted = ctx.needs_input_grad[3]
        of_factors = V.gradients(geometry, shares, grad_mu, mu, 2 * grad_variance, offset_wanted=wanted)
        return None, *of_factors, grad_shares


class _ScaledDistance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        geometry: Geometry,
        poses: Tensor,
        weight: Tensor,
        offset: Tensor | None,
        slots: Tensor,
        short: bool,
        mu: Tensor,
        precision: Tensor,
    ) -> Tensor:
        factors = Factors(poses, weight, offset, slots, short)
        ctx.fixed = geometry, short
        ctx.save_for_backward(*factors[:4], mu, precision)
        return factors.scores(torch.zeros_like(mu), mu, precision)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        poses, weight, offset, slots, mu, precision = ctx.saved_tensors
        geometry, short = ctx.fixed
        V = Factors(poses, weight, offset, slots, short)
        # ∂L/∂V = e 2 precision δ
        first, grad_precision = V.sums(grad, mu)
        wanted = ctx.needs_input_grad[3]
        of_factors = V.gradients(geometry, grad, torch.zeros_like(mu), mu, 2 * precision, offset_wanted=wanted)
        return None, *of_factors, -2 * precision * first, grad_precision

"""The two passes over all votes that routings by Gaussians make in every iteration; gradients keep the votes alone.

Left to autograd, each iteration would keep two more tensors of the votes' size: V − μ and its square. Here both are
computed again in the backward pass, block by block, so that on a CPU they stay in its cache. For `torch.func` and
forward derivatives, which take no backward pass of one's own, PyTorch has the plain sums.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from capsella.routing.backends import asks_second_derivative, is_transformed

BLOCK = 1 << 17
"""Vote elements handled at a time on a CPU: 512 KiB in float32, within one core's L2 cache."""


LEAST_ACTIVATION = 1e-12
"""A child's share of a parent is taken as if the child were at least this active: with no active child at all, the
parent still has a mean, and gradients stay finite. Beside any child of activation 1e-4 it changes no float32 digit."""


@runtime_checkable
class Votes(Protocol):
    """What a routing by Gaussians asks of the votes V_ij, which it need not see: two passes over them."""

    def moments(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """μ = Σ_i s V and σ² = Σ_i s (V − μ)² [n j d], for shares s [n j i] that sum to 1 over i."""

    def scaled_distance(self, mu: Tensor, precision: Tensor) -> Tensor:
        """Σ_d (V − μ)²_d · precision_d [n j i], for means and precisions [n j d]."""


@dataclass(frozen=True)
class WrittenVotes:
    """`Votes` that stand in memory: V [n j i d], so that all sums over children are batched matrix products."""

    V: Tensor

    def moments(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """`moments` of V."""
        return moments(self.V, shares)

    def scaled_distance(self, mu: Tensor, precision: Tensor) -> Tensor:
        """`scaled_distance` of V."""
        return scaled_distance(self.V, mu, precision)


def shares_of(log_R: Tensor, a: Tensor) -> Tensor:
    """Each child's share R a / Σ_i R a of a parent's data [n j i], for ln R [n j i] and activations a [n 1 i].

    As a softmax over the children: exact also where the sum underflows. The gradient of an activation of 0 is that of
    the share, unless no child is active.
    """
    off = (a < LEAST_ACTIVATION).all(2, keepdim=True)
    least = (LEAST_ACTIVATION - a).clamp(min=0).detach()
    return (log_R + (torch.where(off, a.detach(), a) + least).log()).softmax(2)


@torch.no_grad()
def distances_to(mu: Tensor, votes: Votes) -> Tensor:
    """‖V_ij − μ_j‖ [n i j], for what is recorded."""
    return votes.scaled_distance(mu, torch.ones_like(mu)).sqrt().transpose(1, 2)


def moments(V: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """μ = Σ_i s V and σ² = Σ_i s (V − μ)² [n j d], for votes V [n j i d] and shares s [n j i] that sum to 1 over i.

    σ² is no difference Σ s V² − μ², which would lose all digits for a tight cluster far from zero.
    """
    if is_transformed():
        centre = shares.unsqueeze(2) @ V  # [n j 1 d]
        return centre.squeeze(2), (shares.unsqueeze(2) @ (V - centre).square()).squeeze(2)
    mu, variance = _Moments.apply(V, shares)
    return mu, variance


def scaled_distance(V: Tensor, mu: Tensor, precision: Tensor) -> Tensor:
    """Σ_d (V − μ)²_d · precision_d [n j i], for votes V [n j i d], means and precisions [n j d]."""
    if is_transformed():
        return ((V - mu.unsqueeze(2)).square() @ precision.unsqueeze(3)).squeeze(3)
    distance: Tensor = _ScaledDistance.apply(V, mu, precision)
    return distance


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, V: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        mu, variance = V.new_empty(V.shape[:2] + V.shape[3:]), V.new_empty(V.shape[:2] + V.shape[3:])
        for k in _blocks(V):
            s = shares[k].unsqueeze(2)  # [n j 1 i]
            center = s @ V[k]  # [n j 1 d]
            mu[k] = center.squeeze(2)
            variance[k] = (s @ (V[k] - center).square_()).squeeze(2)
        ctx.save_for_backward(V, shares, mu)
        return mu, variance

    @staticmethod
    def backward(ctx: Any, grad_mu: Tensor, grad_variance: Tensor) -> tuple[Tensor, Tensor]:
        # ∂σ²/∂μ = −2 Σ_i s (V − μ) = 0, since μ is that mean.
        V, shares, mu = ctx.saved_tensors
        if asks_second_derivative():
            g, centred = grad_mu.unsqueeze(2), V - mu.unsqueeze(2)
            slope = centred * grad_variance.unsqueeze(2)
            grad_V = (2 * slope + g) * shares.unsqueeze(3)
            return grad_V, (V @ g.transpose(2, 3) + (centred * slope).sum(3, keepdim=True)).squeeze(3)
        grad_V, grad_shares = torch.empty_like(V), torch.empty_like(shares)
        for k in _blocks(V):
            g, g2 = grad_mu[k].unsqueeze(2), grad_variance[k].unsqueeze(2)  # [n j 1 d]
            centred = V[k] - mu[k].unsqueeze(2)
            slope = centred * g2
            grad_shares[k] = (V[k] @ g.transpose(2, 3) + (centred * slope).sum(3, keepdim=True)).squeeze(3)
            grad_V[k] = slope.mul_(2).add_(g).mul_(shares[k].unsqueeze(3))
        return grad_V, grad_shares


class _ScaledDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, V: Tensor, mu: Tensor, precision: Tensor) -> Tensor:
        distance = V.new_empty(V.shape[:3])
        for k in _blocks(V):
            squared = (V[k] - mu[k].unsqueeze(2)).square_()
            distance[k] = (squared @ precision[k].unsqueeze(3)).squeeze(3)
        ctx.save_for_backward(V, mu, precision)
        return distance

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        V, mu, precision = ctx.saved_tensors
        if asks_second_derivative():
            centred = V - mu.unsqueeze(2)
            pulled = centred * grad.unsqueeze(3)
            grad_V = 2 * pulled * precision.unsqueeze(2)
            return grad_V, -grad_V.sum(2), (pulled * centred).sum(2)
        grad_V, grad_mu, grad_precision = torch.empty_like(V), torch.empty_like(mu), torch.empty_like(mu)
        for k in _blocks(V):
            centred = V[k] - mu[k].unsqueeze(2)
            pulled = centred * grad[k].unsqueeze(3)  # e (V − μ)
            grad_precision[k] = (pulled * centred).sum(2)
            grad_V[k] = pulled.mul_(2 * precision[k].unsqueeze(2))
            grad_mu[k] = -grad_V[k].sum(2)
        return grad_V, grad_mu, grad_precision


def _blocks(V: Tensor) -> list[slice]:
    """Windows at a time: a cache's worth on a CPU; all at once on other devices and for the compiler, which fuses."""
    if V.device.type != "cpu" or torch.compiler.is_compiling():
        return [slice(None)]
    step = max(1, BLOCK // max(1, V[:1].numel()))
    return [slice(k, k + step) for k in range(0, len(V), step)]

"""The votes of a layer and what routings compute from them: sums, agreements, and a Gaussian's moments and distances.

`DenseVotes` are stored. `FusedVotes` are recomputed for each sum by the C++ kernels, and `TritonVotes` (triton/) by
Triton's. Children i come last in couplings [n j i], so that sums over them read memory in order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from capsella._native import kernels
from capsella.routing.convolution import RoutingInputs, RoutingShape
from capsella.routing.functional import asks_second_derivative, check_shape, is_transformed
from capsella.routing.native import (
    check_float32,
    define_operator,
    detached_arrays,
    kernel_shape,
    refuse_second_derivatives,
)

# Vote elements handled at a time on a CPU: 512 KiB in float32, within one core's L2 cache.
BLOCK = 1 << 17
# A child's share of a parent is taken as if the child were at least this active: with no active child at all, the
# parent still has a mean, and gradients stay finite. Beside any child of activation 1e-4 it changes no float32 digit.
LEAST_ACTIVATION = 1e-12
FACTORS = "Tensor poses, Tensor weight, Tensor? vote_offset"  # of votes, in the schemas of operators


@runtime_checkable
class Votes(Protocol):
    """The votes V_ij of children i for parents j in windows n, of which a routing sees only sums."""

    def sums(self, weights: Tensor) -> Tensor:
        """Return Σ_i w_ij V_ij [n j d] for weights [n j i]."""

    def agreements(self, poses: Tensor) -> Tensor:
        """Return V_ij · p_j [n j i] for poses [n j d]."""


@runtime_checkable
class GaussianVotes(Votes, Protocol):
    """Votes to which a Gaussian per parent can be fitted."""

    def moments(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ = Σ_i s V and σ² = Σ_i s (V − μ)² [n j d], for shares s [n j i] that sum to 1 over i."""

    def distances(self, mu: Tensor, precision: Tensor) -> Tensor:
        """Return Σ_d (V − μ)²_d · precision_d [n j i], for means and precisions [n j d]."""


@dataclass(frozen=True, eq=False)
class DenseVotes:
    """Votes in memory [n i j d]; all sums over children are batched matrix products."""

    votes: Tensor

    @property
    def by_parent(self) -> Tensor:
        """The votes as [n j i d]."""
        return self.votes.transpose(1, 2)

    def ones(self) -> Tensor:
        """Return a weight of 1 for every vote [n j i]."""
        return self.votes.new_ones(self.votes.shape[:3]).transpose(1, 2)

    def sums(self, weights: Tensor) -> Tensor:
        """See `Votes`."""
        return (weights.unsqueeze(2) @ self.by_parent).squeeze(2)

    def agreements(self, poses: Tensor) -> Tensor:
        """See `Votes`."""
        return (self.by_parent @ poses.unsqueeze(3)).squeeze(3)

    def moments(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """See `GaussianVotes`; Σ s V² − μ² would lose all digits of σ² for tight clusters far from zero."""
        V = self.by_parent
        if is_transformed():
            centre = shares.unsqueeze(2) @ V  # [n j 1 d]
            return centre.squeeze(2), (shares.unsqueeze(2) @ (V - centre).square()).squeeze(2)
        mu, variance = _Moments.apply(V, shares)
        return mu, variance

    def distances(self, mu: Tensor, precision: Tensor) -> Tensor:
        """See `GaussianVotes`."""
        if is_transformed():
            return ((self.by_parent - mu.unsqueeze(2)).square() @ precision.unsqueeze(3)).squeeze(3)
        distance: Tensor = _Distances.apply(self.by_parent, mu, precision)
        return distance


def shares_of(log_R: Tensor, a: Tensor) -> Tensor:
    """Return each child's share R a / Σ_i R a of a parent's data [n j i], for ln R [n j i] and activations a [n 1 i].

    It is a softmax over the children, so it is exact even if the sum underflows. An activation of 0 gets the gradient
    of its share, unless no child is active.
    """
    off = (a < LEAST_ACTIVATION).all(2, keepdim=True)
    least = (LEAST_ACTIVATION - a).clamp(min=0).detach()
    return (log_R + (torch.where(off, a.detach(), a) + least).log()).softmax(2)


@torch.no_grad()
def distances_to(mu: Tensor, votes: GaussianVotes) -> Tensor:
    """Return ‖V_ij − μ_j‖ [n i j], for traces."""
    return votes.distances(mu, torch.ones_like(mu)).sqrt().transpose(1, 2)


# Left to autograd, each iteration would keep two more tensors of the votes' size: V − μ and its square. Both are
# computed again in the backward pass, block by block, so that on a CPU they stay in its cache. torch.func and forward
# derivatives take no custom backward pass: they get the plain sums above.
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


class _Distances(torch.autograd.Function):
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
    """Return slices of windows: a cache's worth on a CPU; all on other devices and for the compiler, which fuses."""
    if V.device.type != "cpu" or torch.compiler.is_compiling():
        return [slice(None)]
    step = max(1, BLOCK // max(1, V[:1].numel()))
    return [slice(k, k + step) for k in range(0, len(V), step)]


@dataclass(frozen=True, eq=False)
class FusedVotes:
    """The votes of a layer, which the C++ kernels of csrc/votes.cpp recompute for each sum, in float32.

    No gradient reaches the vote offset, and there are no second derivatives.
    """

    inputs: RoutingInputs

    def ones(self) -> Tensor:
        """Return a weight of 1 for every vote [n j i]."""
        shape = self.inputs.shape
        return self.inputs.poses.new_ones(shape.n, shape.i, shape.c_out).transpose(1, 2)

    def sums(self, weights: Tensor) -> Tensor:
        """See `Votes`.

        Raises:
            ArgumentError: weights of another shape.
        """
        shape = self.inputs.shape
        check_shape("weights", weights, (shape.n, shape.c_out, shape.i), "[n j i]")
        sums: Tensor = torch.ops.capsella.capsule_conv_sums.default(
            *self._factors, weights.transpose(1, 2), list(shape)
        )
        return sums

    def agreements(self, poses: Tensor) -> Tensor:
        """See `Votes`.

        Raises:
            ArgumentError: poses of another shape.
        """
        shape = self.inputs.shape
        check_shape("poses", poses, (shape.n, shape.c_out, shape.d), "[n j d]")
        agreements: Tensor = torch.ops.capsella.capsule_conv_agreements.default(*self._factors, poses, list(shape))
        return agreements.transpose(1, 2)

    @property
    def _factors(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.inputs.poses, self.inputs.weight, self.inputs.vote_offset


def _register(kind: str, argument: str, schema: str, result: Callable[[RoutingShape], tuple[int, ...]]) -> None:
    """Register `capsella::capsule_conv_KIND`, a product of votes with weights or with parents' poses."""

    def fake(poses: Tensor, weight: Tensor, offset: Tensor | None, other: Tensor, sizes: Sequence[int]) -> Tensor:
        return poses.new_empty(result(RoutingShape._make(sizes)))

    def run(poses: Tensor, weight: Tensor, offset: Tensor | None, other: Tensor, sizes: Sequence[int]) -> Tensor:
        product = fake(poses, weight, offset, other, sizes)
        _run(f"vote_{kind}", sizes, (poses, weight, offset), **{argument: other, kind: product})
        return product

    define_operator(f"capsule_conv_{kind}", f"({FACTORS}, {schema}, SymInt[] sizes) -> Tensor", run, fake)


def _empty_gradients(
    poses: Tensor, weight: Tensor, weights: Tensor, parents: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    return poses.new_empty(poses.shape), weight.new_empty(weight.shape)


def _gradients(
    poses: Tensor, weight: Tensor, weights: Tensor, parents: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    grad_poses, grad_weight = _empty_gradients(poses, weight, weights, parents, sizes)
    results = {"grad_poses": grad_poses, "grad_weight": grad_weight}
    _run("vote_gradients", sizes, (poses, weight, None), weights=weights, poses=parents, **results)
    return grad_poses, grad_weight


def _run(kernel: str, sizes: Sequence[int], factors: tuple[Tensor, Tensor, Tensor | None], **others: Tensor) -> None:
    tensors = dict(zip(("poses", "weight", "vote_offset"), factors, strict=True))
    check_float32(tensors)
    votes = kernels.VoteInputs(**detached_arrays(**tensors))
    getattr(kernels, kernel)(kernel_shape(sizes), votes, **detached_arrays(**others), threads=torch.get_num_threads())


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.sizes = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_sums(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    # The gradient is that of Σ_ij w_ij V_ij·g_j. Sums and agreements share its derivatives by poses and weight.
    *factors, weights = ctx.saved_tensors
    operators = torch.ops.capsella
    agreements = operators.capsule_conv_agreements.default
    of_weights = agreements(*factors, grad, ctx.sizes) if ctx.needs_input_grad[3] else None
    return *operators.capsule_conv_gradients.default(*factors[:2], weights, grad, ctx.sizes), None, of_weights, None


def _differentiate_agreements(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *factors, parents = ctx.saved_tensors
    operators = torch.ops.capsella
    of_parents = operators.capsule_conv_sums.default(*factors, grad, ctx.sizes) if ctx.needs_input_grad[3] else None
    return *operators.capsule_conv_gradients.default(*factors[:2], grad, parents, ctx.sizes), None, of_parents, None


if kernels is not None:
    _register("sums", "weights", "Tensor weights", lambda shape: (shape.n, shape.c_out, shape.d))
    _register("agreements", "poses", "Tensor parents", lambda shape: (shape.n, shape.i, shape.c_out))
    define_operator(
        "capsule_conv_gradients",
        "(Tensor poses, Tensor weight, Tensor weights, Tensor parents, SymInt[] sizes) -> (Tensor, Tensor)",
        _gradients,
        _empty_gradients,
    )
    torch.library.register_autograd("capsella::capsule_conv_sums", _differentiate_sums, setup_context=_save)
    torch.library.register_autograd("capsella::capsule_conv_agreements", _differentiate_agreements, setup_context=_save)
    refuse_second_derivatives("capsule_conv_gradients", "votes")

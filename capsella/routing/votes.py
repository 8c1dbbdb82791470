"""The votes of a layer and what routings compute from them: sums, agreements, and a Gaussian's moments and distances.

`DenseVotes` are stored. `FusedVotes` are recomputed for each sum by the C++ kernels, and `TritonVotes` (triton/) by
Triton's. Children i come last in couplings [n j i], so that sums over them read memory in order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from capsella._native import kernels
from capsella.routing.backends import (
    check_float32,
    define_operator,
    detached_arrays,
    kernel_shape,
    refuse_second_derivatives,
)
from capsella.routing.convolution import RoutingInputs, RoutingShape
from capsella.routing.functional import check_shape, is_traced, is_transformed

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
        """See `GaussianVotes`."""
        moments: tuple[Tensor, Tensor] = _recomputed(_moments, self.by_parent, shares)
        return moments

    def distances(self, mu: Tensor, precision: Tensor) -> Tensor:
        """See `GaussianVotes`."""
        distances: Tensor = _recomputed(_distances, self.by_parent, mu, precision)
        return distances


def _moments(V: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    center = shares.unsqueeze(2) @ V  # [n j 1 d]
    # Σ s V² − μ² would lose all digits of σ² for tight clusters far from zero.
    return center.squeeze(2), (shares.unsqueeze(2) @ (V - center).square()).squeeze(2)


def _distances(V: Tensor, mu: Tensor, precision: Tensor) -> Tensor:
    return ((V - mu.unsqueeze(2)).square() @ precision.unsqueeze(3)).squeeze(3)


def _recomputed(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """Call `function` and compute it again in the backward pass: V − μ and its square are as large as the votes."""
    if not torch.is_grad_enabled() or is_traced() or is_transformed():
        return function(*tensors)
    return checkpoint(function, *tensors, use_reentrant=False, preserve_rng_state=False)


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

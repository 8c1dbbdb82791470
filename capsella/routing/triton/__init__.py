"""Triton kernels of dynamic and EM routing, off by default: `backend="auto"` never takes them.

They have been compiled for GPUs but run only in Triton's interpreter, so their speed is unknown.

Votes are never written to memory: every pass recomputes them from poses and weights, as tiles in registers. Memory
holds one number per child and parent (couplings, logits), the parents' statistics and, in the backward pass, one pose
per child of each window. Routing needs only three passes over δ = V − μ (μ = 0 if it is not given):

* `Factors.sums`: Σ_i s δ and Σ_i s δ²,
* `Factors.scores`: Σ_d δ (α + β δ),
* `Factors.gradients`: for ∂L/∂V = s (α + β δ), the gradients of poses and weight. The vote offset gets none.

Sums are taken in a fixed order: results are the same on every run. They are float32 (float64 for float64 poses).
Products are exact to float32 too, unless `torch.set_float32_matmul_precision` allows less: three TF32 products then
stand for one.

The kernels themselves are in kernels.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from capsella.routing.convolution import Geometry, RoutingInputs, by_window, slot_positions
from capsella.routing.triton import kernels


def triton_votes(inputs: RoutingInputs) -> tuple["TritonVotes", Tensor]:
    """Return the votes of a layer on a CUDA device, and the activations [n i] of the children in its windows.

    Poses and weight are float32, bfloat16 or float16; everything computed from the votes is float32 (float64 for
    float64), as are the activations.
    """
    offset = inputs.vote_offset
    # Converted here, so that autograd adds up the gradients of all passes before it rounds them to shorter types.
    dtype = torch.promote_types(torch.promote_types(inputs.poses.dtype, inputs.weight.dtype), torch.float32)
    factors = Factors(
        poses=inputs.poses.to(dtype).contiguous(),
        weight=inputs.weight.to(dtype).contiguous(),
        offset=None if offset is None else offset.to(dtype),
        slots=slot_positions(inputs).int(),
    )
    return TritonVotes(inputs.geometry, factors), by_window(inputs, inputs.activations.to(dtype))


class Factors(NamedTuple):
    """The factors of votes: V = u W, plus `offset` where there is one, for every child of every window.

    Attributes:
        poses, weight: [b h w c_in p] and [kh kw c_in c_out q e], of one type.
        offset: [h w d] or None.
        slots: [sites k], the position of the child in each slot of each window of an image.
    """

    poses: Tensor
    weight: Tensor
    offset: Tensor | None
    slots: Tensor

    @property
    def constants(self) -> dict[str, Any]:
        """The constants that a kernel is compiled for."""
        constants = kernels.constants_of(self.poses, self.weight, self.slots)
        return {**constants, "OFFSET": self.offset is not None}

    def sums(self, shares: Tensor, mu: Tensor | None = None) -> Tensor:
        """Return Σ_i s δ, and where μ is given Σ_i s δ²: [1 n j d] or [2 n j d], for shares [n j i] and μ [n j d]."""
        constants = self.constants
        area, windows, d = self.poses.shape[1:3].numel(), len(shares), constants["R"] * constants["E"]
        grid = kernels.grid_of(constants, windows)
        out = shares.new_empty(grid[2], 1 if mu is None else 2, *shares.shape[:2], d)
        kernels.launch(
            kernels.sums_kernel, grid, *self[:4], area, windows, shares, mu, out,
            **constants, CENTRED=mu is not None, CHUNK=kernels.CHILDREN,
        )  # fmt: skip
        return out.sum(0)

    def scores(self, alpha: Tensor, mu: Tensor | None = None, beta: Tensor | None = None) -> Tensor:
        """Return Σ_d δ (α + β δ) [n j i], for α, μ, β [n j d]; μ and β come together."""
        constants = self.constants
        area, windows = self.poses.shape[1:3].numel(), len(alpha)
        out = alpha.new_empty(*alpha.shape[:2], constants["K"] * constants["C_IN"])
        kernels.launch(
            kernels.scores_kernel, kernels.grid_of(constants, windows), *self[:4], area, windows, alpha, mu, beta, out,
            **constants, CENTRED=mu is not None, CHUNK=kernels.CHILDREN,
        )  # fmt: skip
        return out

    def gradients(
        self, geometry: Geometry, shares: Tensor, alpha: Tensor, mu: Tensor | None = None, beta: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        """Return a gradient or None for the geometry and each factor, for ∂L/∂V = s (α + β δ)."""
        constants = self.constants
        area, windows, children = self.poses.shape[1:3].numel(), len(alpha), shares.shape[2]
        weights = constants["C_IN"] if constants["TIED"] else children
        groups = kernels.triton.cdiv(windows, constants["BM"] // constants["RP"] * kernels.BLOCKS)
        per_program = 1 if constants["TIED"] else kernels.WEIGHTS
        grad_poses = alpha.new_zeros(windows, children, self.poses.shape[4])
        grad_weight = alpha.new_zeros(groups, *self.weight.shape)
        kernels.launch(
            kernels.gradients_kernel, (kernels.triton.cdiv(weights, per_program), groups),
            *self[:4], area, windows, shares, alpha, mu, beta, grad_poses, grad_weight,
            **constants, CENTRED=mu is not None, PER_PROGRAM=per_program, GROUP=kernels.BLOCKS,
        )  # fmt: skip
        return None, _add_windows(grad_poses, geometry, self.poses.shape), grad_weight.sum(0), None, None


def _keep(ctx: Any, geometry: Geometry, factors: Factors, *others: Tensor) -> None:
    """Save what the backward pass of a pass over votes needs."""
    ctx.geometry = geometry
    ctx.save_for_backward(factors.poses, factors.weight, factors.offset, factors.slots, *others)


def _kept(ctx: Any) -> tuple[Factors, list[Tensor]]:
    """Return the factors and the other tensors that `_keep` saved."""
    poses, weight, offset, slots, *others = ctx.saved_tensors
    return Factors(poses, weight, offset, slots), others


def _add_windows(per_child: Tensor, geometry: Geometry, shape: Sequence[int]) -> Tensor:
    """Apply the adjoint of `by_window`: add [n i p], which windows that overlap share, up to `shape` [b h w c_in p]."""
    batch, height, width, c_in, p = shape
    children = per_child.reshape(batch, *geometry.grid((height, width)), *geometry.kernel, c_in, p)
    children = children.movedim((3, 4), (-2, -1))
    for axis, size in ((1, width), (0, height)):
        whole = list(children.shape[:-1])
        whole[1 + axis] = size
        children = torch.ops.aten.unfold_backward(
            children, whole, 1 + axis, geometry.kernel[axis], geometry.stride[axis]
        )
    return children


@dataclass(frozen=True)
class TritonVotes:
    """`GaussianVotes` that are recomputed in each pass."""

    geometry: Geometry
    factors: Factors

    def sums(self, weights: Tensor) -> Tensor:
        """See `Votes`."""
        s: Tensor = _Sums.apply(self.geometry, *self.factors, weights)
        return s

    def agreements(self, poses: Tensor) -> Tensor:
        """See `Votes`."""
        agreements: Tensor = _Agreements.apply(self.geometry, *self.factors, poses)
        return agreements

    def moments(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """See `GaussianVotes`."""
        mu, variance = _Moments.apply(self.geometry, *self.factors, shares)
        return mu, variance

    def distances(self, mu: Tensor, precision: Tensor) -> Tensor:
        """See `GaussianVotes`."""
        distances: Tensor = _Distances.apply(self.geometry, *self.factors, mu, precision)
        return distances


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, geometry: Geometry, *inputs: Any) -> Tensor:
        *factors, c = inputs
        V = Factors(*factors)
        _keep(ctx, geometry, V, c)
        return V.sums(c)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        V, (c,) = _kept(ctx)
        return *V.gradients(ctx.geometry, c, grad), V.scores(grad)


class _Agreements(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, geometry: Geometry, *inputs: Any) -> Tensor:
        *factors, v = inputs
        V = Factors(*factors)
        _keep(ctx, geometry, V, v)
        return V.scores(v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        V, (v,) = _kept(ctx)
        return *V.gradients(ctx.geometry, grad, v), V.sums(grad)[0]


class _Moments(torch.autograd.Function):
    """The formulas of `DenseVotes.moments`, with δ = V − μ."""

    @staticmethod
    def forward(ctx: Any, geometry: Geometry, *inputs: Any) -> tuple[Tensor, Tensor]:
        *factors, shares = inputs
        V = Factors(*factors)
        (mu,) = V.sums(shares)
        _, variance = V.sums(shares, mu)
        _keep(ctx, geometry, V, shares, mu)
        return mu, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mu: Tensor, grad_variance: Tensor) -> tuple[Tensor | None, ...]:
        V, (shares, mu) = _kept(ctx)
        # ∂μ/∂s = V = μ + δ, ∂σ²/∂s = δ²; ∂L/∂V = s (g + 2 g₂ δ)
        grad_shares = V.scores(grad_mu, mu, grad_variance) + (mu * grad_mu).sum(2, keepdim=True)
        return *V.gradients(ctx.geometry, shares, grad_mu, mu, 2 * grad_variance), grad_shares


class _Distances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, geometry: Geometry, *inputs: Any) -> Tensor:
        *factors, mu, precision = inputs
        V = Factors(*factors)
        _keep(ctx, geometry, V, mu, precision)
        return V.scores(torch.zeros_like(mu), mu, precision)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        V, (mu, precision) = _kept(ctx)
        # ∂L/∂V = e 2 precision δ
        first, grad_precision = V.sums(grad, mu)
        of_factors = V.gradients(ctx.geometry, grad, torch.zeros_like(mu), mu, 2 * precision)
        return *of_factors, -2 * precision * first, grad_precision

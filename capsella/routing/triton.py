"""Routing by Triton that never writes its votes: every pass computes them again from poses and weights.

Memory holds one number for each child and parent (couplings, logits), in the backward pass one pose for each child of
each window, and the parents' statistics; votes exist only as tiles in registers. All that routing asks of votes,
forward and backward, is three passes over δ = V − μ (μ = 0 where it is not given):

* `Factors.sums`: Σ_i s δ and Σ_i s δ²,
* `Factors.scores`: Σ_d δ (α + β δ),
* `Factors.gradients`: for ∂L/∂V = s (α + β δ), the gradients of poses, weight and vote offset.

Sums are taken in a fixed order: results are the same on every run. They are float32 (float64 for float64 poses).
Products are exact to float32 too, unless `torch.set_float32_matmul_precision` allows less: three TF32 products then
stand for one. bfloat16 and float16 numbers are TF32 numbers, so one TF32 product is exact for their votes.

The kernels themselves are in triton_kernels.py.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from capsella.routing.convolution import CapsuleConv, Geometry, gather_windows, slot_positions
from capsella.routing.triton_kernels import (
    BLOCKS,
    CHILDREN,
    INTERPRETED,
    WEIGHTS,
    constants_of,
    gradients_kernel,
    grid_of,
    launch,
    scores_kernel,
    sums_kernel,
    triton,
)


@torch.library.custom_op("capsella::vote_sums", mutates_args=())
def _vote_sums(
    poses: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    slots: Tensor,
    short: bool,
    shares: Tensor,
    mu: Tensor | None,
) -> Tensor:
    """[1 n j d], or [2 n j d] where μ is given."""
    constants = constants_of(poses, weight, slots, short)
    area, windows, d = poses.shape[1:3].numel(), len(shares), constants["R"] * constants["E"]
    grid = grid_of(constants, windows)
    out = shares.new_empty(grid[2], 1 if mu is None else 2, *shares.shape[:2], d)
    launch(
        sums_kernel, grid, poses, weight, offset, slots, area, windows, shares, mu, out,
        **constants, OFFSET=offset is not None, CENTRED=mu is not None, CHUNK=CHILDREN,
    )  # fmt: skip
    return out.sum(0)


@_vote_sums.register_fake
def _(poses: Tensor, weight: Tensor, offset: Any, slots: Any, short: Any, shares: Tensor, mu: Any) -> Tensor:
    d = poses.shape[4] // weight.shape[4] * weight.shape[5]
    return shares.new_empty(1 if mu is None else 2, *shares.shape[:2], d)


@torch.library.custom_op("capsella::vote_scores", mutates_args=())
def _vote_scores(
    poses: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    slots: Tensor,
    short: bool,
    alpha: Tensor,
    mu: Tensor | None,
    beta: Tensor | None,
) -> Tensor:
    """[n j i]."""
    constants = constants_of(poses, weight, slots, short)
    area, windows = poses.shape[1:3].numel(), len(alpha)
    out = alpha.new_empty(*alpha.shape[:2], constants["K"] * constants["C_IN"])
    launch(
        scores_kernel, grid_of(constants, windows), poses, weight, offset, slots, area, windows, alpha, mu, beta, out,
        **constants, OFFSET=offset is not None, CENTRED=mu is not None, CHUNK=CHILDREN,
    )  # fmt: skip
    return out


@_vote_scores.register_fake
def _(poses: Tensor, weight: Any, offset: Any, slots: Tensor, short: Any, alpha: Tensor, *rest: Any) -> Tensor:
    return alpha.new_empty(*alpha.shape[:2], slots.shape[1] * poses.shape[3])


@torch.library.custom_op("capsella::vote_gradients", mutates_args=())
def _vote_gradients(
    poses: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    slots: Tensor,
    short: bool,
    shares: Tensor,
    alpha: Tensor,
    mu: Tensor | None,
    beta: Tensor | None,
    offset_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the pose of each child of each window [n i p], the weight, and each such child's offset [n i d]."""
    constants = constants_of(poses, weight, slots, short)
    area, windows, children = poses.shape[1:3].numel(), len(alpha), shares.shape[2]
    weights = constants["C_IN"] if constants["TIED"] else children
    groups = triton.cdiv(windows, constants["BM"] // constants["RP"] * BLOCKS)
    per_program = 1 if constants["TIED"] else WEIGHTS
    grad_poses = alpha.new_zeros(windows, children, poses.shape[4])
    grad_weight = alpha.new_zeros(groups, *weight.shape)
    grad_offset = alpha.new_zeros(windows if offset_wanted else 0, children, alpha.shape[2])
    launch(
        gradients_kernel, (triton.cdiv(weights, per_program), groups),
        poses, weight, offset, slots, area, windows, shares, alpha, mu, beta, grad_poses, grad_weight, grad_offset,
        **constants, OFFSET=offset is not None, CENTRED=mu is not None,
        OFFSET_WANTED=offset_wanted, PER_PROGRAM=per_program, GROUP=BLOCKS,
    )  # fmt: skip
    return grad_poses, grad_weight.sum(0), grad_offset


@_vote_gradients.register_fake
def _(
    poses: Tensor,
    weight: Tensor,
    offset: Any,
    slots: Any,
    short: Any,
    shares: Tensor,
    alpha: Tensor,
    mu: Any,
    beta: Any,
    offset_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    windows, children = len(shares), shares.shape[2]
    return (
        alpha.new_empty(windows, children, poses.shape[4]),
        alpha.new_empty(weight.shape),
        alpha.new_empty(windows if offset_wanted else 0, children, alpha.shape[2]),
    )


class Factors(NamedTuple):
    """What votes are made of: V = u W, plus `offset` where there is one, for every child of every window.

    poses [b h w c_in p] and weight [kh kw c_in c_out q e] of one type; offset [h w d] or None; slots [sites k], the
    position of the child in each slot of each window of an image; short, whether poses and weight hold 16-bit numbers.
    """

    poses: Tensor
    weight: Tensor
    offset: Tensor | None
    slots: Tensor
    short: bool

    def sums(self, shares: Tensor, mu: Tensor | None = None) -> Tensor:
        """Σ_i s δ, and where μ is given Σ_i s δ²: [1 n j d] or [2 n j d], for shares [n j i] and μ [n j d]."""
        return torch.ops.capsella.vote_sums(*self, shares, mu)

    def scores(self, alpha: Tensor, mu: Tensor | None = None, beta: Tensor | None = None) -> Tensor:
        """Σ_d δ (α + β δ) [n j i], for α, μ, β [n j d]; μ and β come together."""
        return torch.ops.capsella.vote_scores(*self, alpha, mu, beta)

    def gradients(
        self, ctx: Any, shares: Tensor, alpha: Tensor, mu: Tensor | None = None, beta: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        """For the geometry and each of these factors its gradient or None, where that of the votes is s (α + β δ).

        ctx: that of the pass, which `keep` has filled.
        """
        wanted = ctx.needs_input_grad[1 + Factors._fields.index("offset")]
        by_window, weight, offset = torch.ops.capsella.vote_gradients(*self, shares, alpha, mu, beta, wanted)
        batch, *size, c_in, p = self.poses.shape
        window = (batch, *ctx.geometry.grid((size[0], size[1])), *ctx.geometry.kernel, c_in)
        poses = _add_windows(by_window.reshape(*window, p), ctx.geometry, size)
        if wanted:
            of_positions = offset.reshape(*window, alpha.shape[2]).sum(5)
            of_grid = _add_windows(of_positions, ctx.geometry, size).sum(0)
        return None, poses, weight, of_grid if wanted else None, None, None


def keep(ctx: Any, geometry: Geometry, factors: Factors, *others: Tensor) -> None:
    """Save what a pass over votes, an autograd function of geometry, factors and others, needs on its way back."""
    ctx.geometry, ctx.short = geometry, factors.short
    ctx.save_for_backward(factors.poses, factors.weight, factors.offset, factors.slots, *others)


def kept(ctx: Any) -> tuple[Factors, list[Tensor]]:
    """The factors and others that `keep` saved."""
    poses, weight, offset, slots, *others = ctx.saved_tensors
    return Factors(poses, weight, offset, slots, ctx.short), others


def vote_factors(conv: CapsuleConv) -> tuple[Factors, Tensor]:
    """What the votes of a capsule convolution are made of, and the activations [n i] of the children in its windows.

    Activations are float32, or float64 for float64 poses, as is everything computed from them.

    Raises:
        ValueError: poses that are not on a CUDA device.
    """
    device, sizes = conv.poses.device, conv.sizes
    if not (conv.poses.is_cuda or INTERPRETED):
        raise ValueError(
            f"backend: 'triton' needs poses on a CUDA device, got {device}; move model and images there, or take "
            "backend 'eager' (with TRITON_INTERPRET=1 in the environment, kernels run on a CPU: slow, for tests)"
        )
    of_votes = torch.promote_types(conv.poses.dtype, conv.weight.dtype)
    # Converted here, for autograd to add up the gradients of all passes before it rounds them to shorter types.
    dtype = torch.promote_types(of_votes, torch.float32)
    factors = Factors(
        poses=conv.poses.to(dtype).contiguous(),
        weight=conv.weight.to(dtype).contiguous(),
        offset=None if conv.vote_offset is None else conv.vote_offset.to(dtype),
        slots=slot_positions(conv).int(),
        short=of_votes.itemsize == 2,
    )
    return factors, gather_windows(conv.activations.to(dtype), conv.geometry).reshape(sizes.n, sizes.i)


def _add_windows(windows: Tensor, geometry: Geometry, size: Sequence[int]) -> Tensor:
    """The adjoint of `gather_windows`: [b h' w' kh kw *rest] → [b h w *rest], windows added where they overlap."""
    children = windows.movedim((3, 4), (-2, -1))
    for axis in (1, 0):
        shape = list(children.shape[:-1])
        shape[1 + axis] = size[axis]
        children = torch.ops.aten.unfold_backward(
            children, shape, 1 + axis, geometry.kernel[axis], geometry.stride[axis]
        )
    return children

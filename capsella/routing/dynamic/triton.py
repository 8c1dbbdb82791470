"""Dynamic routing of a capsule convolution whose votes are never written: Triton kernels, forward and backward."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from capsella.routing.checks import check_shape
from capsella.routing.convolution import Geometry, check_capsule_conv
from capsella.routing.dynamic.eager import dynamic_procedure
from capsella.routing.triton import Factors, vote_factors
from capsella.types import Capsules

if TYPE_CHECKING:
    from capsella.routing.dynamic import DynamicRouting


def dynamic_capsule_conv_triton(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    geometry: Geometry,
    vote_offset: Tensor | None,
    bias: Tensor | None,
    routing: "DynamicRouting",
) -> Capsules:
    """`DynamicRouting.capsule_conv` on a CUDA device: Sabour et al. 2017, Procedure 1, in memory O(children × parents).

    Poses and weight of float32, bfloat16 or float16; results are float32 (float64 for float64).

    Raises:
        ValueError: shapes that disagree, or tensors that are not on a CUDA device.
    """
    *grid, d = check_capsule_conv(poses, activations, weight, geometry, vote_offset)
    factors, children = vote_factors(poses, activations, weight, geometry, vote_offset)
    if bias is not None:
        check_shape("bias", bias, (grid[3], d), "[j d]")
        bias = bias.to(children.dtype)
    logits = children.new_zeros(len(children), grid[3], children.shape[1])
    with torch.autocast(poses.device.type, enabled=False):
        routed = dynamic_procedure(_TritonVotes(geometry, factors), logits, routing.iterations, bias, routing.leaky)
    return Capsules(routed.poses.reshape(*grid, d), routed.activations.reshape(grid))


@dataclass(frozen=True)
class _TritonVotes:
    """`Votes` that are computed anew in each pass."""

    geometry: Geometry
    factors: Factors

    def weighted_sum(self, couplings: Tensor) -> Tensor:
        s: Tensor = _WeightedSum.apply(self.geometry, *self.factors, couplings)
        return s

    def agreement(self, v: Tensor) -> Tensor:
        agreement: Tensor = _Agreement.apply(self.geometry, *self.factors, v)
        return agreement


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        geometry: Geometry,
        poses: Tensor,
        weight: Tensor,
        offset: Tensor | None,
        slots: Tensor,
        short: bool,
        c: Tensor,
    ) -> Tensor:
        factors = Factors(poses, weight, offset, slots, short)
        ctx.fixed = geometry, short
        ctx.save_for_backward(*factors[:4], c)
        return factors.sums(c)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        poses, weight, offset, slots, c = ctx.saved_tensors
        geometry, short = ctx.fixed
        V = Factors(poses, weight, offset, slots, short)
        of_factors = V.gradients(geometry, c, grad, offset_wanted=ctx.needs_input_grad[3])
        return None, *of_factors, V.scores(grad)


class _Agreement(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        geometry: Geometry,
        poses: Tensor,
        weight: Tensor,
        offset: Tensor | None,
        slots: Tensor,
        short: bool,
        v: Tensor,
    ) -> Tensor:
        factors = Factors(poses, weight, offset, slots, short)
        ctx.fixed = geometry, short
        ctx.save_for_backward(*factors[:4], v)
        return factors.scores(v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        poses, weight, offset, slots, v = ctx.saved_tensors
        geometry, short = ctx.fixed
        V = Factors(poses, weight, offset, slots, short)
        of_factors = V.gradients(geometry, grad, v, offset_wanted=ctx.needs_input_grad[3])
        return None, *of_factors, V.sums(grad)[0]

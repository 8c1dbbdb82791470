"""Dynamic routing of a capsule convolution whose votes are never written: Triton kernels, forward and backward."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from capsella.routing.convolution import CapsuleConv, Geometry
from capsella.routing.dynamic.eager import dynamic_procedure
from capsella.routing.triton import Factors, keep, kept, vote_factors
from capsella.types import Capsules


def dynamic_capsule_conv_triton(conv: CapsuleConv, iterations: int, bias: Tensor | None, leaky: bool) -> Capsules:
    """`DynamicRouting.capsule_conv` on a CUDA device: Sabour et al. 2017, Procedure 1, in memory O(children × parents).

    Poses and weight of float32, bfloat16 or float16; results are float32 (float64 for float64).

    Raises:
        ValueError: tensors that are not on a CUDA device.
    """
    factors, children = vote_factors(conv)
    bias = None if bias is None else bias.to(children.dtype)
    logits = children.new_zeros(conv.sizes.n, conv.sizes.c_out, conv.sizes.i)
    with torch.autocast(conv.poses.device.type, enabled=False):
        routed = dynamic_procedure(_TritonVotes(conv.geometry, factors), logits, iterations, bias, leaky)
    return conv.parents(routed.poses, routed.activations)


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
    def forward(ctx: Any, geometry: Geometry, *inputs: Any) -> Tensor:
        *factors, c = inputs
        V = Factors(*factors)
        keep(ctx, geometry, V, c)
        return V.sums(c)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        V, (c,) = kept(ctx)
        return *V.gradients(ctx, c, grad), V.scores(grad)


class _Agreement(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, geometry: Geometry, *inputs: Any) -> Tensor:
        *factors, v = inputs
        V = Factors(*factors)
        keep(ctx, geometry, V, v)
        return V.scores(v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        V, (v,) = kept(ctx)
        return *V.gradients(ctx, grad, v), V.sums(grad)[0]

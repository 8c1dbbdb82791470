"""Dynamic routing of a capsule convolution by the C++ kernels of csrc/dynamic.cpp, without stored votes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from capsella._native import kernels
from capsella.routing.convolution import CapsuleConv, ConvSizes
from capsella.routing.native import arrays, gradients_of, kernel_arguments
from capsella.types import Capsules


class Call(NamedTuple):
    """What the operator takes, in the order of `CALL`: `DynamicInputs`, sizes, `DynamicOptions` of csrc/kernels.h."""

    poses: Tensor
    weight: Tensor
    vote_offset: Tensor | None
    bias: Tensor | None
    sizes: list[int]
    iterations: int
    leaky: bool


CALL = "Tensor poses, Tensor weight, Tensor? vote_offset, Tensor? bias, SymInt[] sizes, int iterations, bool leaky"
TENSORS = Call._fields.index("sizes")


def dynamic_capsule_conv_native(conv: CapsuleConv, iterations: int, bias: Tensor | None, leaky: bool) -> Capsules:
    """Sabour et al. 2017, Procedure 1, for every window of the grid, in float32.

    No gradient reaches the vote offset, which a tied layer must not have.
    """
    call = Call(conv.poses, conv.weight, conv.vote_offset, bias, list(conv.sizes), iterations, leaky)
    v, a, _ = _dynamic_capsule_conv(*call)
    return Capsules(v, a)


@torch.library.custom_op(
    "capsella::dynamic_capsule_conv", mutates_args=(), schema=f"({CALL}) -> (Tensor, Tensor, Tensor)"
)
def _dynamic_capsule_conv(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """For a `Call` the parents' poses and activations, and s of every iteration, where the backward pass starts."""
    call = Call(*inputs)
    v, a, sums = _empty_result(call)
    kernels.dynamic_forward(
        *kernel_arguments(call, kernels.DynamicOptions, kernels.DynamicInputs),
        sums=sums,
        poses=v,
        activations=a,
        threads=torch.get_num_threads(),
    )
    return v, a, sums


@_dynamic_capsule_conv.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_result(Call(*inputs))


def _empty_result(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    sizes, new = ConvSizes._make(call.sizes), call.poses.new_empty
    return new(*sizes.grid, sizes.d), new(sizes.grid), new(sizes.n, call.iterations, sizes.c_out, sizes.d)


@torch.library.custom_op(
    "capsella::dynamic_capsule_conv_backward",
    mutates_args=(),
    schema=f"(Tensor grad_poses, Tensor grad_activations, Tensor sums, {CALL}) -> (Tensor, Tensor, Tensor)",
)
def _dynamic_capsule_conv_backward(
    grad_poses: Tensor, grad_activations: Tensor, sums: Tensor, *inputs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of poses, weight and bias (of the bias that there could be, where there is none)."""
    call = Call(*inputs)
    poses, weight, bias = gradients = _empty_gradients(call, sums)
    kernels.dynamic_backward(
        *kernel_arguments(call, kernels.DynamicOptions, kernels.DynamicInputs),
        **arrays(sums=sums, grad_poses=grad_poses, grad_activations=grad_activations),
        gradients=kernels.DynamicGradients(poses=poses, weight=weight, bias=bias),
        threads=torch.get_num_threads(),
    )
    return gradients


@_dynamic_capsule_conv_backward.register_fake
def _(grad_poses: Tensor, grad_activations: Tensor, sums: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_gradients(Call(*inputs), sums)


def _empty_gradients(call: Call, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    of_poses, of_weight = (x.new_empty(x.shape) for x in (call.poses, call.weight))
    return of_poses, of_weight, sums.new_empty(sums.shape[2:])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, sums = output
    ctx.save_for_backward(sums, *inputs[:TENSORS])
    ctx.numbers = inputs[TENSORS:]


def _backward(ctx: Any, grad_poses: Tensor, grad_activations: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    poses, weight, bias = _dynamic_capsule_conv_backward(grad_poses, grad_activations, *ctx.saved_tensors, *ctx.numbers)
    has_bias = Call(*ctx.saved_tensors[1:], *ctx.numbers).bias is not None
    return gradients_of(Call, poses=poses, weight=weight, bias=bias if has_bias else None)


_dynamic_capsule_conv.register_autograd(_backward, setup_context=_keep)

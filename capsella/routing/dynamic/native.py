"""Dynamic routing of a capsule convolution by the C++ kernels of csrc/dynamic.cpp, without stored votes."""

from typing import Any

import torch
from torch import Tensor

from capsella._native import kernels
from capsella.routing.convolution import Geometry
from capsella.routing.native import conv_shape, ready
from capsella.types import Capsules


def dynamic_capsule_conv_native(
    poses: Tensor,
    weight: Tensor,
    geometry: Geometry,
    vote_offset: Tensor | None,
    iterations: int,
    bias: Tensor | None,
    leaky: bool,
) -> Capsules:
    """Sabour et al. 2017, Procedure 1, for every window of the grid.

    Shapes as in `Routing.capsule_conv`, and checked there; float32. No gradient reaches `vote_offset`, which a tied
    layer must not have.
    """
    shape = conv_shape(poses, weight, geometry)
    parents = _dynamic_capsule_conv(poses, weight, vote_offset, bias, shape, geometry.tied, iterations, leaky)
    return Capsules(parents[0], parents[1])


@torch.library.custom_op("capsella::dynamic_capsule_conv", mutates_args=())
def _dynamic_capsule_conv(
    poses: Tensor,
    weight: Tensor,
    vote_offset: Tensor | None,
    bias: Tensor | None,
    shape: list[int],
    tied: bool,
    iterations: int,
    leaky: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The parents' poses and activations, and s of every iteration, from which the backward pass starts."""
    v, a, sums = _empty_outputs(poses, shape, iterations)
    tensors = kernels.DynamicTensors(*ready(poses, weight, vote_offset, bias))
    kernels.dynamic_forward(shape, tied, iterations, leaky, tensors, sums, v, a, torch.get_num_threads())
    return v, a, sums


def _empty_outputs(poses: Tensor, shape: list[int], iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, rows, columns, c_out = shape[0], *shape[4:7]
    d = shape[11] * shape[13]
    grid = (batch, rows, columns, c_out)
    return (
        poses.new_empty(*grid, d),
        poses.new_empty(grid),
        poses.new_empty(batch * rows * columns, iterations, c_out, d),
    )


@_dynamic_capsule_conv.register_fake
def _(poses, weight, vote_offset, bias, shape, tied, iterations, leaky):  # type: ignore[no-untyped-def]
    return _empty_outputs(poses, shape, iterations)


@torch.library.custom_op("capsella::dynamic_capsule_conv_backward", mutates_args=())
def _dynamic_capsule_conv_backward(
    grad_poses: Tensor,
    grad_activations: Tensor,
    poses: Tensor,
    weight: Tensor,
    vote_offset: Tensor | None,
    bias: Tensor | None,
    sums: Tensor,
    shape: list[int],
    tied: bool,
    iterations: int,
    leaky: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of poses, weight and bias (of the bias that there could be, where there is none)."""
    gradients = _empty_gradients(poses, weight, sums)
    inputs = ready(poses, weight, vote_offset, bias)
    kernels.dynamic_backward(
        shape,
        tied,
        iterations,
        leaky,
        kernels.DynamicTensors(*inputs),
        *ready(sums, grad_poses, grad_activations),
        *gradients,
        torch.get_num_threads(),
    )
    return gradients


def _empty_gradients(poses: Tensor, weight: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return poses.new_empty(poses.shape), weight.new_empty(weight.shape), sums.new_empty(sums.shape[2:])


@_dynamic_capsule_conv_backward.register_fake
def _(grad_poses, grad_activations, poses, weight, vote_offset, bias, sums, shape, tied, iterations, leaky):  # type: ignore
    return _empty_gradients(poses, weight, sums)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4], output[2])
    ctx.options = inputs[4:]


def _backward(ctx: Any, grad_poses: Tensor, grad_activations: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    poses, weight, bias = _dynamic_capsule_conv_backward(grad_poses, grad_activations, *ctx.saved_tensors, *ctx.options)
    return poses, weight, None, bias if ctx.needs_input_grad[3] else None, None, None, None, None


_dynamic_capsule_conv.register_autograd(_backward, setup_context=_keep)

"""EM routing of a capsule convolution by the C++ kernels of csrc/em.h, forward and backward, without stored votes."""

from typing import Any

import torch
from torch import Tensor

from capsella._native import kernels
from capsella.routing.convolution import Geometry, check_capsule_conv
from capsella.routing.em.settings import EMSettings, start_couplings
from capsella.routing.native import conv_shape, ready
from capsella.types import Capsules


def em_capsule_conv_native(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    geometry: Geometry,
    vote_offset: Tensor | None,
    beta_u: Tensor,
    beta_a: Tensor,
    settings: EMSettings,
    compete_everywhere: bool,
) -> Capsules:
    """Hinton et al. 2018, Procedure 1, for every window of the grid; shapes as in `Routing.capsule_conv`, float32."""
    check_capsule_conv(poses, activations, weight, geometry, vote_offset)
    slots = geometry.kernel[0] * geometry.kernel[1] * weight.shape[2]
    start = None if settings.start == "even" else start_couplings(slots, weight.shape[3], settings).to(poses)
    parents = _em_capsule_conv(
        poses,
        activations,
        weight,
        vote_offset,
        beta_u,
        beta_a,
        start,
        conv_shape(poses, weight, geometry),
        geometry.tied,
        [settings.inverse_temperature_at(t) for t in range(settings.iterations)],
        settings.variance_floor,
        settings.cost_scale or 0.0,
        settings.standardise_costs,
        compete_everywhere,
    )
    return Capsules(parents[0], parents[1])


@torch.library.custom_op("capsella::em_capsule_conv", mutates_args=())
def _em_capsule_conv(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    vote_offset: Tensor | None,
    beta_u: Tensor,
    beta_a: Tensor,
    start: Tensor | None,
    shape: list[int],
    tied: bool,
    inverse_temperatures: list[float],
    variance_floor: float,
    cost_scale: float,
    standardise: bool,
    compete_everywhere: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The parents' poses and activations, and what the backward pass starts from: see `EMKept` in csrc/kernels.h."""
    outputs = _empty_outputs(poses, shape, len(inverse_temperatures), compete_everywhere)
    kernels.em_forward(
        shape,
        tied,
        inverse_temperatures,
        variance_floor,
        cost_scale,
        standardise,
        compete_everywhere,
        kernels.EMTensors(*ready(poses, activations, weight, vote_offset, beta_u, beta_a, start), *outputs[2:]),
        *outputs[:2],
        torch.get_num_threads(),
    )
    return outputs


def _empty_outputs(
    poses: Tensor, shape: list[int], iterations: int, compete_everywhere: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, height, width, c_in, rows, columns, c_out = shape[:7]
    n, _, c = shape[11:]
    d, padded = n * c, (c_out + 15) // 16 * 16
    kept = (batch * rows * columns, iterations)
    new = poses.new_empty if padded == c_out else poses.new_zeros  # no kernel writes the padding, as no one reads it
    normalised = compete_everywhere and rows * columns > 1
    return (
        poses.new_empty(batch, rows, columns, c_out, d),
        poses.new_empty(batch, rows, columns, c_out),
        new(*kept, d, padded),
        new(*kept, d, padded),
        new(*kept, padded),
        poses.new_empty(iterations - 1 if normalised else 0, batch, height, width, c_in),
    )


@_em_capsule_conv.register_fake
def _(poses, activations, weight, vote_offset, beta_u, beta_a, start, shape, tied, inverse_temperatures, *options):  # type: ignore[no-untyped-def]
    return _empty_outputs(poses, shape, len(inverse_temperatures), options[-1])


@torch.library.custom_op("capsella::em_capsule_conv_backward", mutates_args=())
def _em_capsule_conv_backward(
    grad_poses: Tensor,
    grad_activations: Tensor,
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    vote_offset: Tensor | None,
    beta_u: Tensor,
    beta_a: Tensor,
    start: Tensor | None,
    kept: list[Tensor],
    shape: list[int],
    tied: bool,
    inverse_temperatures: list[float],
    variance_floor: float,
    cost_scale: float,
    standardise: bool,
    compete_everywhere: bool,
) -> list[Tensor]:
    """Gradients of poses, activations, weight, beta_u and beta_a."""
    inputs = ready(poses, activations, weight, vote_offset, beta_u, beta_a, start)
    gradients = [torch.empty_like(inputs[k]) for k in (0, 1, 2, 4, 5)]
    kernels.em_backward(
        shape,
        tied,
        inverse_temperatures,
        variance_floor,
        cost_scale,
        standardise,
        compete_everywhere,
        kernels.EMTensors(*inputs, *kept),
        *ready(grad_poses, grad_activations),
        gradients,
        torch.get_num_threads(),
    )
    return gradients


@_em_capsule_conv_backward.register_fake
def _(grad_poses, grad_activations, poses, activations, weight, vote_offset, beta_u, beta_a, *rest):  # type: ignore
    return [x.new_empty(x.shape) for x in (poses, activations, weight, beta_u, beta_a)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:7], *output[2:])
    ctx.options = inputs[7:]


def _backward(ctx: Any, grad_poses: Tensor, grad_activations: Tensor, *unused: Tensor | None) -> tuple[Any, ...]:
    *inputs, means, variances, log_activations, log_normalisers = ctx.saved_tensors
    kept = [means, variances, log_activations, log_normalisers]
    poses, activations, weight, beta_u, beta_a = _em_capsule_conv_backward(
        grad_poses, grad_activations, *inputs, kept, *ctx.options
    )
    return (poses, activations, weight, None, beta_u, beta_a, *[None] * 8)


_em_capsule_conv.register_autograd(_backward, setup_context=_keep)

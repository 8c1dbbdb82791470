"""EM routing of a capsule convolution by the C++ kernels of csrc/em.cpp, forward and backward, without stored votes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from capsella._native import kernels
from capsella.routing.convolution import CapsuleConv, ConvSizes
from capsella.routing.em.settings import EMSettings, start_couplings
from capsella.routing.native import arrays, gradients_of, kernel_arguments
from capsella.types import Capsules


class Call(NamedTuple):
    """What the operator takes, in the order of `CALL`: `EMInputs`, sizes, and `EMOptions` of csrc/kernels.h."""

    poses: Tensor
    activations: Tensor
    weight: Tensor
    vote_offset: Tensor | None
    beta_u: Tensor
    beta_a: Tensor
    start: Tensor | None
    sizes: list[int]
    inverse_temperatures: list[float]
    variance_floor: float
    cost_scale: float
    standardise: bool
    compete_everywhere: bool


CALL = """Tensor poses, Tensor activations, Tensor weight, Tensor? vote_offset, Tensor beta_u, Tensor beta_a,
Tensor? start, SymInt[] sizes, float[] inverse_temperatures, float variance_floor, float cost_scale, bool standardise,
bool compete_everywhere"""
TENSORS = Call._fields.index("sizes")


class Result(NamedTuple):
    """The parents' poses and activations, and what the backward pass starts from: `EMKept` of csrc/kernels.h."""

    poses: Tensor
    activations: Tensor
    means: Tensor
    variances: Tensor
    log_activations: Tensor
    log_normalisers: Tensor


def em_capsule_conv_native(
    conv: CapsuleConv, beta_u: Tensor, beta_a: Tensor, settings: EMSettings, everywhere: bool
) -> Capsules:
    """Hinton et al. 2018, Procedure 1, for every window of the grid, in float32.

    everywhere: the types at all sites whose window holds a child compete for it, and not those at each site alone.
    """
    even = settings.start == "even"
    call = Call(
        poses=conv.poses,
        activations=conv.activations,
        weight=conv.weight,
        vote_offset=conv.vote_offset,
        beta_u=beta_u,
        beta_a=beta_a,
        start=None if even else start_couplings(conv.sizes.i, conv.sizes.c_out, settings).to(conv.poses),
        sizes=list(conv.sizes),
        inverse_temperatures=[settings.inverse_temperature_at(t) for t in range(settings.iterations)],
        variance_floor=settings.variance_floor,
        cost_scale=settings.cost_scale or 0.0,
        standardise=settings.standardise_costs,
        compete_everywhere=everywhere,
    )
    result = Result(*_em_capsule_conv(*call))
    return Capsules(result.poses, result.activations)


@torch.library.custom_op(
    "capsella::em_capsule_conv",
    mutates_args=(),
    schema=f"({CALL}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _em_capsule_conv(*inputs: Any) -> tuple[Tensor, ...]:
    """A `Result` for a `Call`."""
    call = Call(*inputs)
    poses, activations, *kept = result = _empty_result(call)
    kernels.em_forward(
        *kernel_arguments(call, kernels.EMOptions, kernels.EMInputs),
        kernels.EMKept(**dict(zip(Result._fields[2:], kept, strict=True))),
        poses=poses,
        activations=activations,
        threads=torch.get_num_threads(),
    )
    return tuple(result)


@_em_capsule_conv.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    return tuple(_empty_result(Call(*inputs)))


def _empty_result(call: Call) -> Result:
    sizes, new, iterations = ConvSizes._make(call.sizes), call.poses.new_empty, len(call.inverse_temperatures)
    padded = (sizes.c_out + 15) // 16 * 16
    keep = new if padded == sizes.c_out else call.poses.new_zeros  # no kernel writes the padding, as no one reads it
    normalised = call.compete_everywhere and sizes.rows * sizes.columns > 1
    return Result(
        poses=new(*sizes.grid, sizes.d),
        activations=new(sizes.grid),
        means=keep(sizes.n, iterations, sizes.d, padded),
        variances=keep(sizes.n, iterations, sizes.d, padded),
        log_activations=keep(sizes.n, iterations, padded),
        log_normalisers=new(iterations - 1 if normalised else 0, *call.poses.shape[:4]),
    )


@torch.library.custom_op(
    "capsella::em_capsule_conv_backward",
    mutates_args=(),
    schema=f"(Tensor grad_poses, Tensor grad_activations, Tensor[] kept, {CALL}) -> Tensor[]",
)
def _em_capsule_conv_backward(
    grad_poses: Tensor, grad_activations: Tensor, kept: list[Tensor], *inputs: Any
) -> list[Tensor]:
    """Gradients of poses, activations, weight, beta_u and beta_a, from the last four parts of a `Result`."""
    call = Call(*inputs)
    poses, activations, weight, beta_u, beta_a = gradients = _empty_gradients(call)
    kernels.em_backward(
        *kernel_arguments(call, kernels.EMOptions, kernels.EMInputs),
        kernels.EMKept(**arrays(**dict(zip(Result._fields[2:], kept, strict=True)))),
        **arrays(grad_poses=grad_poses, grad_activations=grad_activations),
        gradients=kernels.EMGradients(
            poses=poses, activations=activations, weight=weight, beta_u=beta_u, beta_a=beta_a
        ),
        threads=torch.get_num_threads(),
    )
    return gradients


@_em_capsule_conv_backward.register_fake
def _(grad_poses: Tensor, grad_activations: Tensor, kept: list[Tensor], *inputs: Any) -> list[Tensor]:
    return _empty_gradients(Call(*inputs))


def _empty_gradients(call: Call) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in (call.poses, call.activations, call.weight, call.beta_u, call.beta_a)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, *kept = output
    ctx.save_for_backward(*inputs[:TENSORS], *kept)
    ctx.numbers = inputs[TENSORS:]


def _backward(ctx: Any, grad_poses: Tensor, grad_activations: Tensor, *unused: Tensor | None) -> tuple[Any, ...]:
    tensors, kept = ctx.saved_tensors[:TENSORS], list(ctx.saved_tensors[TENSORS:])
    poses, activations, weight, beta_u, beta_a = _em_capsule_conv_backward(
        grad_poses, grad_activations, kept, *tensors, *ctx.numbers
    )
    return gradients_of(Call, poses=poses, activations=activations, weight=weight, beta_u=beta_u, beta_a=beta_a)


_em_capsule_conv.register_autograd(_backward, setup_context=_keep)

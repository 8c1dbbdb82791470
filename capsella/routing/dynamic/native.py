"""Dynamic routing of a capsule convolution by the C++ kernels of csrc/dynamic.cpp, without stored votes."""

from typing import NamedTuple

from torch import Tensor

from capsella._native import kernels
from capsella.routing.convolution import CapsuleConv, ConvSizes
from capsella.routing.native import register_kernel
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


def dynamic_capsule_conv_native(conv: CapsuleConv, iterations: int, bias: Tensor | None, leaky: bool) -> Capsules:
    """Sabour et al. 2017, Procedure 1, for every window of the grid, in float32.

    No gradient reaches the vote offset, which a tied layer must not have.
    """
    call = Call(conv.poses, conv.weight, conv.vote_offset, bias, list(conv.sizes), iterations, leaky)
    v, a, _ = _dynamic_capsule_conv(*call)
    return Capsules(v, a)


def _empty_result(call: Call) -> dict[str, Tensor]:
    """For a `Call` the parents' poses and activations, and s of every iteration, where the backward pass starts."""
    sizes, new = ConvSizes._make(call.sizes), call.poses.new_empty
    sums = new(sizes.n, call.iterations, sizes.c_out, sizes.d)
    return {"poses": new(*sizes.grid, sizes.d), "activations": new(sizes.grid), "sums": sums}


_dynamic_capsule_conv = register_kernel(
    "dynamic",
    kernels.DynamicOptions,
    kernels.DynamicInputs,
    kernels.DynamicGradients,
    Call,
    CALL,
    _empty_result,
    kept=("sums",),
    asking=("poses", "weight", "bias"),
)

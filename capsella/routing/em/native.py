"""EM routing of a capsule convolution by the C++ kernels of csrc/em.cpp, forward and backward, without stored votes."""

from typing import NamedTuple

from torch import Tensor

from capsella._native import kernels
from capsella.routing.convolution import CapsuleConv, ConvSizes
from capsella.routing.em.settings import EMSettings, start_couplings
from capsella.routing.native import register_kernel
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
    sharpness: list[float]
    variance_floor: float
    cost_scale: float
    standardise: bool
    compete_everywhere: bool
    bfloat16_votes: bool


CALL = """Tensor poses, Tensor activations, Tensor weight, Tensor? vote_offset, Tensor beta_u, Tensor beta_a,
Tensor? start, SymInt[] sizes, float[] inverse_temperatures, float[] sharpness, float variance_floor, float cost_scale,
bool standardise, bool compete_everywhere, bool bfloat16_votes"""


def em_capsule_conv_native(
    conv: CapsuleConv, beta_u: Tensor, beta_a: Tensor, settings: EMSettings, everywhere: bool, rounded: bool
) -> Capsules:
    """Hinton et al. 2018, Procedure 1, for every window of the grid, in float32.

    everywhere: the types at all sites whose window holds a child compete for it, and not those at each site alone.
    rounded: poses and weight are bfloat16 numbers, and votes are made of them as such.
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
        sharpness=[settings.sharpness_at(t) for t in range(settings.iterations)],
        variance_floor=settings.variance_floor,
        cost_scale=settings.cost_scale or 0.0,
        standardise=settings.standardise_costs,
        compete_everywhere=everywhere,
        bfloat16_votes=rounded,
    )
    poses, activations, *_ = _em_capsule_conv(*call)
    return Capsules(poses, activations)


def _empty_result(call: Call) -> dict[str, Tensor]:
    sizes, new, iterations = ConvSizes._make(call.sizes), call.poses.new_empty, len(call.inverse_temperatures)
    padded = (sizes.c_out + 15) // 16 * 16
    keep = new if padded == sizes.c_out else call.poses.new_zeros  # no kernel writes the padding, as no one reads it
    normalised = call.compete_everywhere and sizes.rows * sizes.columns > 1
    return {
        "poses": new(*sizes.grid, sizes.d),
        "activations": new(sizes.grid),
        "means": keep(sizes.n, iterations, sizes.d, padded),
        "variances": keep(sizes.n, iterations, sizes.d, padded),
        "log_activations": keep(sizes.n, iterations, padded),
        "log_data": keep(sizes.n, iterations, padded),
        "log_normalisers": new(iterations - 1 if normalised else 0, *call.poses.shape[:4]),
    }


_em_capsule_conv = register_kernel(
    "em",
    "EM",
    Call,
    CALL,
    _empty_result,
    kept=("means", "variances", "log_activations", "log_data", "log_normalisers"),
    asking=("poses", "activations", "weight", "beta_u", "beta_a"),
    keep=lambda kept: {"kept": kernels.EMKept(**kept)},
)

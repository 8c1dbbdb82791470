"""EM routing of a capsule convolution by the C++ kernels of csrc/em.h, forward and backward, without stored votes."""

from typing import NamedTuple

import torch
from torch import Tensor

from capsella._native import kernels
from capsella.routing.convolution import CapsuleConv
from capsella.routing.em.settings import EMSettings, start_couplings
from capsella.routing.mixture import TENSORS, empty_mixture, first_arguments, register_mixture
from capsella.types import ScoredCapsules


class Call(NamedTuple):
    """What the operator takes, in the order of `CALL`: `MixtureInputs`, sizes, and `EMOptions` of csrc/kernels.h."""

    poses: Tensor
    activations: Tensor
    weight: Tensor
    parameters: Tensor
    vote_offset: Tensor | None
    bias: Tensor | None
    start: Tensor | None
    sizes: list[int]
    inverse_temperatures: list[float]
    sharpness: list[float]
    variance_floor: float
    cost_scale: float
    standardise: bool
    compete_everywhere: bool
    bfloat16_votes: bool


CALL = f"""{TENSORS}, float[] inverse_temperatures, float[] sharpness, float variance_floor, float cost_scale,
bool standardise, bool compete_everywhere, bool bfloat16_votes"""


def em_capsule_conv_native(
    conv: CapsuleConv, beta_u: Tensor, beta_a: Tensor, settings: EMSettings, everywhere: bool, rounded: bool
) -> ScoredCapsules:
    """Hinton et al. 2018, Procedure 1, for every window of the grid, in float32.

    everywhere: the types at all sites whose window holds a child compete for it, and not those at each site alone.
    rounded: poses and weight are bfloat16 numbers, and votes are made of them as such.
    """
    even = settings.start == "even"
    start = None if even else start_couplings(conv.sizes.i, conv.sizes.c_out, settings).to(conv.poses)
    call = Call(
        **first_arguments(conv, torch.stack([beta_u, beta_a]), start=start),
        inverse_temperatures=[settings.inverse_temperature_at(t) for t in range(settings.iterations)],
        sharpness=[settings.sharpness_at(t) for t in range(settings.iterations)],
        variance_floor=settings.variance_floor,
        cost_scale=settings.cost_scale or 0.0,
        standardise=settings.standardise_costs,
        compete_everywhere=everywhere,
        bfloat16_votes=rounded,
    )
    poses, log_odds, *_ = _em_capsule_conv(*call)
    return ScoredCapsules(poses, log_odds)


def _empty_result(call: Call) -> dict[str, Tensor]:
    return empty_mixture(call, len(call.inverse_temperatures), compete_everywhere=call.compete_everywhere)


_em_capsule_conv = register_mixture("em", kernels.EMOptions, Call, CALL, _empty_result)

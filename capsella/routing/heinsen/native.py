"""Heinsen routing of a capsule convolution by the C++ kernels of csrc/heinsen.h, without stored votes."""

from typing import NamedTuple

import torch
from torch import Tensor

from capsella._native import kernels
from capsella.routing.convolution import CapsuleConv
from capsella.routing.heinsen.settings import HeinsenSettings
from capsella.routing.mixture import TENSORS, empty_mixture, first_arguments, register_mixture
from capsella.types import ScoredCapsules


class Call(NamedTuple):
    """What the operator takes, in the order of `CALL`: as `MixtureInputs` and `HeinsenOptions` of csrc/kernels.h."""

    poses: Tensor
    activations: Tensor
    weight: Tensor
    parameters: Tensor
    vote_offset: Tensor | None
    bias: Tensor | None
    start: Tensor | None
    sizes: list[int]
    iterations: int
    epsilon: float
    shared: bool


CALL = f"{TENSORS}, int iterations, float epsilon, bool shared"


def heinsen_capsule_conv_native(
    conv: CapsuleConv, beta_use: Tensor, beta_ignore: Tensor, bias: Tensor | None, settings: HeinsenSettings
) -> ScoredCapsules:
    """Heinsen 2019, Algorithm 1, for every window of the grid, in float32; both β [i c_out], bias [i c_out d].

    i = 1 in all of them, or in none that is there.
    """
    # β_use D_use − β_ign (f − D_use) = (β_use + β_ign) D_use − β_ign f
    parameters = torch.cat([beta_use + beta_ignore, beta_ignore])
    arguments = first_arguments(conv, parameters, bias)
    shared = len(beta_use) == 1
    call = Call(**arguments, iterations=settings.iterations, epsilon=settings.epsilon, shared=shared)
    poses, log_odds, *_ = _heinsen_capsule_conv(*call)
    return ScoredCapsules(poses, log_odds)


def _empty_result(call: Call) -> dict[str, Tensor]:
    return empty_mixture(call, call.iterations)


_heinsen_capsule_conv = register_mixture("heinsen", kernels.HeinsenOptions, Call, CALL, _empty_result)

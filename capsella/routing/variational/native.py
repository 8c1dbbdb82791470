"""Variational Bayes routing of a capsule convolution by the C++ kernels of csrc/variational.h, without stored votes."""

from typing import NamedTuple

from torch import Tensor

from capsella._native import kernels
from capsella.routing.convolution import CapsuleConv
from capsella.routing.mixture import TENSORS, empty_mixture, first_arguments, register_mixture
from capsella.routing.variational.settings import VariationalSettings
from capsella.types import ScoredCapsules


class Call(NamedTuple):
    """What the operator takes, in the order of `CALL`: as `MixtureInputs`, `VariationalOptions` of csrc/kernels.h."""

    poses: Tensor
    activations: Tensor
    weight: Tensor
    parameters: Tensor
    vote_offset: Tensor | None
    bias: Tensor | None
    start: Tensor | None
    sizes: list[int]
    iterations: int
    proportions: bool
    concentration: float
    mean_weight: float
    precision: float
    degrees: float


CALL = f"""{TENSORS}, int iterations, bool proportions, float concentration, float mean_weight, float precision,
float degrees"""


def variational_capsule_conv_native(conv: CapsuleConv, bias: Tensor, settings: VariationalSettings) -> ScoredCapsules:
    """Ribeiro et al. 2020 for every window of the grid, in float32; bias [c_out]."""
    call = Call(
        **first_arguments(conv, bias.unsqueeze(0)),
        iterations=settings.iterations,
        proportions=settings.proportions,
        concentration=settings.concentration,
        mean_weight=settings.mean_weight,
        precision=settings.precision,
        degrees=settings.degrees,
    )
    poses, log_odds, *_ = _variational_capsule_conv(*call)
    return ScoredCapsules(poses, log_odds)


def _empty_result(call: Call) -> dict[str, Tensor]:
    return empty_mixture(call, call.iterations)


_variational_capsule_conv = register_mixture("variational", kernels.VariationalOptions, Call, CALL, _empty_result)

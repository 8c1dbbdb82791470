"""What the C++ kernels of all routings share that fit a mixture of Gaussians: EM, variational Bayes and Heinsen's."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from capsella._native import kernels
from capsella.routing.convolution import CapsuleConv, ConvSizes
from capsella.routing.native import register_kernel

TENSORS = """Tensor poses, Tensor activations, Tensor weight, Tensor parameters, Tensor? vote_offset, Tensor? bias,
Tensor? start, SymInt[] sizes"""
"""What their operators take first, as in `MixtureInputs` of csrc/kernels.h; the options follow."""


def register_mixture(
    name: str, options: Any, call: type[Any], schema: str, empty_result: Callable[[Any], Mapping[str, Tensor]]
) -> Any:
    """The operator `capsella::NAME_capsule_conv`: poses, log-odds, and what is kept. Args as for `register_kernel`."""
    return register_kernel(
        name,
        options,
        kernels.MixtureInputs,
        kernels.MixtureGradients,
        call,
        schema,
        empty_result,
        kept=("means", "variances", "log_odds_kept", "data", "log_total", "log_normalisers"),
        asking=("poses", "activations", "weight", "parameters", "bias"),
        second="log_odds",
        keep=_keep,
    )


def _keep(kept: dict[str, Any]) -> dict[str, Any]:
    named = {"log_odds" if name == "log_odds_kept" else name: array for name, array in kept.items()}
    return {"kept": kernels.MixtureKept(**named)}


def first_arguments(
    conv: CapsuleConv, parameters: Tensor, bias: Tensor | None = None, start: Tensor | None = None
) -> dict[str, Any]:
    """`TENSORS` for a convolution, all of the type of its poses.

    Args:
        parameters: [k c_out], what is learned beside the weight, as the routing's formulas in csrc name its rows.
        bias: of the votes, [i c_out d].
        start: couplings of the first iteration [i c_out]; None: even ones.
    """
    dtype = conv.poses.dtype
    return {
        "poses": conv.poses,
        "activations": conv.activations,
        "weight": conv.weight,
        "parameters": parameters.to(dtype),
        "vote_offset": conv.vote_offset,
        "bias": None if bias is None else bias.to(dtype),
        "start": start,
        "sizes": list(conv.sizes),
    }


def empty_mixture(call: Any, iterations: int, *, compete_everywhere: bool = False) -> dict[str, Tensor]:
    """The tensors that the kernels fill for a call."""
    sizes, new = ConvSizes._make(call.sizes), call.poses.new_empty
    padded = (sizes.c_out + 15) // 16 * 16
    keep = new if padded == sizes.c_out else call.poses.new_zeros  # no kernel writes the padding, as no one reads it
    normalised = compete_everywhere and sizes.rows * sizes.columns > 1
    return {
        "poses": new(*sizes.grid, sizes.d),
        "log_odds": new(sizes.grid),
        "means": keep(sizes.n, iterations, sizes.d, padded),
        "variances": keep(sizes.n, iterations, sizes.d, padded),
        "log_odds_kept": keep(sizes.n, iterations, padded),
        "data": keep(sizes.n, iterations, padded),
        "log_total": keep(sizes.n, iterations, padded),
        "log_normalisers": new(iterations - 1 if normalised else 0, *call.poses.shape[:4]),
    }

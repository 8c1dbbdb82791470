"""Sums of votes and agreements with them by the C++ kernels of csrc/votes.cpp, as operators with gradients."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from capsella._native import kernels
from capsella.routing.checks import check_shape
from capsella.routing.convolution import CapsuleConv, ConvSizes
from capsella.routing.native import arrays, check_float32, conv_of_sizes, define_operator, refuse_second_derivatives

INPUTS = "Tensor poses, Tensor weight, Tensor? vote_offset"


def vote_sums(conv: CapsuleConv, weights: Tensor) -> Tensor:
    """Σ_i w_ij V_ij of every window: weights [n i j] → [n j d], in float32. No gradient reaches the vote offset.

    Raises:
        ValueError: weights of another shape.
    """
    sizes = conv.sizes
    check_shape("weights", weights, (sizes.n, sizes.i, sizes.c_out), "[n i j]")
    sums: Tensor = _sums(conv.poses, conv.weight, conv.vote_offset, weights, list(sizes))
    return sums


def vote_agreements(conv: CapsuleConv, poses: Tensor) -> Tensor:
    """V_ij · p_j of every window: poses [n j d] of parents → [n i j], in float32. No gradient reaches the vote offset.

    Raises:
        ValueError: poses of another shape.
    """
    sizes = conv.sizes
    check_shape("poses", poses, (sizes.n, sizes.c_out, sizes.d), "[n j d]")
    agreements: Tensor = _agreements(conv.poses, conv.weight, conv.vote_offset, poses, list(sizes))
    return agreements


def _run(kernel: str, sizes: Sequence[int], inputs: dict[str, Any], **given: Tensor) -> None:
    getattr(kernels, kernel)(
        conv_of_sizes(sizes), kernels.VoteInputs(**inputs), **arrays(**given), threads=torch.get_num_threads()
    )


def _inputs(poses: Tensor, weight: Tensor, vote_offset: Tensor | None) -> dict[str, Any]:
    tensors = {"poses": poses, "weight": weight, "vote_offset": vote_offset}
    check_float32(tensors)
    return arrays(**tensors)


def _empty_sums(poses: Tensor, weight: Tensor, vote_offset: Tensor | None, weights: Tensor, sizes: list[int]) -> Tensor:
    of = ConvSizes._make(sizes)
    return poses.new_empty(of.n, of.c_out, of.d)


def _empty_agreements(
    poses: Tensor, weight: Tensor, vote_offset: Tensor | None, parents: Tensor, sizes: list[int]
) -> Tensor:
    of = ConvSizes._make(sizes)
    return poses.new_empty(of.n, of.i, of.c_out)


def _empty_gradients(
    poses: Tensor, weight: Tensor, weights: Tensor, parents: Tensor, sizes: list[int]
) -> tuple[Tensor, Tensor]:
    return poses.new_empty(poses.shape), weight.new_empty(weight.shape)


def _fill_sums(poses: Tensor, weight: Tensor, vote_offset: Tensor | None, weights: Tensor, sizes: list[int]) -> Tensor:
    sums = _empty_sums(poses, weight, vote_offset, weights, sizes)
    _run("vote_sums", sizes, _inputs(poses, weight, vote_offset), weights=weights, sums=sums)
    return sums


def _fill_agreements(
    poses: Tensor, weight: Tensor, vote_offset: Tensor | None, parents: Tensor, sizes: list[int]
) -> Tensor:
    agreements = _empty_agreements(poses, weight, vote_offset, parents, sizes)
    _run("vote_agreements", sizes, _inputs(poses, weight, vote_offset), poses=parents, agreements=agreements)
    return agreements


def _fill_gradients(
    poses: Tensor, weight: Tensor, weights: Tensor, parents: Tensor, sizes: list[int]
) -> tuple[Tensor, Tensor]:
    grad_poses, grad_weight = _empty_gradients(poses, weight, weights, parents, sizes)
    given = {"weights": weights, "poses": parents, "grad_poses": grad_poses, "grad_weight": grad_weight}
    _run("vote_gradients", sizes, _inputs(poses, weight, None), **given)
    return grad_poses, grad_weight


_sums = define_operator(
    "capsule_conv_sums", f"({INPUTS}, Tensor weights, SymInt[] sizes) -> Tensor", _fill_sums, _empty_sums
)
_agreements = define_operator(
    "capsule_conv_agreements",
    f"({INPUTS}, Tensor parents, SymInt[] sizes) -> Tensor",
    _fill_agreements,
    _empty_agreements,
)
_gradients = define_operator(
    "capsule_conv_gradients",
    "(Tensor poses, Tensor weight, Tensor weights, Tensor parents, SymInt[] sizes) -> (Tensor, Tensor)",
    _fill_gradients,
    _empty_gradients,
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.sizes = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_sums(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Σ_ij w_ij V_ij·g_j is linear in w, and its derivative by the votes' makers is `vote_gradients`."""
    poses, weight, vote_offset, weights = ctx.saved_tensors
    of_weights = _agreements(poses, weight, vote_offset, grad, ctx.sizes) if ctx.needs_input_grad[3] else None
    return *_gradients(poses, weight, weights, grad, ctx.sizes), None, of_weights, None


def _differentiate_agreements(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    poses, weight, vote_offset, parents = ctx.saved_tensors
    of_parents = _sums(poses, weight, vote_offset, grad, ctx.sizes) if ctx.needs_input_grad[3] else None
    return *_gradients(poses, weight, grad, parents, ctx.sizes), None, of_parents, None


torch.library.register_autograd("capsella::capsule_conv_sums", _differentiate_sums, setup_context=_save)
torch.library.register_autograd("capsella::capsule_conv_agreements", _differentiate_agreements, setup_context=_save)
refuse_second_derivatives("capsule_conv_gradients", "votes")

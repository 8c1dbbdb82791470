"""Cluster routing by the C++ kernels of csrc/cluster.cpp, as an operator with gradients."""

from typing import Any

import torch
from torch import Tensor

from capsella._native import kernels
from capsella.routing.native import arrays, define_operator, refuse_second_derivatives


def cluster_routing_native(votes: Tensor) -> tuple[Tensor, Tensor]:
    """Zhao and Cheng 2021, for votes [b g i j d]: poses [b j d] and weights [b i j d], in float32."""
    poses, weights = _routed(votes.transpose(1, 2).flatten(3))
    return poses.unflatten(1, votes.shape[3:]), weights.unflatten(2, votes.shape[3:])


def _empty(votes: Tensor) -> tuple[Tensor, Tensor]:
    b, i, _, n = votes.shape
    return votes.new_empty(b, n, dtype=torch.float32), votes.new_empty(b, i, n, dtype=torch.float32)


def _fill(votes: Tensor) -> tuple[Tensor, Tensor]:
    poses, weights = _empty(votes)
    kernels.cluster_forward(_sizes(votes), _numbers(votes), poses, weights, threads=torch.get_num_threads())
    return poses, weights


def _empty_gradient(votes: Tensor, grad_poses: Tensor, grad_weights: Tensor) -> Tensor:
    return votes.new_empty(votes.shape)


def _fill_gradient(votes: Tensor, grad_poses: Tensor, grad_weights: Tensor) -> Tensor:
    grad_votes = _empty_gradient(votes, grad_poses, grad_weights)
    given = arrays(grad_poses=grad_poses, grad_weights=grad_weights)
    kernels.cluster_backward(
        _sizes(votes), _numbers(votes), **given, grad_votes=_numbers(grad_votes), threads=torch.get_num_threads()
    )
    return grad_votes


def _sizes(votes: Tensor) -> Any:
    """`Clusters` of csrc/kernels.h."""
    return kernels.Clusters(**dict(zip(("batch", "children", "votes", "elements"), votes.shape, strict=True)))


def _numbers(votes: Tensor) -> Tensor:
    """Contiguous floats, or the bits of bfloat16 numbers."""
    votes = votes.detach().contiguous()
    return votes.view(torch.int16) if votes.dtype == torch.bfloat16 else votes


_routed = define_operator("cluster_routing", "(Tensor votes) -> (Tensor, Tensor)", _fill, _empty)
_gradient = define_operator(
    "cluster_routing_backward",
    "(Tensor votes, Tensor grad_poses, Tensor grad_weights) -> Tensor",
    _fill_gradient,
    _empty_gradient,
)


def _save(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad_poses: Tensor, grad_weights: Tensor) -> Any:
    return _gradient(*ctx.saved_tensors, grad_poses, grad_weights)


torch.library.register_autograd("capsella::cluster_routing", _differentiate, setup_context=_save)
refuse_second_derivatives("cluster_routing_backward", "cluster routing")

"""Cluster routing (Zhao, Cheng 2021, "Capsule networks with non-iterative cluster routing", Neural Networks 143).

Each child type casts a cluster of several votes for each parent. This is no `Routing`, which takes one vote per child
and parent: the layer `ClusterCapsules` makes the votes. The C++ kernels of csrc/cluster.cpp read them once.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from capsella import _native
from capsella._native import kernels
from capsella.errors import check_argument
from capsella.routing.backends import (
    choose_backend,
    define_operator,
    detached_arrays,
    refuse_second_derivatives,
    tensor_obstacle,
    warn_of_eager,
)
from capsella.routing.functional import is_traced
from capsella.routing.reference import VARIANCE_EPSILON, cluster_routing_reference

BACKENDS = ("reference", "eager", "native")
NATIVE_DTYPES = (torch.float32, torch.bfloat16)  # of votes that the native kernels read without conversion


class Clustered(NamedTuple):
    """The result of routing clusters of votes.

    Attributes:
        poses: [b j d], the parents' poses.
        weights: [b i j d], the weight of each child's cluster, element by element; they sum to 1 over the children i.
    """

    poses: Float[Tensor, "b j d"]
    weights: Float[Tensor, "b i j d"]


def cluster_routing(votes: Float[Tensor, "b g i j d"], *, backend: str = "auto") -> Clustered:
    """Weigh each cluster by how well its votes agree with each other, element by element, in one pass.

    m_ij and s_ij are mean and standard deviation of child i's g votes for parent j; the weights are a softmax over the
    children of −ln s_ij, and p_j = Σ_i weight_ij m_ij. So the children compete for a parent, not parents for a child.

    Args:
        votes: [b g i j d], child i's g predictions of parent j's d pose elements. Elements are weighed independently,
            so d may also run over the positions of a grid.
        backend: "reference" (loops, for reading and tests), "eager", "native" (C++ on the CPU), or "auto": native for
            float32 and bfloat16 on a CPU where it is built; else, and in a traced graph, eager.

    Returns:
        Poses p [b j d], not normalised, and weights [b i j d]. 1e-12 is added to the variance s², so that a cluster of
        equal votes has a finite weight. Votes in half precision give float32 results.

    Raises:
        ValueError: votes without the five axes, not floating point, or without any vote; a backend that is unknown or
            cannot run here.

    >>> import torch
    >>> clustered = cluster_routing(torch.randn(2, 4, 5, 3, 8))
    >>> clustered.poses.shape, clustered.weights.sum(1).allclose(torch.ones(2, 3, 8))
    (torch.Size([2, 3, 8]), True)
    """
    shape = tuple(votes.shape)
    check_argument(votes.ndim == 5, "have the five axes [b g i j d]", votes=shape)
    check_argument(votes.is_floating_point(), "be floating point", votes=votes.dtype)
    check_argument(0 not in shape[1:], "have at least one vote, child, parent and pose element", votes=shape)
    if votes.dtype == torch.float16:
        votes = votes.float()
    obstacle = tensor_obstacle("votes", votes, NATIVE_DTYPES)
    if backend == "auto":
        warn_of_eager("cluster", votes, _native.UNAVAILABLE)
    chosen = choose_backend(backend, BACKENDS, auto="eager" if obstacle is not None or is_traced() else "native")
    if chosen == "native":
        if obstacle is not None:
            raise ValueError(f"backend: 'native' cannot run here: {obstacle}")
        poses, weights = _operator(votes.transpose(1, 2).flatten(3))
        return Clustered(poses.unflatten(1, votes.shape[3:]), weights.unflatten(2, votes.shape[3:]))
    route = cluster_routing_reference if backend == "reference" else _route_eager
    return Clustered(*route(votes.float() if votes.dtype == torch.bfloat16 else votes))


def _route_eager(votes: Tensor) -> tuple[Tensor, Tensor]:
    m = votes.mean(1)
    variance = (votes - m.unsqueeze(1)).square().mean(1)
    weights = (-0.5 * (variance + VARIANCE_EPSILON).log()).softmax(1)  # −ln s
    return (weights * m).sum(1), weights


# The operators take votes [b i g n], n the elements of all parents.
def _empty(votes: Tensor) -> tuple[Tensor, Tensor]:
    b, i, _, n = votes.shape
    return votes.new_empty(b, n, dtype=torch.float32), votes.new_empty(b, i, n, dtype=torch.float32)


def _forward(votes: Tensor) -> tuple[Tensor, Tensor]:
    poses, weights = _empty(votes)
    kernels.cluster_forward(_sizes(votes), _kernel_array(votes), poses, weights, threads=torch.get_num_threads())
    return poses, weights


def _empty_gradient(votes: Tensor, grad_poses: Tensor, grad_weights: Tensor) -> Tensor:
    return votes.new_empty(votes.shape)


def _backward(votes: Tensor, grad_poses: Tensor, grad_weights: Tensor) -> Tensor:
    grad_votes = votes.new_empty(votes.shape)
    slopes = detached_arrays(grad_poses=grad_poses, grad_weights=grad_weights)
    threads = torch.get_num_threads()
    kernels.cluster_backward(
        _sizes(votes), _kernel_array(votes), **slopes, grad_votes=_kernel_array(grad_votes), threads=threads
    )
    return grad_votes


def _sizes(votes: Tensor) -> Any:
    """Return the `Clusters` of csrc/kernels.h."""
    return kernels.Clusters(**dict(zip(("batch", "children", "votes", "elements"), votes.shape, strict=True)))


def _kernel_array(votes: Tensor) -> Tensor:
    """Return votes as the kernels take them: contiguous, and bfloat16 as int16 of the same bits."""
    votes = votes.detach().contiguous()
    return votes.view(torch.int16) if votes.dtype == torch.bfloat16 else votes


def _save(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad_poses: Tensor, grad_weights: Tensor) -> Any:
    return torch.ops.capsella.cluster_routing_backward.default(*ctx.saved_tensors, grad_poses, grad_weights)


_operator: Any = None
if kernels is not None:
    _operator = define_operator("cluster_routing", "(Tensor votes) -> (Tensor, Tensor)", _forward, _empty)
    define_operator(
        "cluster_routing_backward",
        "(Tensor votes, Tensor grad_poses, Tensor grad_weights) -> Tensor",
        _backward,
        _empty_gradient,
    )
    torch.library.register_autograd("capsella::cluster_routing", _differentiate, setup_context=_save)
    refuse_second_derivatives("cluster_routing_backward", "cluster routing")

"""Cluster routing (Zhao, Cheng 2021, "Capsule networks with non-iterative cluster routing", Neural Networks 143).

A child type casts several votes for each parent, a cluster of them, so this is no `Routing` of one vote each: the layer
`ClusterCapsules` makes the votes.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from capsella import _native
from capsella.errors import ArgumentError
from capsella.routing.backends import choose_backend, is_traced, tensor_obstacle, warn_of_eager
from capsella.routing.cluster.eager import cluster_routing_eager
from capsella.routing.cluster.reference import cluster_routing_reference

BACKENDS = ("reference", "eager", "native")
NATIVE_DTYPES = (torch.float32, torch.bfloat16)
"""Of votes that the native kernels read as they are."""
SLOWER = "cluster routing runs in PyTorch, and its networks up to 2 times slower"


class Clustered(NamedTuple):
    """The result of routing clusters of votes.

    poses: [b j d], the parents' poses.
    weights: [b i j d], what each child's cluster counts, element by element; they sum to 1 over the children i.
    """

    poses: Float[Tensor, "b j d"]
    weights: Float[Tensor, "b i j d"]


def cluster_routing(votes: Float[Tensor, "b g i j d"], *, backend: str = "auto") -> Clustered:
    """Weigh each cluster of votes by how well it agrees in itself, element by element, in one pass.

    m_ij and s_ij are mean and standard deviation of child i's g votes for parent j; the weights are a softmax over the
    children of −ln s_ij, and p_j = Σ_i weight_ij m_ij. So the children compete for a parent, not parents for a child.

    Args:
        votes: [b g i j d], child i's g predictions of parent j's d pose elements. As each element is by itself, d may
            be those of all positions of a grid.
        backend: "reference" (loops, for reading and tests), "eager", "native" (C++ on the CPU), or "auto": native for
            float32 and bfloat16 on a CPU where it is built; else, and in a traced graph, eager.

    Returns:
        poses p [b j d], not normalised, and weights [b i j d]. To the variance s² 1e-12 is added, so that a cluster
        of equal votes has a finite weight. Votes in half precision give float32.

    Raises:
        ValueError: votes without the five axes, not floating point, or without any vote; a backend that is unknown or
            cannot run here.

    >>> import torch
    >>> clustered = cluster_routing(torch.randn(2, 4, 5, 3, 8))
    >>> clustered.poses.shape, clustered.weights.sum(1).allclose(torch.ones(2, 3, 8))
    (torch.Size([2, 3, 8]), True)
    """
    _check_votes(votes)
    if votes.dtype == torch.float16:
        votes = votes.float()
    if _choose(backend, votes) == "native":
        from capsella.routing.cluster.native import cluster_routing_native as route
    else:
        route = cluster_routing_reference if backend == "reference" else cluster_routing_eager
        votes = votes.float() if votes.dtype == torch.bfloat16 else votes
    return Clustered(*route(votes))


def _check_votes(votes: Tensor) -> None:
    """Raises:
    ValueError: as `cluster_routing`.
    """
    shape = tuple(votes.shape)
    if votes.ndim != 5:
        raise ValueError(f"votes: must have the five axes [b g i j d], got {votes.ndim} axes, shape {shape}")
    if not votes.is_floating_point():
        raise ArgumentError("votes", "be floating point", votes.dtype)
    if 0 in shape[1:]:
        raise ValueError(f"votes: must have at least one vote, child, parent and pose element, got shape {shape}")


def _choose(backend: str, votes: Tensor) -> str:
    """Raises:
    ValueError: an unknown backend, or native kernels cannot take these votes.
    """
    obstacle = tensor_obstacle("votes", votes, NATIVE_DTYPES)
    if backend == "auto":
        warn_of_eager(votes, _native.UNAVAILABLE, SLOWER)
    chosen = choose_backend(backend, BACKENDS, auto="eager" if obstacle is not None or is_traced() else "native")
    if chosen == "native" and obstacle is not None:
        raise ValueError(f"backend: 'native' cannot run here: {obstacle}")
    return chosen

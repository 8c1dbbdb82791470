"""Cluster routing (Zhao, Cheng 2021, "Capsule networks with non-iterative cluster routing", Neural Networks 143).

A child type casts several votes for each parent, a cluster of them, so this is no `Routing` of one vote each: the layer
`ClusterCapsules` makes the votes.
"""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from capsella.routing.backends import choose_backend
from capsella.routing.checks import check_names
from capsella.routing.cluster.eager import cluster_routing_eager
from capsella.routing.cluster.reference import cluster_routing_reference

BACKENDS = {"eager": cluster_routing_eager, "reference": cluster_routing_reference}


class Clustered(NamedTuple):
    """The result of routing clusters of votes.

    poses: [b j d], the parents' poses.
    weights: [b i j d], what each child's cluster counts, element by element; they sum to 1 over the children i.
    """

    poses: Float[Tensor, "b j d"]
    weights: Float[Tensor, "b i j d"]


@check_names("argument of cluster_routing")
def cluster_routing(votes: Float[Tensor, "b g i j d"], *, backend: str = "auto") -> Clustered:
    """Weigh each cluster of votes by how well it agrees in itself, element by element, in one pass.

    m_ij and s_ij are mean and standard deviation of child i's g votes for parent j; the weights are a softmax over the
    children of −ln s_ij, and p_j = Σ_i weight_ij m_ij. So the children compete for a parent, not parents for a child.

    Args:
        votes: [b g i j d], child i's g predictions of parent j's d pose elements. As each element is by itself, d may
            be those of all positions of a grid.
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        poses p [b j d], not normalised, and weights [b i j d]. To the variance s² 1e-12 is added, so that a cluster
        of equal votes has a finite weight.

    Raises:
        ValueError: votes without the five axes, not floating point, or without any vote; an unknown backend.

    >>> import torch
    >>> clustered = cluster_routing(torch.randn(2, 4, 5, 3, 8))
    >>> clustered.poses.shape, clustered.weights.sum(1).allclose(torch.ones(2, 3, 8))
    (torch.Size([2, 3, 8]), True)
    """
    if votes.ndim != 5:
        shape = tuple(votes.shape)
        raise ValueError(f"votes: must have the five axes [b g i j d], got {votes.ndim} axes, shape {shape}")
    if not votes.is_floating_point():
        raise ValueError(f"votes: must be floating point, got {votes.dtype}")
    if 0 in votes.shape[1:]:
        shape = tuple(votes.shape)
        raise ValueError(f"votes: must have at least one vote, child, parent and pose element, got shape {shape}")
    return Clustered(*BACKENDS[choose_backend(backend, BACKENDS, auto="eager")](votes))

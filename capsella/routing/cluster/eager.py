"""Cluster routing, vectorised and differentiable."""

from torch import Tensor

EPSILON = 1e-12
"""Added to the variance: the logarithm and its slope stay finite where all votes of a cluster are equal."""


def cluster_routing_eager(votes: Tensor) -> tuple[Tensor, Tensor]:
    """Zhao and Cheng 2021, for votes [b g i j d]: poses [b j d] and weights [b i j d]."""
    m = votes.mean(1)
    variance = (votes - m.unsqueeze(1)).square().mean(1)
    weights = (-0.5 * (variance + EPSILON).log()).softmax(1)  # −ln s
    return (weights * m).sum(1), weights

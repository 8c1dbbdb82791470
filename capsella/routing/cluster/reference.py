"""Cluster routing in plain loops, line for line with Zhao and Cheng 2021. Slow, and meant to be read."""

import torch
from torch import Tensor

from capsella.routing.cluster.eager import EPSILON
from capsella.routing.dynamic.reference import softmax_reference


def cluster_routing_reference(votes: Tensor) -> tuple[Tensor, Tensor]:
    """Of votes [b g i j d]: poses [b j d] and weights [b i j d]."""
    poses, weights = torch.zeros_like(votes[:, 0, 0]), torch.zeros_like(votes[:, 0])
    for image, V in enumerate(votes):
        for j in range(V.shape[2]):
            for d in range(V.shape[3]):
                poses[image, j, d], weights[image, :, j, d] = _route_one(V[:, :, j, d])
    return poses, weights


def _route_one(V: Tensor) -> tuple[Tensor, Tensor]:
    """One element of one parent: all votes V [g i] for it → its value, and the weights [i]."""
    g, children = V.shape
    means, agreements = [], []
    for i in range(children):
        mean = V[:, i].sum() / g
        variance = ((V[:, i] - mean) * (V[:, i] - mean)).sum() / g
        means.append(mean)
        agreements.append(-(variance + EPSILON).sqrt().log())
    weights = softmax_reference(agreements)  # the children compete for the parent
    value = V.new_zeros(())
    for i in range(children):
        value = value + weights[i] * means[i]
    return value, torch.stack(weights)

"""Heinsen routing in plain loops, step by step as in Heinsen 2019, Algorithm 1. Slow, and meant to be read."""

import torch
from torch import Tensor

from capsella.routing.base import Scored
from capsella.routing.dynamic.reference import softmax_reference
from capsella.routing.heinsen.settings import HeinsenSettings


def heinsen_routing_reference(
    votes: Tensor, activations: Tensor, beta_use: Tensor, beta_ignore: Tensor, settings: HeinsenSettings
) -> Scored:
    """For votes [b i j d], activations [b i], both β [i j]. Nothing is guarded but by ε."""
    results = [_route_one(V, f, beta_use, beta_ignore, settings) for V, f in zip(votes, activations, strict=True)]
    return Scored(*(torch.stack(parts) for parts in zip(*results, strict=True)))


def _route_one(
    V: Tensor, f: Tensor, beta_use: Tensor, beta_ignore: Tensor, settings: HeinsenSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """One image: μ [j d], scores a [j], R [i j]."""
    children, parents, _ = V.shape
    R = [[V.new_tensor(1 / parents) for _ in range(parents)] for _ in range(children)]
    for t in range(settings.iterations):
        if t > 0:  # E-step
            R = [
                softmax_reference([_logit(V[i, j], a[j], mu[j], variance[j]) for j in range(parents)])
                for i in range(children)
            ]
        a, mu, variance = [], [], []
        for j in range(parents):
            use = [f[i] * R[i][j] for i in range(children)]  # D-step
            ignore = [f[i] - use[i] for i in range(children)]
            a.append(sum(beta_use[i, j] * use[i] - beta_ignore[i, j] * ignore[i] for i in range(children)))  # M-step
            data = sum(use) + settings.epsilon
            mu.append(sum(use[i] * V[i, j] for i in range(children)) / data)
            variance.append(sum(use[i] * (V[i, j] - mu[j]) ** 2 for i in range(children)) / data + settings.epsilon)
    return torch.stack(mu), torch.stack(a), torch.stack([torch.stack(row) for row in R])


def _logit(V: Tensor, a: Tensor, mu: Tensor, variance: Tensor) -> Tensor:
    """The logit ln f(a_j) − Σ_d (V − μ_j)²/2σ²_j − Σ_d ln σ_j, for one vote [d]."""
    density = -((V - mu) ** 2 / (2 * variance)).sum() - variance.sqrt().log().sum()
    return torch.nn.functional.logsigmoid(a) + density

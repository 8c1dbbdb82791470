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
    return Scored.of_images(results, votes)


def _route_one(
    V: Tensor, f: Tensor, beta_use: Tensor, beta_ignore: Tensor, settings: HeinsenSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """One image: μ [j d], scores a [j], R [i j]."""
    children, parents, _ = V.shape
    a: list[Tensor] = []
    mu: list[Tensor] = []
    variance: list[Tensor] = []
    R = [[V.new_tensor(1 / parents) for _ in range(parents)] for _ in range(children)]
    for t in range(settings.iterations):
        if t > 0:  # E-step
            R = [
                softmax_reference([_logit(V[i, j], a[j], mu[j], variance[j]) for j in range(parents)])
                for i in range(children)
            ]
        use = f[:, None] * torch.stack([torch.stack(row) for row in R])  # D-step
        ignore = f[:, None] - use
        # M-step
        a = [(beta_use[:, j] * use[:, j] - beta_ignore[:, j] * ignore[:, j]).sum() for j in range(parents)]
        gaussians = [_gaussian(V[:, j], use[:, j], settings.epsilon) for j in range(parents)]
        mu, variance = [one[0] for one in gaussians], [one[1] for one in gaussians]
    return torch.stack(mu), torch.stack(a), torch.stack([torch.stack(row) for row in R])


def _gaussian(V: Tensor, use: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """μ_j and σ²_j [d] of votes [i d] for one parent, each used as much as `use` [i]."""
    data = use.sum() + epsilon
    mu = torch.stack([use[i] * V[i] for i in range(len(V))]).sum(0) / data
    return mu, torch.stack([use[i] * (V[i] - mu) ** 2 for i in range(len(V))]).sum(0) / data + epsilon


def _logit(V: Tensor, a: Tensor, mu: Tensor, variance: Tensor) -> Tensor:
    """The logit ln f(a_j) − Σ_d (V − μ_j)²/2σ²_j − Σ_d ln σ_j, for one vote [d]."""
    density = -((V - mu) ** 2 / (2 * variance)).sum() - variance.sqrt().log().sum()
    return torch.nn.functional.logsigmoid(a) + density

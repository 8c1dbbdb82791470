"""Self-attention routing in plain loops, line for line with Mazzia et al. 2021. Slow, and meant to be read."""

import math

import torch
from torch import Tensor

from capsella.routing.base import Routed
from capsella.routing.dynamic.reference import softmax_reference


def squash_exponential_reference(s: Tensor) -> Tensor:
    """Equation 3 for one vector s [d]: (1 − 1/e^‖s‖) s/‖s‖, and 0 for s = 0."""
    squared = (s * s).sum()
    if squared == 0:
        return s * 0.0
    norm = squared.sqrt()
    return (1 - 1 / norm.exp()) * s / norm


def self_attention_routing_reference(votes: Tensor, prior: Tensor | None) -> Routed:
    """Equations 4 to 6 for votes [b i j d] and prior [i j]."""
    poses, couplings = torch.zeros_like(votes[:, 0]), torch.zeros_like(votes[..., 0])
    for image, u_hat in enumerate(votes):
        poses[image], couplings[image] = _route_one(u_hat, prior)
    return Routed(poses, (poses * poses).sum(-1).sqrt(), couplings)


def _route_one(u_hat: Tensor, prior: Tensor | None) -> tuple[Tensor, Tensor]:
    """One image: û [i j d] → v [j d], c [i j]."""
    children, parents, d = u_hat.shape
    zero = u_hat.new_zeros(())
    a = [[zero for _ in range(parents)] for _ in range(children)]
    for j in range(parents):
        for i in range(children):
            for k in range(children):  # Eq. 5: A = Û Ûᵀ / √d, its row i added up; k = i is one of them
                a[i][j] = a[i][j] + (u_hat[i, j] * u_hat[k, j]).sum() / math.sqrt(d)
    c = [softmax_reference(a[i]) for i in range(children)]  # Eq. 6, over the parents
    v = []
    for j in range(parents):
        s_j = zero
        for i in range(children):
            b_ij = zero if prior is None else prior[i, j]
            s_j = s_j + (c[i][j] + b_ij) * u_hat[i, j]  # Eq. 4: S = Ûᵀ (C + B)
        v.append(squash_exponential_reference(s_j))
    return torch.stack(v), torch.stack([torch.stack(row) for row in c])

"""Variational Bayes routing in plain loops, for one child and one parent at a time. Slow, and meant to be read."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from capsella.routing.base import Scored
from capsella.routing.variational.settings import VariationalSettings


class Posterior(NamedTuple):
    """What is known of one parent: the parameters of its Gaussian-Wishart, and of the Dirichlet."""

    m: Tensor
    kappa: Tensor
    inverse_psi: Tensor
    nu: Tensor
    alpha: Tensor


def variational_routing_reference(
    votes: Tensor, activations: Tensor, bias: Tensor, settings: VariationalSettings
) -> Scored:
    """For votes [b i j d], activations [b i] and bias [j]. Nothing is guarded."""
    results = [_route_one(V, a, bias, settings) for V, a in zip(votes, activations, strict=True)]
    return Scored.of_images(results, votes)


def _route_one(V: Tensor, a: Tensor, bias: Tensor, settings: VariationalSettings) -> tuple[Tensor, Tensor, Tensor]:
    """One image: m [j d], log-odds [j], R [i j]."""
    children, parents, D = V.shape
    R = torch.full((children, parents), 1 / parents, dtype=V.dtype)
    for t in range(settings.iterations):
        posteriors = [_posterior(V[:, j], R[:, j] * a, settings) for j in range(parents)]
        log_pi = _log_proportions(posteriors)
        log_lambda = [_log_determinant(q) for q in posteriors]
        if t < settings.iterations - 1:
            rows = []
            for i in range(children):
                log_p = [_log_density(V[i, j], posteriors[j], log_lambda[j]) for j in range(parents)]
                total = torch.stack([pi + p for pi, p in zip(log_pi, log_p, strict=True)]).logsumexp(0)
                rows.append(
                    [
                        (p + (pi if settings.proportions else 0.0) - total).exp()
                        for pi, p in zip(log_pi, log_p, strict=True)
                    ]
                )
            R = torch.stack([torch.stack(row) for row in rows])
    entropy = [0.5 * D * math.log(2 * math.pi * math.e) - 0.5 * one for one in log_lambda]
    log_odds = [bias[j] - log_pi[j].exp() * entropy[j] for j in range(parents)]
    return torch.stack([q.m for q in posteriors]), torch.stack(log_odds), R


def _posterior(V: Tensor, r: Tensor, settings: VariationalSettings) -> Posterior:
    """The parent that gets `r` [i] of each of the votes V [i d]."""
    D = V.shape[1]
    R_j = r.sum()
    mu = sum(r[i] * V[i] for i in range(len(V))) / R_j
    scatter = sum(r[i] * (V[i] - mu) ** 2 for i in range(len(V)))
    kappa = settings.mean_weight + R_j
    return Posterior(
        m=R_j * mu / kappa,
        kappa=kappa,
        inverse_psi=1 / settings.precision + scatter + settings.mean_weight * R_j / kappa * mu**2,
        nu=D - 1 + settings.degrees + R_j,
        alpha=settings.concentration + R_j,
    )


def _log_proportions(posteriors: list[Posterior]) -> list[Tensor]:
    """E ln π_j = ψ(α_j) − ψ(Σ_j α_j)."""
    total = torch.stack([q.alpha for q in posteriors]).sum()
    return [torch.digamma(q.alpha) - torch.digamma(total) for q in posteriors]


def _log_determinant(q: Posterior) -> Tensor:
    """E ln|Λ_j| = Σ_{d<D} ψ((ν_j − d)/2) + D ln 2 + ln|Ψ_j|."""
    D = len(q.m)
    digammas = torch.stack([torch.digamma((q.nu - d) / 2) for d in range(D)])
    return digammas.sum() + D * math.log(2) - q.inverse_psi.log().sum()


def _log_density(V: Tensor, q: Posterior, log_lambda: Tensor) -> Tensor:
    """The log-density ln p_ij = ½ E ln|Λ_j| − ½ D ln 2π − ½ (D/κ_j + ν_j Σ_h Ψ_jh (V − m_j)²_h), for one vote [d]."""
    D = len(V)
    distance = D / q.kappa + q.nu * ((V - q.m) ** 2 / q.inverse_psi).sum()
    return 0.5 * log_lambda - 0.5 * D * math.log(2 * math.pi) - 0.5 * distance

"""Variational Bayes routing, vectorised and differentiable. Gradients flow through every iteration.

Couplings live as logarithms, and no mean is taken by dividing two sums that may both vanish: see `shares_of`. The
priors keep variances above zero.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.routing.base import Scored
from capsella.routing.moments import Votes, WrittenVotes, distances_to, shares_of
from capsella.routing.recording import is_recording, new_trace
from capsella.routing.variational.settings import VariationalSettings

SHIFT = 6
"""Of the argument of ψ: its series then errs by 1e-11."""


class Posterior(NamedTuple):
    """What is known of the parents: of each its Gaussian-Wishart, and what the Dirichlet says of it."""

    m: Float[Tensor, "n j d"]
    kappa: Float[Tensor, "n j"]
    psi: Float[Tensor, "n j d"]
    nu: Float[Tensor, "n j"]
    log_pi: Float[Tensor, "n j"]  # E ln π
    log_lambda: Float[Tensor, "n j"]  # E ln|Λ|


def variational_routing_eager(
    votes: Tensor, activations: Tensor, bias: Tensor, settings: VariationalSettings
) -> Scored:
    """Ribeiro et al. 2020 for votes [b i j d]: all j parents compete for every child."""
    return variational_procedure(WrittenVotes(votes.transpose(1, 2)), activations, bias, settings)


def variational_procedure(votes: Votes, activations: Tensor, bias: Tensor, settings: VariationalSettings) -> Scored:
    """The procedure for the votes of i children with activations [n i] for parents of bias [j]."""
    trace = new_trace("variational")
    a = activations.unsqueeze(1)  # [n 1 i]
    log_R = a.new_full((a.shape[0], len(bias), a.shape[2]), -math.log(len(bias)))
    for t in range(settings.iterations):
        R = log_R.exp()
        q = _posterior(votes, shares_of(log_R, a), (R * a).sum(2), settings)
        log_odds = bias - q.log_pi.exp() * _entropy(q)
        distances = distances_to(q.m, votes) if is_recording() else None
        trace.add(R.transpose(1, 2), q.m, log_odds.sigmoid(), distances)
        if t < settings.iterations - 1:  # after the last posterior nobody would use them
            log_pi = q.log_pi.unsqueeze(2)
            # ln π is taken from the normalised couplings: far votes' ln p, of millions, would swallow it
            log_R = (log_pi + _log_density(votes, q)).log_softmax(1)
            log_R = log_R if settings.proportions else log_R - log_pi
    return Scored(q.m, log_odds, R.transpose(1, 2))


def _posterior(votes: Votes, shares: Tensor, data: Tensor, settings: VariationalSettings) -> Posterior:
    """The parents, by each child's share of their data [n j i] and by all their data R_j [n j]."""
    mu, variance = votes.moments(shares)
    D = mu.shape[2]
    kappa, nu = settings.mean_weight + data, D - 1 + settings.degrees + data
    pulled = (settings.mean_weight * data / kappa).unsqueeze(2)
    inverse_psi = 1 / settings.precision + data.unsqueeze(2) * variance + pulled * mu.square()
    alpha = settings.concentration + data
    halves = torch.arange(D, dtype=nu.dtype, device=nu.device)
    digammas = digamma((nu.unsqueeze(2) - halves) / 2).sum(2)
    return Posterior(
        m=(data / kappa).unsqueeze(2) * mu,
        kappa=kappa,
        psi=1 / inverse_psi,
        nu=nu,
        log_pi=digamma(alpha) - digamma(alpha.sum(1, keepdim=True)),
        log_lambda=digammas + D * math.log(2) - inverse_psi.log().sum(2),
    )


def _entropy(q: Posterior) -> Tensor:
    """H_j = ½ D ln 2πe − ½ E ln|Λ_j| [n j]."""
    return 0.5 * (q.m.shape[2] * math.log(2 * math.pi * math.e) - q.log_lambda)


def _log_density(votes: Votes, q: Posterior) -> Tensor:
    """E ln N(V_ij; μ_j, Λ_j) [n j i], but for −½ D ln 2π, which all parents have in common."""
    distance = votes.scaled_distance(q.m, q.nu.unsqueeze(2) * q.psi)
    return 0.5 * ((q.log_lambda - q.m.shape[2] / q.kappa).unsqueeze(2) - distance)


def digamma(x: Tensor) -> Tensor:
    """ψ(x) for x > 0, of operators that every exported graph has, ONNX's too: `torch.digamma` is not among them.

    ψ(x) = ψ(x + n) − Σ_{k<n} 1/(x + k), and its asymptotic series (Abramowitz and Stegun 1964, 6.3.6 and 6.3.18).
    """
    below = 1 / x
    for k in range(1, SHIFT):
        below = below + 1 / (x + k)
    y = 1 / (x + SHIFT)
    z = y * y
    series = z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z / 132))))
    return (x + SHIFT).log() - 0.5 * y - series - below

"""Heinsen routing, vectorised and differentiable. Gradients flow through every iteration.

Couplings live as logarithms. ε is put into means and variances behind the passes over the votes.
"""

import math

import torch
from torch import Tensor

from capsella.routing.base import Scored
from capsella.routing.heinsen.settings import HeinsenSettings
from capsella.routing.moments import Votes, WrittenVotes, distances_to, shares_of
from capsella.routing.recording import is_recording, new_trace


def heinsen_routing_eager(
    votes: Tensor, activations: Tensor, beta_use: Tensor, beta_ignore: Tensor, settings: HeinsenSettings
) -> Scored:
    """Heinsen 2019, Algorithm 1, for votes [b i j d]: all j parents compete for every child."""
    return heinsen_procedure(WrittenVotes(votes.transpose(1, 2)), activations, beta_use, beta_ignore, settings)


def heinsen_procedure(
    votes: Votes, activations: Tensor, beta_use: Tensor, beta_ignore: Tensor, settings: HeinsenSettings
) -> Scored:
    """Algorithm 1 for the votes of i children with activations [n i]; both β are [i j]."""
    trace = new_trace("heinsen")
    f = activations.unsqueeze(1)  # [n 1 i]
    parents = beta_use.shape[1]
    log_R = f.new_full((f.shape[0], parents, f.shape[2]), -math.log(parents))
    for t in range(settings.iterations):
        R = log_R.exp()
        use = f * R  # D-step
        score = (beta_use.T * use).sum(2) - (beta_ignore.T * (f - use)).sum(2)  # M-step
        mu, variance = _gaussians(votes, shares_of(log_R, f), use.sum(2, keepdim=True), settings.epsilon)
        trace.add(R.transpose(1, 2), mu, score.sigmoid(), distances_to(mu, votes) if is_recording() else None)
        if t < settings.iterations - 1:  # E-step; after the last M-step nobody would use it
            log_p = -0.5 * (votes.scaled_distance(mu, 1 / variance) + variance.log().sum(2, keepdim=True))
            log_R = (torch.nn.functional.logsigmoid(score).unsqueeze(2) + log_p).log_softmax(1)
    return Scored(mu, score, R.transpose(1, 2))


def _gaussians(votes: Votes, shares: Tensor, data: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """μ and σ² [n j d] whose data [n j 1] count as ε more than they are, which pulls the mean to zero."""
    mean, variance = votes.moments(shares)
    weight = data / (data + epsilon)
    return weight * mean, weight * (variance + ((1 - weight) * mean).square()) + epsilon

"""EM routing, vectorised and differentiable. Gradients flow through every iteration.

Couplings live as logarithms, variances are never divided by without their floor, and no mean is taken by dividing two
sums that may both vanish: see `shares_of`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from capsella.routing.base import Scored
from capsella.routing.convolution import CapsuleConv, slot_positions
from capsella.routing.em.settings import STANDARDISED_COST_EPSILON, EMSettings, start_couplings
from capsella.routing.moments import Votes, WrittenVotes, distances_to, shares_of
from capsella.routing.recording import is_recording, new_trace

LogNormaliser = Callable[[Tensor], Tensor]


def em_routing_eager(
    votes: Tensor, activations: Tensor, beta_u: Tensor, beta_a: Tensor, settings: EMSettings
) -> Scored:
    """Hinton et al. 2018, Procedure 1, for votes [b i j d]: all j parents compete for every child."""
    V = WrittenVotes(votes.transpose(1, 2))
    return em_procedure(V, activations, beta_u, beta_a, settings, compete_here)


def em_procedure(
    votes: Votes,
    activations: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    settings: EMSettings,
    log_normaliser: LogNormaliser,
) -> Scored:
    """Procedure 1 for the votes of i children with activations [n i].

    log_normaliser: from logits [n j i] to the logarithm of their exponentials' sum over all parents that compete for
        child i, broadcastable to [n j i].
    """
    trace = new_trace("em")
    a = activations.unsqueeze(1)  # [n 1 i]
    parents, (windows, children) = len(beta_u), activations.shape
    logits = activations.new_zeros(windows, parents, children)
    even = logits - log_normaliser(logits)  # ln 1/|parents of i|
    even_share = even.exp().sum(2)  # [n j], the data of a parent if every child were active and undecided
    # R_ij ← 1/|parents of i|, or as a random start departs from it; both count each of the i's windows alike
    log_R = even + (start_couplings(children, parents, settings).to(even).T * parents).log()
    for t in range(settings.iterations):
        # M-step
        R = log_R.exp()
        data = (R * a).sum(2)  # Σ_i r_ij
        mu, variance = votes.moments(shares_of(log_R, a))
        variance = variance.clamp(min=settings.variance_floor)
        log_odds = _log_odds(data, even_share, variance, beta_u, beta_a, settings, t)
        trace.add(R.transpose(1, 2), mu, log_odds.sigmoid(), distances_to(mu, votes) if is_recording() else None)
        # E-step; after the last M-step nobody would use it
        if t < settings.iterations - 1:
            log_p = -0.5 * (votes.scaled_distance(mu, 1 / variance) + _log_2pi_variance(variance))
            log_a = torch.nn.functional.logsigmoid(log_odds)
            logits = log_a.unsqueeze(2) + settings.sharpness_at(t) * log_p
            log_R = logits - log_normaliser(logits)
    return Scored(mu, log_odds, R.transpose(1, 2))


def _log_2pi_variance(variance: Tensor) -> Tensor:
    """Σ_d ln(2πσ²_d) [n j 1]."""
    return variance.log().sum(2, keepdim=True) + variance.shape[2] * math.log(2 * math.pi)


def _log_odds(
    data: Tensor,
    even_share: Tensor,
    variance: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    settings: EMSettings,
    iteration: int,
) -> Tensor:
    """Returns λ_t (β_a − Σ_d (β_u + ln σ_d) Σ_i r_ij) [n j], the log-odds of a_j, with the options of `EMSettings`."""
    if settings.cost_scale is not None:
        data = data * settings.cost_scale / even_share
    cost = (variance.shape[2] * beta_u + 0.5 * variance.log().sum(2)) * data
    if settings.standardise_costs:
        centred = cost - cost.mean(1, keepdim=True)
        cost = centred / (centred.square().mean(1, keepdim=True) + STANDARDISED_COST_EPSILON).sqrt()
    return settings.inverse_temperature_at(iteration) * (beta_a - cost)


def compete_here(logits: Tensor) -> Tensor:
    """The `log_normaliser` for parents of which all compete for every child."""
    return logits.logsumexp(1, keepdim=True)


def compete_everywhere(conv: CapsuleConv) -> LogNormaliser:
    """The `log_normaliser` of [H]: every type at every site whose window holds the child competes for it."""
    sizes, here = conv.sizes, slot_positions(conv).flatten()

    def log_normaliser(logits: Tensor) -> Tensor:
        types = logits.logsumexp(1).reshape(sizes.batch, len(here), sizes.c_in)  # over the types at one site
        grid = types.new_zeros(sizes.batch, sizes.height * sizes.width, sizes.c_in)
        index = here[None, :, None].expand_as(types)
        largest = grid.scatter_reduce(1, index, types.detach(), "amax", include_self=False)[:, here]
        total = grid.index_add(1, here, (types - largest).exp())[:, here]
        return (largest + total.log()).reshape(logits.shape[0], 1, logits.shape[2])

    return log_normaliser

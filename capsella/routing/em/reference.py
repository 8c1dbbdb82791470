"""EM routing in plain loops, line for line with Hinton et al. 2018, Procedure 1. Slow, and meant to be read.

One procedure serves both forms: children and parents are numbered, and a vote V_ij exists where the window of parent j
holds child i. All parents that have a vote of a child compete for it. Nothing is guarded but σ², by its stated floor.
"""

import itertools
import math

import torch
from torch import Tensor

from capsella.routing.base import Scored
from capsella.routing.convolution import CapsuleConv
from capsella.routing.em.settings import STANDARDISED_COST_EPSILON, EMSettings, start_couplings
from capsella.types import ScoredCapsules

Links = dict[tuple[int, int], Tensor]
"""A value for every child i and parent j that are linked."""


def em_routing_reference(
    votes: Tensor, activations: Tensor, beta_u: Tensor, beta_a: Tensor, settings: EMSettings
) -> Scored:
    """Procedure 1 for votes [b i j d]: every child has a vote for every parent."""
    _, children, parents, _ = votes.shape
    share = start_couplings(children, parents, settings).to(votes)
    results = []
    for image, a in zip(votes, activations, strict=True):
        V = {(i, j): image[i, j] for i in range(children) for j in range(parents)}
        start = {(i, j): share[i, j] for i, j in V}
        mu, log_odds, R = em_routing_of_links(V, start, list(a), list(beta_u), list(beta_a), [0] * parents, settings)
        couplings = torch.stack([torch.stack([R[i, j] for j in range(parents)]) for i in range(children)])
        results.append((torch.stack(mu), torch.stack(log_odds), couplings))
    return Scored.of_images(results, votes)


def em_capsule_conv_reference(
    conv: CapsuleConv, beta_u: Tensor, beta_a: Tensor, settings: EMSettings
) -> ScoredCapsules:
    """A capsule convolution with the competition of [H]: all types at all sites whose window holds the child."""
    sizes = conv.sizes
    parents = [(y, x, t) for y in range(sizes.rows) for x in range(sizes.columns) for t in range(sizes.c_out)]
    share = start_couplings(sizes.i, sizes.c_out, settings).to(conv.poses)
    u, scores = [], []
    for image, active in zip(conv.poses, conv.activations, strict=True):
        V, within = _votes_of_windows(image, conv, parents)
        mu, log_odds, _ = em_routing_of_links(
            V,
            {(i, j): share[within[i, j], parents[j][2]] for i, j in V},
            list(active.flatten()),
            [beta_u[t] for _, _, t in parents],
            [beta_a[t] for _, _, t in parents],
            [y * sizes.columns + x for y, x, _ in parents],
            settings,
        )
        u.append(torch.stack(mu))
        scores.append(torch.stack(log_odds))
    if not u:
        empty = conv.poses.new_empty(0, len(parents), sizes.d)
        return conv.scored_parents(empty, empty[..., 0])
    return conv.scored_parents(torch.stack(u), torch.stack(scores))


def _votes_of_windows(
    poses: Tensor, conv: CapsuleConv, parents: list[tuple[int, int, int]]
) -> tuple[Links, dict[tuple[int, int], int]]:
    """V_ij = M_i W_ij for one image, poses [h w c_in p], children numbered in that order; i's number in j's window."""
    _, width, c_in, _ = poses.shape
    geometry, (kh, kw) = conv.geometry, conv.geometry.kernel
    V: Links = {}
    within = {}
    for j, (site_row, site_column, t) in enumerate(parents):
        for y, x, m in itertools.product(range(kh), range(kw), range(c_in)):
            row, column = site_row * geometry.stride[0] + y, site_column * geometry.stride[1] + x
            W = conv.weight[0, 0, m, t] if geometry.tied else conv.weight[y, x, m, t]
            M = poses[row, column, m].reshape(-1, len(W))  # a vector is a matrix of one row
            vote = (M @ W).flatten()
            i = (row * width + column) * c_in + m
            V[i, j] = vote if conv.vote_offset is None else vote + conv.vote_offset[row, column]
            within[i, j] = (y * kw + x) * c_in + m
    return V, within


def em_routing_of_links(
    V: Links,
    start: Links,
    a_in: list[Tensor],
    beta_u: list[Tensor],
    beta_a: list[Tensor],
    positions: list[int],
    settings: EMSettings,
) -> tuple[list[Tensor], list[Tensor], Links]:
    """Procedure "EM routing": μ_j and the log-odds of a_j of every parent, and R_ij of the last iteration.

    `start`: what R_ij begins in proportion to.
    `positions`: where each parent stands; only standardised costs ask for it.
    """
    parents = range(len(beta_u))
    parents_of = {i: [k for c, k in V if c == i] for i, _ in V}
    even = {(i, j): a_in[i].new_ones(()) / len(parents_of[i]) for i, j in V}
    # line 2: R_ij ← 1/|Ω_L+1|, where `start` is even
    R = {(i, j): start[i, j] / _sum([start[i, k] for k in parents_of[i]]) for i, j in V}
    for t in range(settings.iterations):  # line 3
        gaussians = [_m_step(a_in, R, even, V, j, beta_u[j], settings) for j in parents]  # line 4
        costs = [cost for _, _, cost in gaussians]
        if settings.standardise_costs:
            costs = [_standardised(j, costs, positions) for j in parents]
        inverse_temperature = settings.inverse_temperature_at(t)
        log_odds = [inverse_temperature * (beta_a[j] - costs[j]) for j in parents]
        a = [torch.sigmoid(x) for x in log_odds]  # M-step, line 6
        if t < settings.iterations - 1:  # the last E-step would be used by nobody
            tau = settings.sharpness_at(t)
            R = {(i, j): r for i in parents_of for j, r in _e_step(a, V, gaussians, i, parents_of[i], tau)}  # line 5
    return [mu for mu, _, _ in gaussians], log_odds, R


def _m_step(
    a_in: list[Tensor], R: Links, even: Links, V: Links, j: int, beta_u: Tensor, settings: EMSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Procedure "M-step" for parent j: μ_j, σ²_j and Σ_h cost_j^h."""
    children = [i for i, k in V if k == j]
    r = {i: R[i, j] * a_in[i] for i in children}  # line 2
    data = _sum([r[i] for i in children])
    mu = _sum([r[i] * V[i, j] for i in children]) / data  # line 3
    variance = _sum([r[i] * (V[i, j] - mu) ** 2 for i in children]) / data  # line 4
    variance = variance.clamp(min=settings.variance_floor)
    if settings.cost_scale is not None:
        data = data * settings.cost_scale / _sum([even[i, j] for i in children])
    cost = (beta_u + variance.sqrt().log()) * data  # line 5
    return mu, variance, cost.sum()


def _e_step(
    a: list[Tensor], V: Links, gaussians: list[tuple[Tensor, Tensor, Tensor]], i: int, parents: list[int], tau: float
) -> list[tuple[int, Tensor]]:
    """Procedure "E-step" for child i: R_ij of each of its parents j; the paper's τ is 1."""
    log_ap = []
    for j in parents:
        mu, variance, _ = gaussians[j]
        log_p = (-0.5 * (2 * math.pi * variance).log() - (V[i, j] - mu) ** 2 / (2 * variance)).sum()  # line 2
        log_ap.append(a[j].log() + tau * log_p)
    largest = max(
        float(value.detach()) for value in log_ap
    )  # subtracted from all: R stays the same, exp does not vanish
    ap = [(value - largest).exp() for value in log_ap]
    return [(j, value / _sum(ap)) for j, value in zip(parents, ap, strict=True)]  # line 3


def _standardised(j: int, costs: list[Tensor], positions: list[int]) -> Tensor:
    """Forslöv 2018, Algorithm 2, lines 15–18, with line 16's mean and line 18's sign put right."""
    here = torch.stack([cost for cost, position in zip(costs, positions, strict=True) if position == positions[j]])
    mean = here.mean()
    return (costs[j] - mean) / (((here - mean) ** 2).mean() + STANDARDISED_COST_EPSILON).sqrt()


def _sum(values: list[Tensor]) -> Tensor:
    return torch.stack(values).sum(0)

"""EM routing in plain loops, line for line with Hinton et al. 2018, Procedure 1. Slow, and meant to be read.

One procedure serves both forms: children and parents are numbered, and a vote V_ij exists where the window of parent j
holds child i. Nothing is guarded but σ², by its documented floor.
"""

import math

import torch
from torch import Tensor

from capsella.routing.base import Routed
from capsella.routing.convolution import Geometry
from capsella.routing.em.settings import EMSettings
from capsella.types import Capsules

Link = tuple[int, int]


def em_routing_reference(
    votes: Tensor, activations: Tensor, beta_u: Tensor, beta_a: Tensor, settings: EMSettings
) -> Routed:
    """Procedure 1 for votes [b i j d]: every parent has a vote of every child, and all compete."""
    _, children, parents, _ = votes.shape
    links = [(i, j) for i in range(children) for j in range(parents)]
    rivals = {(i, j): list(range(parents)) for i, j in links}
    results = []
    for image, a in zip(votes, activations, strict=True):
        V = {(i, j): image[i, j] for i, j in links}
        mu, a_out, R = _em_routing(V, list(a), list(beta_u), list(beta_a), rivals, [list(range(parents))] * parents, settings)
        couplings = torch.stack([torch.stack([R[i, j] for j in range(parents)]) for i in range(children)])
        results.append((torch.stack(mu), torch.stack(a_out), couplings))
    return Routed(*(torch.stack(parts) for parts in zip(*results, strict=True)))


def em_capsule_conv_reference(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    geometry: Geometry,
    vote_offset: Tensor | None,
    beta_u: Tensor,
    beta_a: Tensor,
    settings: EMSettings,
) -> Capsules:
    """A capsule convolution with the competition of [H]: all types at all positions whose window holds the child."""
    batch, *_, c_in, _ = poses.shape
    height, width = poses.shape[1:3]
    rows, columns = geometry.grid((height, width))
    c_out = weight.shape[3]
    parents = [(r, c, t) for r in range(rows) for c in range(columns) for t in range(c_out)]
    (kh, kw), (sh, sw) = geometry.kernel, geometry.stride
    results = []
    for image in range(batch):
        V: dict[Link, Tensor] = {}
        for j, (r, c, t) in enumerate(parents):
            for y in range(kh):
                for x in range(kw):
                    for s in range(c_in):
                        row, column = r * sh + y, c * sw + x
                        W = weight[0, 0, s, t] if geometry.tied else weight[y, x, s, t]
                        vote = _vote(poses[image, row, column, s], W)
                        if vote_offset is not None:
                            vote = vote + vote_offset[row, column]
                        V[(row * width + column) * c_in + s, j] = vote
        parents_of: dict[int, list[int]] = {}
        for i, j in V:
            parents_of.setdefault(i, []).append(j)
        rivals = {(i, j): parents_of[i] for i, j in V}
        together = [[k for k, other in enumerate(parents) if other[:2] == parent[:2]] for parent in parents]
        types = [t for _, _, t in parents]
        results.append(
            _em_routing(
                V,
                list(activations[image].flatten()),
                [beta_u[t] for t in types],
                [beta_a[t] for t in types],
                rivals,
                together,
                settings,
            )[:2]
        )
    grid = (batch, rows, columns, c_out)
    mu = torch.stack([torch.stack(poses) for poses, _ in results])
    return Capsules(mu.reshape(*grid, -1), torch.stack([torch.stack(a) for _, a in results]).reshape(grid))


def _vote(M: Tensor, W: Tensor) -> Tensor:
    """V = M·W: a vector times W [p d], or a matrix pose, row by row, times W [n n]."""
    return (M.reshape(-1, W.shape[0]) @ W).flatten()


def _em_routing(
    V: dict[Link, Tensor],
    a_in: list[Tensor],
    beta_u: list[Tensor],
    beta_a: list[Tensor],
    rivals: dict[Link, list[int]],
    together: list[list[int]],
    settings: EMSettings,
) -> tuple[list[Tensor], list[Tensor], dict[Link, Tensor]]:
    """Procedure 1: μ_j, a_j and R_ij from votes V_ij.

    rivals: the parents (j among them) that compete for child i in link (i, j). together: the parents at j's position.
    """
    parents = range(len(beta_u))
    one = a_in[0].new_ones(())
    even = {link: one / len(rivals[link]) for link in V}  # line 2: R_ij ← 1/|Ω_L+1|
    children_of: list[list[int]] = [[i for i, k in V if k == j] for j in parents]
    R = even
    for t in range(settings.iterations):  # line 3
        r = {(i, j): R[i, j] * a_in[i] for i, j in V}  # M-step, line 2
        data = [sum((r[i, j] for i in children_of[j]), start=0 * one) for j in parents]
        mu, variance, cost = [], [], []
        for j in parents:
            mu.append(sum(r[i, j] * V[i, j] for i in children_of[j]) / data[j])  # line 3
            spread = sum(r[i, j] * (V[i, j] - mu[j]) ** 2 for i in children_of[j]) / data[j]  # line 4
            variance.append(spread.clamp(min=settings.variance_floor))
            charged = data[j]
            if settings.cost_scale is not None:
                charged = charged * settings.cost_scale / sum(even[i, j] for i in children_of[j])
            cost.append(((beta_u[j] + variance[j].sqrt().log()) * charged).sum())  # line 5, summed over h
        if settings.standardise:
            cost = [_standardised(cost[j], [cost[k] for k in together[j]]) for j in parents]
        inverse_temperature = settings.inverse_temperature_at(t)
        a = [torch.sigmoid(inverse_temperature * (beta_a[j] - cost[j])) for j in parents]  # line 6
        if t < settings.iterations - 1:  # the last E-step would be used by nobody
            log_p = {(i, j): _log_density(V[i, j], mu[j], variance[j]) for i, j in V}  # E-step, line 2
            R = {(i, j): _softmax([a[k].log() + log_p[i, k] for k in rivals[i, j]], rivals[i, j].index(j)) for i, j in V}  # line 3
    return mu, a, R


def _log_density(vote: Tensor, mu: Tensor, variance: Tensor) -> Tensor:
    """Ln p = Σ_h ln of the normal density of V_h, with mean μ_h and variance σ²_h."""
    return (-0.5 * (2 * math.pi * variance).log() - (vote - mu) ** 2 / (2 * variance)).sum()


def _softmax(logits: list[Tensor], position: int) -> Tensor:
    """One element of the softmax; the largest is subtracted first, which changes nothing but the range."""
    largest = max(float(logit) for logit in logits)
    exponentials = [(logit - largest).exp() for logit in logits]
    return exponentials[position] / torch.stack(exponentials).sum()


def _standardised(cost: Tensor, costs: list[Tensor]) -> Tensor:
    """Forslöv 2018, Algorithm 2, lines 15–18, with the mean in place of its misprinted line 16."""
    all_costs = torch.stack(costs)
    mean = all_costs.mean()
    return (cost - mean) / ((all_costs - mean) ** 2).mean().sqrt()

"""Routings that fit a Gaussian per parent in plain loops, line for line with their papers. Slow, and meant to be read.

Numerical edge cases are guarded only where the paper does so. `settings` are those of the routing, e.g. `EMRouting`.
"""

import itertools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from capsella.routing.convolution import RoutingInputs
from capsella.routing.reference import softmax_reference

STANDARDISED_COST_EPSILON = 1e-8  # of Forslöv 2018, inside the square root: equal costs have a zero value and gradient
Links = dict[tuple[int, int], Tensor]  # a value for every child i and parent j that are linked
Image = tuple[Tensor, Tensor, Tensor]  # poses [j d], log-odds [j] and couplings [i j] of one image


def em_routing_reference(
    votes: Tensor, activations: Tensor, beta_u: Tensor, beta_a: Tensor, settings: Any
) -> list[Image]:
    """Route votes [b i j d] by Procedure 1 of Hinton et al. 2018: every child has a vote for every parent."""
    _, children, parents, _ = votes.shape
    share = settings.start_couplings(children, parents).to(votes)
    results = []
    for image, a in zip(votes, activations, strict=True):
        V = {(i, j): image[i, j] for i in range(children) for j in range(parents)}
        start = {(i, j): share[i, j] for i, j in V}
        mu, log_odds, R = em_routing_of_links(V, start, list(a), list(beta_u), list(beta_a), [0] * parents, settings)
        couplings = torch.stack([torch.stack([R[i, j] for j in range(parents)]) for i in range(children)])
        results.append((torch.stack(mu), torch.stack(log_odds), couplings))
    return results


def em_layer_reference(inputs: RoutingInputs, beta_u: Tensor, beta_a: Tensor, settings: Any) -> tuple[Tensor, Tensor]:
    """Route a layer with the competition of [H]: all types at all sites whose window holds the child.

    Children and parents are numbered, and a vote V_ij exists where the window of parent j holds child i. The result is
    poses [b j d] and log-odds [b j].
    """
    sizes = inputs.shape
    parents = [(y, x, t) for y in range(sizes.rows) for x in range(sizes.columns) for t in range(sizes.c_out)]
    share = settings.start_couplings(sizes.i, sizes.c_out).to(inputs.poses)
    u, scores = [], []
    for image, active in zip(inputs.poses, inputs.activations, strict=True):
        V, within = _votes_of_windows(image, inputs, parents)
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
        empty = inputs.poses.new_empty(0, len(parents), sizes.d)
        return empty, empty[..., 0]
    return torch.stack(u), torch.stack(scores)


def _votes_of_windows(
    poses: Tensor, inputs: RoutingInputs, parents: list[tuple[int, int, int]]
) -> tuple[Links, dict[tuple[int, int], int]]:
    """Return one image's votes V_ij = M_i W_ij, for poses [h w c_in p], and child i's index in parent j's window."""
    _, width, c_in, _ = poses.shape
    geometry, (kh, kw) = inputs.geometry, inputs.geometry.kernel
    V: Links = {}
    within = {}
    for j, (site_row, site_column, t) in enumerate(parents):
        for y, x, m in itertools.product(range(kh), range(kw), range(c_in)):
            row, column = site_row * geometry.stride[0] + y, site_column * geometry.stride[1] + x
            W = inputs.weight[0, 0, m, t] if geometry.tied else inputs.weight[y, x, m, t]
            M = poses[row, column, m].reshape(-1, len(W))  # a vector is a matrix of one row
            vote = (M @ W).flatten()
            i = (row * width + column) * c_in + m
            V[i, j] = vote if inputs.vote_offset is None else vote + inputs.vote_offset[row, column]
            within[i, j] = (y * kw + x) * c_in + m
    return V, within


def em_routing_of_links(
    V: Links,
    start: Links,
    a_in: list[Tensor],
    beta_u: list[Tensor],
    beta_a: list[Tensor],
    positions: list[int],
    settings: Any,
) -> tuple[list[Tensor], list[Tensor], Links]:
    """Run procedure "EM routing": return μ_j and the log-odds of a_j of every parent, and the last iteration's R_ij.

    All parents for which a child votes compete for it.

    Args:
        V, a_in, beta_u, beta_a: votes, activations and β of the procedure.
        start: R_ij is initially proportional to it.
        positions: the site of each parent, over whose types costs are standardised.
        settings: an `EMRouting`.
    """
    parents = range(len(beta_u))
    parents_of = {i: [k for c, k in V if c == i] for i, _ in V}
    uniform = {(i, j): a_in[i].new_ones(()) / len(parents_of[i]) for i, j in V}
    # line 2: R_ij ← 1/|Ω_L+1|, where `start` is uniform
    R = {(i, j): start[i, j] / _sum([start[i, k] for k in parents_of[i]]) for i, j in V}
    for t in range(settings.iterations):  # line 3
        gaussians = [_m_step(a_in, R, uniform, V, j, beta_u[j], settings) for j in parents]  # line 4
        costs = [cost for _, _, cost in gaussians]
        if settings.standardise_costs:
            costs = [_standardised(j, costs, positions) for j in parents]
        inverse_temperature = settings.inverse_temperature_at(t)
        log_odds = [inverse_temperature * (beta_a[j] - costs[j]) for j in parents]
        a = [torch.sigmoid(x) for x in log_odds]  # M-step, line 6
        if t < settings.iterations - 1:  # the last E-step would not be used
            tau = settings.likelihood_weight_at(t)
            R = {(i, j): r for i in parents_of for j, r in _e_step(a, V, gaussians, i, parents_of[i], tau)}  # line 5
    return [mu for mu, _, _ in gaussians], log_odds, R


def _m_step(
    a_in: list[Tensor], R: Links, uniform: Links, V: Links, j: int, beta_u: Tensor, settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Run procedure "M-step" for parent j: return μ_j, σ²_j and Σ_h cost_j^h."""
    children = [i for i, k in V if k == j]
    r = {i: R[i, j] * a_in[i] for i in children}  # line 2
    data = _sum([r[i] for i in children])
    mu = _sum([r[i] * V[i, j] for i in children]) / data  # line 3
    variance = _sum([r[i] * (V[i, j] - mu) ** 2 for i in children]) / data  # line 4
    variance = variance.clamp(min=settings.variance_floor)
    if settings.cost_scale is not None:
        data = data * settings.cost_scale / _sum([uniform[i, j] for i in children])
    cost = (beta_u + variance.sqrt().log()) * data  # line 5
    return mu, variance, cost.sum()


def _e_step(
    a: list[Tensor], V: Links, gaussians: list[tuple[Tensor, Tensor, Tensor]], i: int, parents: list[int], tau: float
) -> list[tuple[int, Tensor]]:
    """Run procedure "E-step" for child i: return j and R_ij of each of its parents j; τ is 1 in the paper."""
    log_ap = []
    for j in parents:
        mu, variance, _ = gaussians[j]
        log_p = (-0.5 * (2 * math.pi * variance).log() - (V[i, j] - mu) ** 2 / (2 * variance)).sum()  # line 2
        log_ap.append(a[j].log() + tau * log_p)
    largest = max(float(value.detach()) for value in log_ap)  # subtracted from all: R stays, exp does not vanish
    ap = [(value - largest).exp() for value in log_ap]
    return [(j, value / _sum(ap)) for j, value in zip(parents, ap, strict=True)]  # line 3


def _standardised(j: int, costs: list[Tensor], positions: list[int]) -> Tensor:
    """Standardise as in Forslöv 2018, Algorithm 2, lines 15–18, with line 16's mean and line 18's sign corrected."""
    here = torch.stack([cost for cost, position in zip(costs, positions, strict=True) if position == positions[j]])
    mean = here.mean()
    return (costs[j] - mean) / (((here - mean) ** 2).mean() + STANDARDISED_COST_EPSILON).sqrt()


def _sum(values: list[Tensor]) -> Tensor:
    return torch.stack(values).sum(0)


def heinsen_routing_reference(
    votes: Tensor, activations: Tensor, beta_use: Tensor, beta_ignore: Tensor, settings: Any
) -> list[Image]:
    """Route votes [b i j d] with activations [b i] and both β [i j] by Algorithm 1 of Heinsen 2019."""
    return [_heinsen_image(V, f, beta_use, beta_ignore, settings) for V, f in zip(votes, activations, strict=True)]


def _heinsen_image(V: Tensor, f: Tensor, beta_use: Tensor, beta_ignore: Tensor, settings: Any) -> Image:
    """Route one image: μ [j d], scores a [j], R [i j]."""
    children, parents, _ = V.shape
    a: list[Tensor] = []
    mu: list[Tensor] = []
    variance: list[Tensor] = []
    R = [[V.new_tensor(1 / parents) for _ in range(parents)] for _ in range(children)]
    for t in range(settings.iterations):
        if t > 0:  # E-step
            R = [
                softmax_reference([_heinsen_logit(V[i, j], a[j], mu[j], variance[j]) for j in range(parents)])
                for i in range(children)
            ]
        use = f[:, None] * torch.stack([torch.stack(row) for row in R])  # D-step
        ignore = f[:, None] - use
        # M-step
        a = [(beta_use[:, j] * use[:, j] - beta_ignore[:, j] * ignore[:, j]).sum() for j in range(parents)]
        gaussians = [_gaussian(V[:, j], use[:, j], settings.epsilon) for j in range(parents)]
        mu, variance = [mean for mean, _ in gaussians], [spread for _, spread in gaussians]
    return torch.stack(mu), torch.stack(a), torch.stack([torch.stack(row) for row in R])


def _gaussian(V: Tensor, use: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return μ_j and σ²_j [d] of the votes [i d] for one parent, weighed by `use` [i]."""
    data = use.sum() + epsilon
    mu = torch.stack([use[i] * V[i] for i in range(len(V))]).sum(0) / data
    return mu, torch.stack([use[i] * (V[i] - mu) ** 2 for i in range(len(V))]).sum(0) / data + epsilon


def _heinsen_logit(V: Tensor, a: Tensor, mu: Tensor, variance: Tensor) -> Tensor:
    """Return the logit ln f(a_j) − Σ_d (V − μ_j)²/2σ²_j − Σ_d ln σ_j, for one vote [d]."""
    density = -((V - mu) ** 2 / (2 * variance)).sum() - variance.sqrt().log().sum()
    return torch.nn.functional.logsigmoid(a) + density


class Posterior(NamedTuple):
    """The posterior of one parent: the parameters of its Gaussian-Wishart, and of the Dirichlet."""

    m: Tensor
    kappa: Tensor
    inverse_psi: Tensor
    nu: Tensor
    alpha: Tensor


def variational_routing_reference(votes: Tensor, activations: Tensor, bias: Tensor, settings: Any) -> list[Image]:
    """Route votes [b i j d] with activations [b i] and bias [j], as in Ribeiro et al. 2020."""
    return [_variational_image(V, a, bias, settings) for V, a in zip(votes, activations, strict=True)]


def _variational_image(V: Tensor, a: Tensor, bias: Tensor, settings: Any) -> Image:
    """Route one image: m [j d], log-odds [j], R [i j]."""
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
    entropy = [0.5 * D * math.log(2 * math.pi * math.e) - 0.5 * value for value in log_lambda]
    log_odds = [bias[j] - log_pi[j].exp() * entropy[j] for j in range(parents)]
    return torch.stack([q.m for q in posteriors]), torch.stack(log_odds), R


def _posterior(V: Tensor, r: Tensor, settings: Any) -> Posterior:
    """Return the posterior of a parent for votes V [i d] weighed by `r` [i]."""
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
    """Return E ln π_j = ψ(α_j) − ψ(Σ_j α_j)."""
    total = torch.stack([q.alpha for q in posteriors]).sum()
    return [torch.digamma(q.alpha) - torch.digamma(total) for q in posteriors]


def _log_determinant(q: Posterior) -> Tensor:
    """Return E ln|Λ_j| = Σ_{d<D} ψ((ν_j − d)/2) + D ln 2 + ln|Ψ_j|."""
    D = len(q.m)
    digammas = torch.stack([torch.digamma((q.nu - d) / 2) for d in range(D)])
    return digammas.sum() + D * math.log(2) - q.inverse_psi.log().sum()


def _log_density(V: Tensor, q: Posterior, log_lambda: Tensor) -> Tensor:
    """Return ln p_ij = ½ E ln|Λ_j| − ½ D ln 2π − ½ (D/κ_j + ν_j Σ_h Ψ_jh (V − m_j)²_h) for one vote [d]."""
    D = len(V)
    distance = D / q.kappa + q.nu * ((V - q.m) ** 2 / q.inverse_psi).sum()
    return 0.5 * log_lambda - 0.5 * D * math.log(2 * math.pi) - 0.5 * distance

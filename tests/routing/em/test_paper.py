"""Against an independent transcription of the paper's formulas, and numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from capsella.routing import CapsuleConv, EMRouting, Geometry, em_routing, record
from capsella.routing.em import BACKENDS


def em_by_the_paper(
    V: np.ndarray,
    a_in: np.ndarray,
    beta_u: np.ndarray,
    beta_a: np.ndarray,
    inverse_temperatures: list[float],
    sharpness: tuple[float, ...] = (1.0,) * 4,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[H], Procedure 1, for one image: V [i j h]. Densities, not logarithms, as the paper prints them."""
    i, j, _ = V.shape
    R = np.full((i, j), 1 / j)
    for step, inverse_temperature in enumerate(inverse_temperatures):
        if step:
            p = np.exp(-((V - mu) ** 2 / (2 * sigma**2)).sum(2)) / np.sqrt((2 * math.pi * sigma**2).prod(1))
            p = p ** sharpness[step - 1]
            R = a * p / (a * p).sum(1, keepdims=True)
        r = R * a_in[:, None]
        total = r.sum(0)
        mu = (r[:, :, None] * V).sum(0) / total[:, None]
        sigma = np.sqrt((r[:, :, None] * (V - mu) ** 2).sum(0) / total[:, None])
        cost = (beta_u[:, None] + np.log(sigma)) * total[:, None]
        a = 1 / (1 + np.exp(-inverse_temperature * (beta_a - cost.sum(1))))
    return mu, a, R


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_the_formulas_as_printed(backend: str, iterations: int) -> None:
    V, a = torch.randn(2, 6, 3, 4, dtype=torch.float64), torch.rand(2, 6, dtype=torch.float64)
    beta_u, beta_a = torch.randn(2, 3, dtype=torch.float64)
    schedule = [0.3 * (1 - 0.95 ** (t + 1)) for t in range(iterations)]
    routed = em_routing(V, a, beta_u, beta_a, iterations, inverse_temperature=0.3, backend=backend)
    for image in range(2):
        expected = em_by_the_paper(V[image].numpy(), a[image].numpy(), beta_u.numpy(), beta_a.numpy(), schedule)
        for ours, theirs in zip(routed, expected, strict=True):
            torch.testing.assert_close(ours[image], torch.from_numpy(theirs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_e_step_but_the_last_is_soft(backend: str) -> None:
    V, a = torch.randn(1, 6, 3, 4, dtype=torch.float64), torch.rand(1, 6, dtype=torch.float64)
    betas, options = torch.randn(2, 3, dtype=torch.float64), {"inverse_temperature_decay": 0.0, "backend": backend}
    routed = em_routing(V, a, *betas, 4, inverse_temperature=0.3, early_sharpness=0.2, **options)
    one = [V[0].numpy(), a[0].numpy(), betas[0].numpy(), betas[1].numpy(), [0.3] * 4]
    for ours, theirs in zip(routed, em_by_the_paper(*one, (0.2, 0.2, 1.0)), strict=True):
        torch.testing.assert_close(ours[0], torch.from_numpy(theirs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sharpness", [1.0, 0.5, 0.2])
def test_from_even_couplings_an_iteration_magnifies_by_the_correlation_of_the_votes(sharpness: float) -> None:
    """What `early_sharpness` says, of parents that hardly differ; the correlations are 1/2, the eigenvalue 3."""
    children = (torch.randn(4000, 1, 1) + torch.randn(4000, 1, 5)).double()
    votes = (children + 1e-8 * torch.randn(4000, 3, 5, dtype=torch.float64)).unsqueeze(0)
    betas = torch.zeros(2, 3)
    with record() as traces:
        em_routing(
            votes, torch.ones(1, 4000), *betas, 14, early_sharpness=sharpness, inverse_temperature=1e-9, backend="eager"
        )
    *_, before, between, after = traces[0].couplings[:13]  # the last is of the sharp E-step
    grown = (after - between).norm() / (between - before).norm()
    largest = torch.linalg.eigvalsh(torch.corrcoef(children[:, 0].T))[-1]
    torch.testing.assert_close(grown, sharpness * largest, rtol=0.05, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_iteration_by_hand(backend: str) -> None:
    """Votes 0 and 2 of children with activations 1 and 1/3: μ = 0.5, σ² = 0.75, data 4/3, cost (β_u + ln σ)·4/3."""
    votes, a = torch.tensor([[[[0.0]], [[2.0]]]]), torch.tensor([[1.0, 1 / 3]])
    routed = em_routing(
        votes,
        a,
        torch.tensor([0.2]),
        torch.tensor([0.7]),
        1,
        inverse_temperature=2.0,
        inverse_temperature_decay=0.25,
        backend=backend,
    )
    cost = (0.2 + 0.5 * math.log(0.75)) * 4 / 3
    expected = 1 / (1 + math.exp(-2.0 * 0.75 * (0.7 - cost)))  # λ_0 = 2 · (1 − 0.25)
    torch.testing.assert_close(routed.poses, torch.tensor([[[0.5]]]))
    torch.testing.assert_close(routed.activations, torch.tensor([[expected]]))
    torch.testing.assert_close(routed.couplings, torch.ones(1, 2, 1))


def test_the_child_s_activation_scales_its_data_and_is_not_normalised_away() -> None:
    """Half as active children halve the cost; a port that normalises r over the parents would not notice."""
    votes, beta_u, beta_a = torch.randn(1, 6, 3, 4), torch.zeros(3), torch.zeros(3)
    logits = [torch.logit(em_routing(votes, torch.full((1, 6), a), beta_u, beta_a, 1).activations) for a in (0.8, 0.4)]
    torch.testing.assert_close(logits[0], 2 * logits[1])


def test_activation_enters_the_e_step_as_a_logarithm() -> None:
    """Two parents with the same votes differ only in a_j: R_i0 : R_i1 = a_0 : a_1, whatever the densities."""
    votes = torch.randn(1, 5, 1, 4, dtype=torch.float64).expand(1, 5, 2, 4)
    a, beta_u, beta_a = torch.rand(1, 5).double(), torch.zeros(2).double(), torch.tensor([100.0, -100.0]).double()
    first = em_routing(votes, a, beta_u, beta_a, 1).activations[0]
    couplings = em_routing(votes, a, beta_u, beta_a, 2).couplings[0]
    torch.testing.assert_close(couplings[:, 0] / couplings[:, 1], (first[0] / first[1]).expand(5))


def test_who_competes() -> None:
    """Three children in a row, windows of two: the middle one is in both. One iteration shows 1/|parents|."""
    poses, activations = torch.randn(1, 1, 3, 1, 4), torch.ones(1, 1, 3, 1)
    weight, betas = torch.randn(1, 2, 1, 2, 4, 4), {"beta_u": torch.ones(2), "beta_a": torch.zeros(2)}
    conv = CapsuleConv(poses, activations, weight, Geometry((1, 2)))
    with record() as traces:
        for competition in ("all", "types"):
            EMRouting(competition=competition).capsule_conv(conv, **betas)
    # [windows, children, types]
    torch.testing.assert_close(
        traces[0].couplings[0], torch.tensor([[[0.5, 0.5], [0.25, 0.25]], [[0.25, 0.25], [0.5, 0.5]]])
    )
    torch.testing.assert_close(traces[1].couplings[0], torch.full((2, 2, 2), 0.5))
    # and later the middle child's couplings sum to 1 over both windows, or in each
    everywhere, types = (trace.couplings[-1] for trace in traces)
    torch.testing.assert_close(everywhere[0, 1].sum() + everywhere[1, 0].sum(), torch.tensor(1.0))
    torch.testing.assert_close(types.sum(2), torch.ones(2, 2))


def test_random_couplings_stay_where_there_is_one_iteration() -> None:
    """[slots of the window, types], softmax of a seeded draw; a child in two windows gives each half of it."""
    poses, activations = torch.randn(2, 1, 3, 1, 4), torch.ones(2, 1, 3, 1)
    weight, betas = torch.randn(1, 2, 1, 2, 4, 4), {"beta_u": torch.ones(2), "beta_a": torch.zeros(2)}
    conv = CapsuleConv(poses, activations, weight, Geometry((1, 2)))
    slots = torch.randn(2, 2, generator=torch.Generator().manual_seed(7)).softmax(1)
    with record() as traces:
        for competition in ("all", "types"):
            EMRouting(1, start="random", start_seed=7, competition=competition).capsule_conv(conv, **betas)
    half = torch.tensor([1.0, 0.5])[:, None]
    everywhere, types = (trace.couplings[0] for trace in traces)  # [images · windows, children, types]
    torch.testing.assert_close(everywhere, torch.stack([slots * half, slots * half.flip(0)]).repeat(2, 1, 1))
    torch.testing.assert_close(types, slots.expand(4, 2, 2))


def test_a_start_is_one_for_every_image_and_seed() -> None:
    votes, a, betas = torch.randn(1, 6, 3, 4).repeat(2, 1, 1, 1), torch.rand(1, 6).repeat(2, 1), torch.zeros(2, 3)
    even, first, again, other = (
        em_routing(votes, a, *betas, 1, start=start, start_seed=seed)
        for start, seed in (("even", 0), ("random", 0), ("random", 0), ("random", 1))
    )
    torch.testing.assert_close(even.couplings, torch.full((2, 6, 3), 1 / 3))
    torch.testing.assert_close(first.couplings.sum(2), torch.ones(2, 6))
    assert torch.equal(first.couplings[0], first.couplings[1])
    assert torch.equal(first.couplings, again.couplings)
    assert (first.couplings - other.couplings).abs().max() > 0.1
    assert (first.poses - even.poses).abs().max() > 0.01


def test_beta_belongs_to_the_parent_type_at_every_position() -> None:
    """Raising β_a of one type raises that type's activation at each position, and no other in one iteration."""
    poses, activations = torch.randn(1, 4, 4, 2, 4), torch.rand(1, 4, 4, 2)
    weight = torch.randn(2, 2, 2, 3, 4, 4)
    beta_a = torch.zeros(3)
    conv = CapsuleConv(poses, activations, weight, Geometry((2, 2)))
    route = EMRouting(iterations=1).capsule_conv
    before = route(conv, beta_u=torch.zeros(3), beta_a=beta_a).activations
    beta_a[1] = 50.0
    after = route(conv, beta_u=torch.zeros(3), beta_a=beta_a).activations
    assert (after[..., 1] > before[..., 1]).all()
    assert torch.equal(after[..., [0, 2]], before[..., [0, 2]])


@pytest.mark.parametrize("standardise", [False, True])
def test_a_higher_cost_lowers_the_activation(standardise: bool) -> None:
    """Of two parents, the one whose votes scatter more is described at a higher cost."""
    votes = torch.randn(1, 8, 1, 4).expand(1, 8, 2, 4) * torch.tensor([0.5, 2.0])[:, None]
    tight, loose = em_routing(
        votes, torch.ones(1, 8), torch.zeros(2), torch.zeros(2), standardise_costs=standardise
    ).activations[0]
    assert tight > 0.5 > loose or (not standardise and tight > loose)


def test_standardised_activation_by_hand() -> None:
    """Costs c_0 and c_1 standardise to ∓1, so that the activations are logistic(±λ)."""
    votes = torch.randn(1, 8, 1, 4).expand(1, 8, 2, 4) * torch.tensor([0.5, 2.0])[:, None]
    betas = torch.zeros(2)
    a = em_routing(
        votes, torch.ones(1, 8), betas, betas, 1, standardise_costs=True, inverse_temperature=20.0
    ).activations
    torch.testing.assert_close(a, torch.tensor([[1.0, -1.0]]).sigmoid())


def test_cost_scale_makes_layers_alike() -> None:
    """With one iteration and active children, data count as `cost_scale` whatever the layer's size."""
    vote = torch.randn(1, 4, 1, 3)
    few = em_routing(vote, torch.ones(1, 4), torch.zeros(1), torch.zeros(1), 1, cost_scale=7.0)
    many = em_routing(vote.repeat(1, 5, 6, 1), torch.ones(1, 20), torch.zeros(6), torch.zeros(6), 1, cost_scale=7.0)
    torch.testing.assert_close(many.activations, few.activations.expand(1, 6))

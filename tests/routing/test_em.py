"""EM routing: an independent transcription of the paper's formulas, numbers worked out by hand, and layers."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from capsella.routing import EMRouting, Geometry, RoutingInputs, em_routing, record
from tests.routing.helpers import (
    LAYERS,
    Layer,
    asking,
    assert_close,
    gradients,
    learned,
    route,
    with_gradients,
)


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


@pytest.mark.parametrize("backend", ["reference", "eager"])
@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_the_formulas_as_printed(backend: str, iterations: int) -> None:
    V, a = torch.randn(2, 6, 3, 4, dtype=torch.float64), torch.rand(2, 6, dtype=torch.float64)
    beta_u, beta_a = torch.randn(2, 3, dtype=torch.float64)
    schedule = [0.3 * (1 - 0.95 ** (t + 1)) for t in range(iterations)]
    routed = em_routing(V, a, beta_u, beta_a, iterations, inverse_temperature=0.3, backend=backend)
    for image in range(2):
        expected = em_by_the_paper(V[image].numpy(), a[image].numpy(), beta_u.numpy(), beta_a.numpy(), schedule)
        for ours, theirs in zip(routed, expected, strict=True):
            torch.testing.assert_close(ours[image], torch.from_numpy(theirs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "eager"])
def test_every_e_step_but_the_last_is_soft(backend: str) -> None:
    V, a = torch.randn(1, 6, 3, 4, dtype=torch.float64), torch.rand(1, 6, dtype=torch.float64)
    betas, options = torch.randn(2, 3, dtype=torch.float64), {"inverse_temperature_decay": 0.0, "backend": backend}
    routed = em_routing(V, a, *betas, 4, inverse_temperature=0.3, early_likelihood_weight=0.2, **options)
    one = [V[0].numpy(), a[0].numpy(), betas[0].numpy(), betas[1].numpy(), [0.3] * 4]
    for ours, theirs in zip(routed, em_by_the_paper(*one, (0.2, 0.2, 1.0)), strict=True):
        torch.testing.assert_close(ours[0], torch.from_numpy(theirs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "eager"])
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
    conv = RoutingInputs(poses, activations, weight, Geometry((1, 2)))
    with record() as traces:
        for competition in ("all", "types"):
            EMRouting(competition=competition).route_windows(conv, **betas)
    # [windows, children, types]
    torch.testing.assert_close(
        traces[0].couplings[0], torch.tensor([[[0.5, 0.5], [0.25, 0.25]], [[0.25, 0.25], [0.5, 0.5]]])
    )
    torch.testing.assert_close(traces[1].couplings[0], torch.full((2, 2, 2), 0.5))
    # and later the middle child's couplings sum to 1 over both windows, or in each
    everywhere, types = (trace.couplings[-1] for trace in traces)
    torch.testing.assert_close(everywhere[0, 1].sum() + everywhere[1, 0].sum(), torch.tensor(1.0))
    torch.testing.assert_close(types.sum(2), torch.ones(2, 2))


def test_beta_belongs_to_the_parent_type_at_every_position() -> None:
    """Raising β_a of one type raises that type's activation at each position, and no other in one iteration."""
    poses, activations = torch.randn(1, 4, 4, 2, 4), torch.rand(1, 4, 4, 2)
    weight = torch.randn(2, 2, 2, 3, 4, 4)
    beta_a = torch.zeros(3)
    conv = RoutingInputs(poses, activations, weight, Geometry((2, 2)))
    route = EMRouting(iterations=1).route_windows
    before = route(conv, beta_u=torch.zeros(3), beta_a=beta_a).activations
    beta_a[1] = 50.0
    after = route(conv, beta_u=torch.zeros(3), beta_a=beta_a).activations
    assert (after[..., 1] > before[..., 1]).all()
    assert torch.equal(after[..., [0, 2]], before[..., [0, 2]])


def test_standardised_activation_by_hand() -> None:
    """Costs c_0 and c_1 standardise to ∓1, so that the activations are logistic(±λ)."""
    votes = torch.randn(1, 8, 1, 4).expand(1, 8, 2, 4) * torch.tensor([0.5, 2.0])[:, None]
    betas = torch.zeros(2)
    a = em_routing(
        votes, torch.ones(1, 8), betas, betas, 1, standardise_costs=True, inverse_temperature=20.0
    ).activations
    torch.testing.assert_close(a, torch.tensor([[1.0, -1.0]]).sigmoid())


# Layers: who competes, blocks, types, votes in bfloat16.
CONVOLUTIONS = {
    "dense": Layer(2, (2, 3), Geometry((2, 3)), (2, 4), (3, 5)),
    "stride 1": Layer(2, (3, 4), Geometry((2, 2)), (2, 4), (3, 5)),
    "stride 2, rows left over": Layer(2, (6, 4), Geometry((3, 3), (2, 2)), (2, 4), (3, 5)),
    "gaps between windows": Layer(2, (4, 5), Geometry((1, 2), (3, 3)), (2, 4), (3, 5)),
    "tied": Layer(2, (3, 4), Geometry((2, 2), (1, 2), tied=True), (2, 4), (3, 5)),
    "matrix": Layer(2, (4, 3), Geometry((3, 2), (1, 1), matrix=True), (2, 4), (3, 4)),
    "matrix tied": Layer(2, (3, 3), Geometry((2, 2), tied=True, matrix=True), (2, 4), (3, 4)),
}
OPTIONS: list[dict[str, Any]] = [
    {"cost_scale": 3.0},
    {"start": "random", "cost_scale": 3.0},
    {"iterations": 4, "early_likelihood_weight": 0.3},
    {"standardise_costs": True, "inverse_temperature": 20.0},
]


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("competition", ["all", "types"])
def test_eager_convolutions_are_the_reference(name: str, competition: Any) -> None:
    """Outputs and all gradients, in float64; each geometry with one of the options."""
    layer, number = CONVOLUTIONS[name], list(CONVOLUTIONS).index(name) + (competition == "all")
    betas = {key: torch.randn(3, dtype=torch.float64) for key in ("beta_u", "beta_a")}
    tensors = asking({**layer.tensors(), **betas})
    options = {"inverse_temperature": 0.5, **OPTIONS[number % len(OPTIONS)], "competition": competition}
    ours, expected = (
        route(EMRouting(**options, backend=run), layer.geometry, tensors) for run in ("eager", "reference")
    )
    assert_close(ours, expected)
    inputs = list(tensors.values())
    assert_close(gradients(ours, inputs, unused=True), gradients(expected, inputs, unused=True))


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_votes_in_bfloat16_are_those_of_rounded_factors(backend: Any) -> None:
    for name in ("2×2 poses", "tied"):
        # Numbers of float32, held in float64: to bfloat16 both round alike.
        tensors = {key: x.float().double() for key, x in learned(EMRouting(), LAYERS[name]).items()}
        rounded = {**tensors, **{key: tensors[key].bfloat16().double() for key in ("poses", "weight")}}
        ours = EMRouting(backend=backend, votes="bfloat16", iterations=2)
        expected = EMRouting(backend="eager", iterations=2)
        assert_close(
            with_gradients(ours, LAYERS[name], tensors, torch.float64),
            with_gradients(expected, LAYERS[name], rounded, torch.float64),
        )


def test_tight_cluster_far_from_zero() -> None:
    """σ² taken as Σ s V² − μ² would be rounding noise here: votes 1000 ± 0.1 in float32."""
    noise = torch.randn(1, 50, 1, 4)
    near, far = (
        em_routing(center + 0.1 * noise, torch.ones(1, 50), torch.zeros(1), torch.zeros(1), inverse_temperature=0.5)
        for center in (0.0, 1000.0)
    )
    torch.testing.assert_close(near.activations, far.activations, rtol=1e-2, atol=0.0)

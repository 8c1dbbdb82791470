"""Eager against the reference: outputs and all gradients, float64, odd sizes, votes and capsule convolutions."""

from typing import Any

import pytest
import torch
from torch import Tensor

from capsella.routing import EMRouting, Geometry, em_routing
from capsella.routing.em import BACKENDS
from tests.routing.helpers import Layer, asking, assert_close, gradients, route, same_bits

# b, i, j, d
SIZES = [(1, 1, 1, 1), (2, 5, 3, 7), (1, 11, 2, 1), (1, 3, 1, 5), (2, 1, 5, 3)]
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "warm": {"inverse_temperature": 1.0, "inverse_temperature_decay": 0.5},
    "scaled": {"cost_scale": 5.0, "inverse_temperature": 0.2},
    "standardised": {"standardise_costs": True, "inverse_temperature": 20.0},
    "random start": {"start": "random", "start_seed": 3, "cost_scale": 5.0, "inverse_temperature": 0.2},
    "soft first": {"early_sharpness": 0.2, "cost_scale": 5.0, "inverse_temperature": 0.2},
}
LAYERS = {
    "dense": Layer(2, (2, 3), Geometry((2, 3)), (2, 4), (3, 5)),
    "stride 1": Layer(2, (3, 4), Geometry((2, 2)), (2, 4), (3, 5)),
    "stride 2, rows left over": Layer(2, (6, 4), Geometry((3, 3), (2, 2)), (2, 4), (3, 5)),
    "gaps between windows": Layer(2, (4, 5), Geometry((1, 2), (3, 3)), (2, 4), (3, 5)),
    "tied": Layer(2, (3, 4), Geometry((2, 2), (1, 2), tied=True), (2, 4), (3, 5)),
    "matrix": Layer(2, (4, 3), Geometry((3, 2), (1, 1), matrix=True), (2, 4), (3, 4)),
    "matrix tied": Layer(2, (3, 3), Geometry((2, 2), tied=True, matrix=True), (2, 4), (3, 4)),
}


def betas(parents: int) -> dict[str, Tensor]:
    return {name: torch.randn(parents, dtype=torch.float64) for name in ("beta_u", "beta_a")}


def inputs(size: tuple[int, int, int, int]) -> list[Tensor]:
    """votes, activations, β_u, β_a in float64, all asking for gradients."""
    shapes = [size, size[:2], size[2:3], size[2:3]]
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    tensors[1] = torch.rand(shapes[1], dtype=torch.float64)
    return [tensor.requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("backend", sorted(set(BACKENDS) - {"reference"}))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_and_gradients(backend: str, size: tuple[int, int, int, int], iterations: int, options: str) -> None:
    tensors = inputs(size)
    ours, expected = (
        em_routing(*tensors, iterations, **OPTIONS[options], backend=name) for name in (backend, "reference")
    )
    assert_close(ours, expected)
    assert_close(gradients(ours, tensors, unused=True), gradients(expected, tensors, unused=True))


@pytest.mark.parametrize("backend", sorted(set(BACKENDS) - {"reference"}))
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("competition", ["all", "types"])
@pytest.mark.parametrize("start", ["even", "random"])
def test_capsule_convolutions(backend: str, name: str, competition: Any, start: Any) -> None:
    layer = LAYERS[name]
    tensors = asking({**layer.tensors(), **betas(3)})
    options = {"inverse_temperature": 0.5, "cost_scale": 3.0, "start": start, "competition": competition}
    ours, expected = (
        route(EMRouting(**options, backend=run), layer.geometry, tensors) for run in (backend, "reference")
    )
    assert_close(ours, expected)
    inputs = list(tensors.values())
    assert_close(gradients(ours, inputs, unused=True), gradients(expected, inputs, unused=True))


@pytest.mark.parametrize("backend", sorted(set(BACKENDS) - {"reference"}))
@pytest.mark.parametrize("competition", ["all", "types"])
def test_soft_first_convolutions(backend: str, competition: Any) -> None:
    layer = LAYERS["matrix"]
    tensors = asking({**layer.tensors(), **betas(3)})
    options = {"iterations": 4, "early_sharpness": 0.3, "inverse_temperature": 0.5, "competition": competition}
    ours, expected = (
        route(EMRouting(**options, backend=run), layer.geometry, tensors) for run in (backend, "reference")
    )
    assert_close(ours, expected)
    inputs = list(tensors.values())
    assert_close(gradients(ours, inputs, unused=True), gradients(expected, inputs, unused=True))


def test_standardised_convolution() -> None:
    """The costs are standardised over the types at one site, also where all sites compete."""
    layer = Layer(1, (3, 3), Geometry((2, 2)), (2, 4), (3, 4))
    tensors = {**layer.tensors(), **betas(3)}
    del tensors["vote_offset"]
    ours, expected = (
        route(EMRouting(standardise_costs=True, inverse_temperature=20.0, backend=run), layer.geometry, tensors)
        for run in ("eager", "reference")
    )
    assert_close(ours, expected)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the votes are worked through in blocks; here in blocks of one window, with a last one that is short."""
    tensors = inputs((7, 4, 3, 5))
    whole = em_routing(*tensors)
    expected = gradients(whole, tensors, unused=True)
    monkeypatch.setattr("capsella.routing.moments.BLOCK", 2 * 4 * 3 * 5)
    in_blocks = em_routing(*tensors)
    assert_close(in_blocks, whole)
    assert_close(gradients(in_blocks, tensors, unused=True), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend: str) -> None:
    assert torch.autograd.gradcheck(lambda *tensors: tuple(em_routing(*tensors, backend=backend)), inputs((1, 3, 2, 2)))


def test_auto_is_eager() -> None:
    tensors = inputs((2, 5, 3, 4))
    assert same_bits(em_routing(*tensors), em_routing(*tensors, backend="eager"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_flow_through_every_iteration(backend: str) -> None:
    """Couplings taken as constants give other gradients, so nothing here may detach them."""
    tensors = inputs((2, 5, 3, 4))
    votes, activations = tensors[:2]
    routed = em_routing(*tensors, 3, inverse_temperature=1.0, backend=backend)
    (ours,) = torch.autograd.grad(routed.poses.sum(), votes)
    r = routed.couplings.detach() * activations.unsqueeze(2)
    stopped = torch.einsum("bij,bijd->bjd", r / r.sum(1, keepdim=True), votes)
    torch.testing.assert_close(stopped, routed.poses)
    (detached,) = torch.autograd.grad(stopped.sum(), votes)
    assert (ours - detached).abs().max() > 0.01


def test_any_batch_size() -> None:
    for batch in (0, 1):
        routed = em_routing(torch.randn(batch, 5, 3, 4), torch.rand(batch, 5), torch.zeros(3), torch.zeros(3))
        assert [tuple(out.shape) for out in routed] == [(batch, 3, 4), (batch, 3), (batch, 5, 3)]

"""Heinsen routing: Algorithm 1 once more in NumPy, numbers by hand, and layers; test_contract.py has the rest."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from capsella.layers import CapsuleConv2d
from capsella.routing import HeinsenRouting, heinsen_routing
from capsella.types import Capsules
from tests.routing.helpers import assert_close

every_backend = pytest.mark.parametrize("backend", ["reference", "eager"])


def drawn() -> list[Tensor]:
    """Votes, activations, both β and B for 2 images, 5 children, 3 parents and 4 pose elements, in float64."""
    shapes = ((2, 5, 3, 4), (2, 5), (5, 3), (5, 3), (5, 3, 4))
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    tensors[1] = torch.rand(2, 5, dtype=torch.float64)
    return tensors


def algorithm(
    V: np.ndarray, f: np.ndarray, use_beta: np.ndarray, ignore_beta: np.ndarray, iterations: int, epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Heinsen 2019, Algorithm 1, one image: V [i j d], f [i], β [i j] → μ, f(a), R; densities, not logarithms."""
    R = np.full(V.shape[:2], 1 / V.shape[1])
    for t in range(iterations):
        if t:
            p = np.exp(-((V - mu) ** 2 / (2 * variance)).sum(2)) / np.sqrt(variance).prod(1)
            R = active * p / (active * p).sum(1, keepdims=True)
        use = f[:, None] * R
        a = (use_beta * use).sum(0) - (ignore_beta * (f[:, None] - use)).sum(0)
        active = 1 / (1 + np.exp(-a))
        shares = use / (use.sum(0) + epsilon)
        mu = np.einsum("ij,ijd->jd", shares, V)
        variance = np.einsum("ij,ijd->jd", shares, (V - mu) ** 2) + epsilon  # noqa: F841  used in the next round
    return mu, active, R


@every_backend
@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [1e-5, 0.1])
def test_the_algorithm(backend: str, iterations: int, epsilon: float) -> None:
    tensors = drawn()
    routed = heinsen_routing(*tensors, iterations, epsilon=epsilon, backend=backend)
    votes, f, gain, cost, bias = (tensor.numpy() for tensor in tensors)
    for image in range(2):
        expected = algorithm(votes[image] + bias, f[image], gain, cost, iterations, epsilon)
        for ours, theirs in zip(routed, expected, strict=True):
            np.testing.assert_allclose(ours[image].numpy(), theirs, rtol=1e-9, atol=1e-9)


@every_backend
def test_use_and_ignore_by_hand(backend: str) -> None:
    """One child of activation ½ and two parents: each uses ¼ and ignores ¼."""
    gain, cost = torch.tensor([[8.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    routed = heinsen_routing(torch.zeros(1, 1, 2, 1), torch.tensor([[0.5]]), gain, cost, iterations=1, backend=backend)
    torch.testing.assert_close(routed.activations, torch.tensor([[2.0, -1.0]]).sigmoid())


def test_shared_parameters_are_those_of_every_child() -> None:
    votes, f, *parameters = drawn()
    one = [parameter[:1] for parameter in parameters]
    copied = [parameter.repeat(5, *[1] * (parameter.ndim - 1)) for parameter in one]
    assert_close(heinsen_routing(votes, f, *one), heinsen_routing(votes, f, *copied))


def test_scores_are_log_odds() -> None:
    """Beyond what an activation of float32 can tell from 1."""
    layer = CapsuleConv2d(2, 4, 3, 4, 1, routing=HeinsenRouting())
    torch.nn.init.constant_(layer.routing_parameters["beta_use"], 300.0)
    scored = layer.route_logits(Capsules(torch.randn(2, 1, 1, 2, 4), torch.full((2, 1, 1, 2), 0.9)))
    assert float(scored.log_odds.detach().sum(3).mean()) == pytest.approx(2 * 0.9 * 300, rel=1e-5)
    assert math.isclose(float(scored.log_odds.detach().sigmoid().min()), 1.0)

"""Variational Bayes routing: the equations in NumPy, numbers by hand, and layers; test_contract.py has the rest."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import digamma as scipy_digamma
from torch import Tensor

from capsella.routing import variational_routing
from capsella.routing.variational import digamma

OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "authors' code": {"proportions": False},
    "other priors": {"concentration": 0.5, "mean_weight": 3.0, "precision": 4.0, "degrees": 0.7},
}
every_backend = pytest.mark.parametrize("backend", ["reference", "eager"])


def equations(
    V: np.ndarray, a: np.ndarray, bias: np.ndarray, iterations: int, **options: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ribeiro et al. 2020, one image: V [i j d], a [i], β [j] → m, a_j, R; densities, not logarithms."""
    alpha0, kappa0 = options.get("concentration", 1.0), options.get("mean_weight", 1.0)
    psi0, (_, parents, D) = options.get("precision", 1.0), V.shape
    nu0 = D - 1 + options.get("degrees", 2.0)
    R = np.full(V.shape[:2], 1 / parents)
    for t in range(iterations):
        if t:
            p = np.sqrt(det) * (2 * math.pi) ** (-D / 2) * np.exp(-0.5 * (D / kappa + nu * distance))
            R = p * (pi if options.get("proportions", True) else 1) / (pi * p).sum(1, keepdims=True)
        r = R * a[:, None]
        R_j = r.sum(0)
        alpha, kappa, nu = alpha0 + R_j, kappa0 + R_j, nu0 + R_j
        mu = (r[:, :, None] * V).sum(0) / R_j[:, None]
        # The prior's mean is zero.
        m = (R_j[:, None] * mu + kappa0 * 0) / kappa[:, None]
        scatter = (r[:, :, None] * (V - mu) ** 2).sum(0)
        psi = 1 / (1 / psi0 + scatter + (kappa0 * R_j / kappa)[:, None] * (mu - 0) ** 2)
        pi = np.exp(scipy_digamma(alpha) - scipy_digamma(alpha.sum()))
        det = np.exp(sum(scipy_digamma((nu + 1 - d) / 2) for d in range(1, D + 1))) * 2**D * psi.prod(1)
        distance = (psi * (V - m) ** 2).sum(2)  # noqa: F841  used in the next round
    entropy = D / 2 * math.log(2 * math.pi * math.e) - np.log(det) / 2
    return m, 1 / (1 + np.exp(pi * entropy - bias)), R


def inputs(size: tuple[int, int, int, int]) -> list[Tensor]:
    """Votes, activations and bias in float64, all asking for gradients."""
    votes, bias = (torch.randn(shape, dtype=torch.float64) for shape in (size, size[2:3]))
    return [tensor.requires_grad_() for tensor in (votes, torch.rand(size[:2], dtype=torch.float64), bias)]


@every_backend
@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("options", OPTIONS)
def test_the_equations(backend: str, iterations: int, options: str) -> None:
    votes, a, bias = (tensor.detach() for tensor in inputs((2, 6, 3, 4)))
    routed = variational_routing(votes, a, bias, iterations, **OPTIONS[options], backend=backend)
    for image in range(2):
        expected = equations(votes[image].numpy(), a[image].numpy(), bias.numpy(), iterations, **OPTIONS[options])
        for ours, theirs in zip(routed, expected, strict=True):
            np.testing.assert_allclose(ours[image].numpy(), theirs, rtol=1e-9, atol=1e-9)


def test_one_child_by_hand() -> None:
    """One active child, one parent, one element: a vote of 2 is pulled half way to zero, and so on."""
    routed = variational_routing(torch.full((1, 1, 1, 1), 2.0), torch.ones(1, 1), iterations=1)
    assert routed.poses.item() == pytest.approx(1.0)  # κ = 2
    log_lambda = scipy_digamma(1.5) + math.log(2) - math.log(1 + 0.5 * 2.0**2)  # ν = 3, Ψ⁻¹ = 1 + ½·4
    entropy = 0.5 * math.log(2 * math.pi * math.e) - 0.5 * log_lambda
    assert routed.activations.item() == pytest.approx(1 / (1 + math.exp(entropy)))  # the only parent has π = 1


def test_the_couplings_of_the_authors_code_do_not_sum_to_one() -> None:
    """What they are weighed by does: Σ_j π_j R_ij = 1. With couplings of the paper, each child counts once."""
    votes = torch.randn(1, 6, 3, 4)
    couplings = variational_routing(votes, torch.ones(1, 6), proportions=False).couplings
    assert couplings.sum(2).min() > 2


def test_a_parent_without_data_is_the_prior() -> None:
    routed = variational_routing(torch.randn(1, 4, 2, 3), torch.zeros(1, 4))
    torch.testing.assert_close(routed.poses, torch.zeros(1, 2, 3))
    log_lambda = sum(scipy_digamma((4 - d) / 2) for d in range(3)) + 3 * math.log(2)
    pi = math.exp(scipy_digamma(1) - scipy_digamma(2))
    entropy = 1.5 * math.log(2 * math.pi * math.e) - log_lambda / 2
    torch.testing.assert_close(routed.activations, torch.full((1, 2), 1 / (1 + math.exp(pi * entropy))))


def test_the_digamma_function() -> None:
    x = torch.logspace(-3, 5, 200, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(digamma(x), torch.digamma(x), rtol=1e-9, atol=1e-10)
    ours, exact = (torch.autograd.grad(f(x).sum(), x)[0] for f in (digamma, torch.digamma))
    torch.testing.assert_close(ours, exact, rtol=1e-8, atol=1e-9)

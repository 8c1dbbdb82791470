"""Self-attention routing: the paper's equations in NumPy, and layers; test_contract.py has the rest."""

import math

import numpy as np
import pytest
import torch

from capsella.routing import self_attention_routing, squash_exponential

every_backend = pytest.mark.parametrize("backend", ["reference", "eager"])


def equations(u_hat: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mazzia et al. 2021, Eq. 3 to 6, one image: û [i j d], b [i j] → v [j d], c [i j]."""
    a = np.einsum("ijd,kjd->jik", u_hat, u_hat) / math.sqrt(u_hat.shape[2])
    logits = a.sum(2).T
    c = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    s = np.einsum("ij,ijd->jd", c + b, u_hat)
    norm = np.linalg.norm(s, axis=1, keepdims=True)
    return (1 - np.exp(-norm)) * s / norm, c


@every_backend
@pytest.mark.parametrize("with_prior", [False, True])
def test_the_equations(backend: str, with_prior: bool) -> None:
    votes = torch.randn(3, 7, 5, 3, dtype=torch.float64)
    prior = torch.randn(7, 5, dtype=torch.float64) if with_prior else None
    routed = self_attention_routing(votes, prior, backend=backend)
    for image, u_hat in enumerate(votes.numpy()):
        v, c = equations(u_hat, np.zeros((7, 5)) if prior is None else prior.numpy())
        np.testing.assert_allclose(routed.poses[image].numpy(), v, rtol=1e-7)
        np.testing.assert_allclose(routed.couplings[image].numpy(), c, rtol=1e-7)
        np.testing.assert_allclose(routed.activations[image].numpy(), np.linalg.norm(v, axis=1), rtol=1e-6)


@every_backend
def test_softmax_is_over_parents(backend: str) -> None:
    """One child, two parents, votes 2 and 0; a softmax over the single child would leave both couplings at 1."""
    votes = torch.tensor([[[[2.0], [0.0]]]], dtype=torch.float64)
    routed = self_attention_routing(votes, backend=backend)
    c = math.exp(4) / (1 + math.exp(4))  # agreements 2·2 and 0
    torch.testing.assert_close(routed.couplings, torch.tensor([[[c, 1 - c]]], dtype=torch.float64))
    expected = torch.tensor([[[1 - math.exp(-2 * c)], [0.0]]], dtype=torch.float64)
    torch.testing.assert_close(routed.poses, expected)


@every_backend
def test_a_prior_outweighs_agreement(backend: str) -> None:
    """The prior is added behind the softmax: −c takes a child out, whatever it votes."""
    votes = torch.randn(1, 4, 3, 5, dtype=torch.float64)
    free = self_attention_routing(votes, backend=backend)
    prior = torch.zeros(4, 3, dtype=torch.float64)
    prior[2] = -free.couplings[0, 2]
    routed = self_attention_routing(votes, prior, backend=backend)
    torch.testing.assert_close(routed.couplings, free.couplings)
    kept = [0, 1, 3]
    s = torch.einsum("ij,ijd->jd", free.couplings[0, kept], votes[0, kept])
    torch.testing.assert_close(routed.poses[0], squash_exponential(s))


def test_the_squash() -> None:
    """(1 − e^−‖s‖)·s/‖s‖; slope 1 at zero, never longer than 1, gradients finite."""
    s = torch.tensor([[0.3, -0.4], [3.0, 4.0]], dtype=torch.float64)
    lengths = torch.tensor([1 - math.exp(-0.5), 1 - math.exp(-5)], dtype=torch.float64)
    torch.testing.assert_close(squash_exponential(s).norm(dim=1), lengths)
    torch.testing.assert_close(torch.nn.functional.cosine_similarity(squash_exponential(s), s), torch.ones(2).double())
    zero = torch.zeros(3, requires_grad=True)
    jacobian = torch.autograd.functional.jacobian(squash_exponential, zero)
    torch.testing.assert_close(jacobian, torch.eye(3), rtol=0, atol=1e-5)

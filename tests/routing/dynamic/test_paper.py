"""Every backend against the paper's text, written once more in NumPy, and against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from capsella.routing import dynamic_routing

BACKENDS = ["reference", "eager"]


def procedure_1(
    u_hat: np.ndarray, r: int, bias: np.ndarray | float = 0.0, leaky: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Sabour et al. 2017, Procedure 1, one image: û [i j d] → v [j d], c [i j]."""
    b = np.zeros(u_hat.shape[:2])
    for _ in range(r):
        c = np.exp(b) / (np.exp(b).sum(axis=1, keepdims=True) + leaky)  # Eq. 3; the leak is one more parent, logit 0
        s = np.einsum("ij,ijd->jd", c, u_hat) + bias  # Eq. 2
        norm = np.sqrt((s * s).sum(axis=1, keepdims=True))
        v = norm**2 / (1 + norm**2) * s / norm  # Eq. 1
        b = b + np.einsum("ijd,jd->ij", u_hat, v)
    return v, c


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_procedure_1(backend: str, iterations: int, leaky: bool, with_bias: bool) -> None:
    votes = torch.randn(3, 7, 5, 3, dtype=torch.float64)
    bias = torch.randn(5, 3, dtype=torch.float64) if with_bias else None
    routed = dynamic_routing(votes, iterations, bias=bias, leaky=leaky, backend=backend)
    for image, u_hat in enumerate(votes.numpy()):
        v, c = procedure_1(u_hat, iterations, 0.0 if bias is None else bias.numpy(), leaky)
        np.testing.assert_allclose(routed.poses[image].numpy(), v, rtol=1e-9)
        np.testing.assert_allclose(routed.couplings[image].numpy(), c, rtol=1e-9)
        np.testing.assert_allclose(routed.activations[image].numpy(), np.linalg.norm(v, axis=1), rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_softmax_is_over_parents(backend: str) -> None:
    """One child, two parents, votes 2 and 0; a softmax over the single child would leave both couplings at 1."""
    votes = torch.tensor([[[[2.0], [0.0]]]], dtype=torch.float64)
    first = dynamic_routing(votes, iterations=1, backend=backend)
    # s = ½·2 = 1, v = 1/(1+1) = ½
    torch.testing.assert_close(first.couplings, _tensor([[[0.5, 0.5]]]))
    torch.testing.assert_close(first.poses, _tensor([[[0.5], [0.0]]]))
    second = dynamic_routing(votes, iterations=2, backend=backend)
    # b = (2·½, 0), c = (e/(1+e), 1/(1+e)), s = 2e/(1+e), v = s²/(1+s²)
    c = math.e / (1 + math.e)
    v = (2 * c) ** 2 / (1 + (2 * c) ** 2)
    torch.testing.assert_close(second.couplings, _tensor([[[c, 1 - c]]]))
    torch.testing.assert_close(second.poses, _tensor([[[v], [0.0]]]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_leaky_child_leaks(backend: str) -> None:
    votes = torch.tensor([[[[2.0], [0.0]]]], dtype=torch.float64)
    routed = dynamic_routing(votes, iterations=1, leaky=True, backend=backend)
    torch.testing.assert_close(routed.couplings, torch.full((1, 1, 2), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("backend", BACKENDS)
def test_agreement_wins(backend: str) -> None:
    """Two children agree on parent 0 and disagree on parent 1: each iteration sends more of them to parent 0."""
    votes = torch.tensor([[[[1.0, 1.0], [1.0, 0.0]], [[1.0, 1.0], [-1.0, 0.0]]]])
    shares = [dynamic_routing(votes, n, backend=backend).couplings[0, :, 0] for n in (1, 2, 3, 4)]
    for before, after in zip(shares[:-1], shares[1:], strict=True):
        assert (after > before).all()


def _tensor(values: list[list[list[float]]]) -> Tensor:
    """Nested lists as the [1 j d] or [1 i j] tensor they stand for."""
    return torch.tensor(values, dtype=torch.float64)

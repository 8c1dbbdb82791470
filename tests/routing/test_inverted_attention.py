"""Inverted dot-product attention: the paper's equations in NumPy, and layers; test_contract.py has the rest."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from capsella.routing import attend, inverted_attention_routing
from tests.routing.helpers import assert_close

every_backend = pytest.mark.parametrize("backend", ["reference", "eager"])


def inputs(size: tuple[int, int, int, int], dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    d = size[3]
    scale, shift = 1 + 0.3 * torch.randn(d, dtype=dtype), 0.3 * torch.randn(d, dtype=dtype)
    return {"votes": torch.randn(size, dtype=dtype), "scale": scale, "shift": shift}


def equations(
    V: np.ndarray, scale: np.ndarray, shift: np.ndarray, rounds: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tsai et al. 2020, one layer: V [b i j d] → p [b j d], ones, R [b i j]."""
    R = np.full(V.shape[:3], 1 / V.shape[2])
    for n in range(rounds):
        if n:
            a = np.einsum("bijd,bjd->bij", V, p) / math.sqrt(V.shape[3])
            R = np.exp(a) / np.exp(a).sum(2, keepdims=True)
        s = np.einsum("bij,bijd->bjd", R, V)
        centred = s - s.mean(2, keepdims=True)
        p = scale * centred / np.sqrt(s.var(2, keepdims=True) + 1e-5) + shift
    return p, np.ones(p.shape[:2]), R


@every_backend
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_the_equations(backend: str, rounds: int) -> None:
    given = inputs((3, 7, 5, 4))
    routed = inverted_attention_routing(**given, iterations=rounds, backend=backend)
    expected = equations(*(tensor.numpy() for tensor in given.values()), rounds)
    for ours, theirs in zip(routed, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-9, atol=1e-9)


@every_backend
def test_softmax_is_over_parents(backend: str) -> None:
    """One child, two parents; a softmax over the single child would leave both couplings at 1."""
    votes = torch.tensor([[[[2.0, 0.0], [0.0, 2.0]]]], dtype=torch.float64)
    poses = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    ones, zeros = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    routed = attend(votes, poses, ones, zeros, backend=backend)
    c = math.exp(math.sqrt(2)) / (1 + math.exp(math.sqrt(2)))  # agreements 2·1/√2 and 0
    torch.testing.assert_close(routed.couplings, torch.tensor([[[c, 1 - c]]], dtype=torch.float64))
    expected = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]], dtype=torch.float64)  # [2c, 0] and [0, 2(1 − c)], normalised
    torch.testing.assert_close(routed.poses, expected, rtol=0, atol=1e-3)


@every_backend
def test_the_first_round_is_even(backend: str) -> None:
    given = inputs((2, 5, 4, 3))
    first = attend(given["votes"], None, given["scale"], given["shift"], backend=backend)
    assert torch.equal(first.couplings, torch.full((2, 5, 4), 0.25, dtype=torch.float64))
    from_nothing = attend(given["votes"], torch.zeros(2, 4, 3).double(), given["scale"], given["shift"])
    assert_close(first, from_nothing)

"""Inverted dot-product attention: against the paper's equations in NumPy, eager against reference, its properties."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from capsella.layers import CapsuleConv2d
from capsella.routing import InvertedAttentionRouting, attend, inverted_attention_routing, record
from capsella.routing.inverted_attention import BACKENDS
from capsella.types import Capsules
from tests.routing.helpers import asking, assert_close, gradients, same_bits

SIZES = [(1, 1, 1, 2), (2, 5, 3, 7), (3, 7, 2, 1), (1, 3, 1, 5), (2, 1, 5, 3)]  # b, i, j, d
every_backend = pytest.mark.parametrize("backend", BACKENDS)


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


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rounds", [1, 3])
def test_eager_is_the_reference(size: tuple[int, int, int, int], rounds: int) -> None:
    given = asking(inputs(size))
    ours, expected = (
        inverted_attention_routing(**given, iterations=rounds, backend=backend)[::2]
        for backend in ("eager", "reference")
    )
    assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    of = list(given.values())
    assert_close(gradients(ours, of, unused=True), gradients(expected, of, unused=True), rtol=1e-8, atol=1e-9)


def test_auto_is_eager() -> None:
    given = inputs((2, 5, 3, 4), torch.float32)
    assert same_bits(inverted_attention_routing(**given), inverted_attention_routing(**given, backend="eager"))


@every_backend
def test_gradcheck(backend: str) -> None:
    given = tuple(asking(inputs((2, 3, 2, 3))).values())
    assert torch.autograd.gradcheck(lambda *x: inverted_attention_routing(*x, backend=backend)[::2], given)


@every_backend
def test_properties(backend: str) -> None:
    """Couplings sum to 1 over the parents; the order of children is nothing; an image depends on no other."""
    given = inputs((2, 5, 3, 4))
    votes, rest = given["votes"], (given["scale"], given["shift"])
    routed = inverted_attention_routing(votes, *rest, backend=backend)
    torch.testing.assert_close(routed.couplings.sum(2), torch.ones(2, 5, dtype=torch.float64))
    order = torch.tensor([3, 0, 4, 2, 1])
    moved = inverted_attention_routing(votes[:, order], *rest, backend=backend)
    torch.testing.assert_close(moved.poses, routed.poses)
    torch.testing.assert_close(moved.couplings, routed.couplings[:, order])
    alone = inverted_attention_routing(votes[1:], *rest, backend=backend)
    torch.testing.assert_close(alone.poses, routed.poses[1:])
    empty = inverted_attention_routing(votes[:0], *rest, backend=backend)
    assert [tuple(out.shape) for out in empty] == [(0, 3, 4), (0, 3), (0, 5, 3)]


@every_backend
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e6])
def test_zero_and_huge_votes(backend: str, scale: float) -> None:
    given = inputs((2, 3, 4, 5), torch.float32)
    given = asking({**given, "votes": scale * given["votes"]})
    routed = inverted_attention_routing(**given, backend=backend)
    assert all(out.isfinite().all() for out in routed)
    assert all(gradient.isfinite().all() for gradient in gradients(routed[:1], list(given.values())))


def test_what_is_recorded() -> None:
    given = inputs((2, 5, 3, 4))
    with record() as traces:
        routed = inverted_attention_routing(**given, iterations=3)
    (trace,) = traces
    assert (trace.name, len(trace.couplings)) == ("inverted_attention", 3)
    assert torch.equal(trace.couplings[-1], routed.couplings)
    assert torch.equal(trace.poses[-1], routed.poses)
    assert (trace.couplings[0] == 1 / 3).all()


def test_a_layer_learns_scale_and_shift() -> None:
    layer = CapsuleConv2d(2, 4, 3, 4, kernel=(2, 1), routing=InvertedAttentionRouting())
    parameters = layer.routing_parameters
    assert torch.equal(parameters["scale"], torch.ones(4))
    assert torch.equal(parameters["shift"], torch.zeros(4))
    parents = layer(Capsules(torch.randn(2, 3, 2, 2, 4), torch.ones(2, 3, 2, 2)))
    assert (parents.activations == 1).all()
    (parents.poses * torch.randn(4)).sum().backward()
    for tensor in parameters.values():
        assert tensor.grad is not None
        assert tensor.grad.abs().min() > 0


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((2, 3, 4), (4,), (4,)), {}, r"votes: must have the four axes \[b i j d\], got 3 axes"),
        (((2, 3, 4, 5), (4,), (5,)), {}, r"scale: must have shape \[d\] = \(5,\), got \(4,\)"),
        (((2, 3, 4, 5), (5,), (1,)), {}, r"shift: must have shape \[d\] = \(5,\), got \(1,\)"),
        (((2, 3, 4, 5), (5,), (5,)), {"iterations": 0}, r"iterations: must be a whole number of at least 1, got 0"),
        (((2, 3, 4, 5), (5,), (5,)), {"backend": "native"}, r"backend: must be 'auto' or one of \['eager', "),
    ],
)
def test_errors(shapes: tuple[tuple[int, ...], ...], options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inverted_attention_routing(*(torch.rand(shape) for shape in shapes), **options)


@pytest.mark.usefixtures("as_users_call")
def test_poses_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"poses: must have shape \[b j d\] = \(2, 4, 5\), got \(2, 3, 5\)"):
        attend(torch.rand(2, 3, 4, 5), torch.rand(2, 3, 5), torch.ones(5), torch.zeros(5))
    with pytest.raises(ValueError, match=r"iterations: must be a whole number of at least 1, got 0"):
        InvertedAttentionRouting(iterations=0)

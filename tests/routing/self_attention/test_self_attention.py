"""Self-attention routing: against the paper's equations in NumPy, eager against reference, and its properties."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from capsella.layers import CapsuleConv2d
from capsella.routing import SelfAttentionRouting, record, self_attention_routing, squash_exponential
from capsella.routing.self_attention import BACKENDS
from capsella.types import Capsules
from tests.routing.helpers import assert_close, gradients, same_bits, smooth

SIZES = [(1, 1, 1, 1), (2, 5, 3, 7), (3, 7, 2, 1), (1, 3, 1, 5), (2, 1, 5, 3)]  # b, i, j, d
every_backend = pytest.mark.parametrize("backend", BACKENDS)


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


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("with_prior", [False, True])
def test_eager_is_the_reference(size: tuple[int, int, int, int], with_prior: bool) -> None:
    votes = torch.randn(size, dtype=torch.float64, requires_grad=True)
    prior = torch.randn(size[1:3], dtype=torch.float64, requires_grad=True) if with_prior else None
    inputs = [votes] if prior is None else [votes, prior]
    ours, expected = (
        smooth(self_attention_routing(votes, prior, backend=backend)) for backend in ("eager", "reference")
    )
    assert_close(ours, expected, rtol=1e-7, atol=1e-9)
    assert_close(gradients(ours, inputs), gradients(expected, inputs), rtol=1e-7, atol=1e-9)


def test_auto_is_eager() -> None:
    votes = torch.randn(2, 5, 3, 4)
    assert same_bits(self_attention_routing(votes), self_attention_routing(votes, backend="eager"))


@every_backend
def test_gradcheck(backend: str) -> None:
    votes = torch.randn(2, 3, 2, 3, dtype=torch.float64, requires_grad=True)
    prior = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *inputs: tuple(self_attention_routing(*inputs, backend=backend)), (votes, prior)
    )


@every_backend
def test_properties(backend: str) -> None:
    """Couplings sum to 1 over the parents; the order of children is nothing; an image depends on no other."""
    votes, prior = torch.randn(2, 5, 3, 4, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    routed = self_attention_routing(votes, prior, backend=backend)
    torch.testing.assert_close(routed.couplings.sum(2), torch.ones(2, 5, dtype=torch.float64))
    order = torch.tensor([3, 0, 4, 2, 1])
    moved = self_attention_routing(votes[:, order], prior[order], backend=backend)
    torch.testing.assert_close(moved.poses, routed.poses)
    torch.testing.assert_close(moved.couplings, routed.couplings[:, order])
    alone = self_attention_routing(votes[1:], prior, backend=backend)
    torch.testing.assert_close(alone.poses, routed.poses[1:])
    assert [tuple(out.shape) for out in self_attention_routing(votes[:0], prior, backend=backend)] == [
        (0, 3, 4),
        (0, 3),
        (0, 5, 3),
    ]


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e6])
def test_zero_and_huge_votes(scale: float) -> None:
    votes = (scale * torch.randn(2, 3, 4, 5)).requires_grad_()
    routed = self_attention_routing(votes)
    (gradient,) = torch.autograd.grad(routed.poses.sum() + routed.activations.sum(), votes)
    assert all(out.isfinite().all() for out in routed)
    assert gradient.isfinite().all()
    assert routed.activations.max() <= 1


def test_the_squash() -> None:
    """(1 − e^−‖s‖)·s/‖s‖; slope 1 at zero, never longer than 1, gradients finite."""
    s = torch.tensor([[0.3, -0.4], [3.0, 4.0]], dtype=torch.float64)
    lengths = torch.tensor([1 - math.exp(-0.5), 1 - math.exp(-5)], dtype=torch.float64)
    torch.testing.assert_close(squash_exponential(s).norm(dim=1), lengths)
    torch.testing.assert_close(torch.nn.functional.cosine_similarity(squash_exponential(s), s), torch.ones(2).double())
    zero = torch.zeros(3, requires_grad=True)
    jacobian = torch.autograd.functional.jacobian(squash_exponential, zero)
    torch.testing.assert_close(jacobian, torch.eye(3), rtol=0, atol=1e-5)


def test_what_is_recorded() -> None:
    votes = torch.randn(2, 5, 3, 4)
    with record() as traces:
        routed = self_attention_routing(votes, torch.full((5, 3), -1.0))
    (trace,) = traces
    assert trace.name == "self_attention"
    assert torch.equal(trace.couplings[0], routed.couplings)
    assert torch.equal(trace.poses[0], routed.poses)
    assert trace.couplings[0].min() >= 0  # an entropy of them exists, whatever the prior is


def test_a_layer_learns_the_prior() -> None:
    layer = CapsuleConv2d(2, 4, 3, 4, kernel=(2, 1), routing=SelfAttentionRouting())
    prior = layer.routing_parameters["prior"]
    assert prior.shape == (2 * 1 * 2, 3)
    poses = torch.randn(2, 3, 2, 2, 4)
    children = Capsules(poses, torch.rand(2, 3, 2, 2))
    layer(children).poses.square().sum().backward()
    assert prior.grad is not None
    assert prior.grad.abs().min() > 0
    bare = CapsuleConv2d(2, 4, 3, 4, kernel=(2, 1), routing=SelfAttentionRouting(prior=False))
    assert len(bare.routing_parameters) == 0
    with torch.no_grad():
        bare.weight.copy_(layer.weight)
    for with_zero, without in zip(layer(children), bare(children), strict=True):
        torch.testing.assert_close(with_zero, without)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("votes", "prior", "backend", "message"),
    [
        ((2, 3, 4), None, "auto", r"votes: must have the four axes \[b i j d\], got 3 axes, shape \(2, 3, 4\)"),
        ((2, 3, 4, 5), (4, 3), "auto", r"prior: must have shape \[i j\] = \(3, 4\), got \(4, 3\)"),
        ((2, 3, 4, 5), None, "native", r"backend: must be 'auto' or one of \['eager', 'reference'\] .* got 'native'"),
    ],
)
def test_errors(votes: tuple[int, ...], prior: tuple[int, ...] | None, backend: str, message: str) -> None:
    bias: Tensor | None = None if prior is None else torch.zeros(prior)
    with pytest.raises(ValueError, match=message):
        self_attention_routing(torch.randn(votes), bias, backend=backend)

"""What holds for every set of votes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from capsella.routing import Routed, dynamic_routing
from capsella.routing.dynamic import BACKENDS
from tests.routing.helpers import assert_close


@st.composite
def random_votes(draw: st.DrawFn) -> Tensor:
    """Votes [b i j d] of any small size, in float64, from tiny to large."""
    b, i, j, d = (draw(st.integers(1, most)) for most in (3, 8, 5, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    return torch.randn(b, i, j, d, generator=generator, dtype=torch.float64) * 10 ** draw(st.floats(-4, 2))


iterations = st.integers(1, 4)


@given(random_votes(), iterations, st.randoms(use_true_random=False))
def test_the_order_of_children_does_not_matter(votes: Tensor, iterations: int, random: st.DataObject) -> None:
    order = random.sample(range(votes.shape[1]), votes.shape[1])
    routed, permuted = dynamic_routing(votes, iterations), dynamic_routing(votes[:, order], iterations)
    assert_close(permuted, routed._replace(couplings=routed.couplings[:, order]), atol=1e-9)


@given(random_votes(), iterations, st.randoms(use_true_random=False))
def test_parents_are_equals(votes: Tensor, iterations: int, random: st.DataObject) -> None:
    order = random.sample(range(votes.shape[2]), votes.shape[2])
    routed, permuted = dynamic_routing(votes, iterations), dynamic_routing(votes[:, :, order], iterations)
    expected = Routed(routed.poses[:, order], routed.activations[:, order], routed.couplings[..., order])
    assert_close(permuted, expected, atol=1e-9)


@given(random_votes(), iterations)
def test_couplings_sum_to_one_over_parents(votes: Tensor, iterations: int) -> None:
    couplings = dynamic_routing(votes, iterations).couplings
    assert (couplings >= 0).all()
    torch.testing.assert_close(couplings.sum(2), torch.ones_like(votes[:, :, 0, 0]))


@given(random_votes(), iterations)
def test_leaky_couplings_sum_to_less(votes: Tensor, iterations: int) -> None:
    couplings = dynamic_routing(votes.clamp(-1, 1), iterations, leaky=True).couplings
    assert (couplings > 0).all()
    assert (couplings.sum(2) < 1).all()


@given(random_votes(), iterations, st.booleans())
def test_lengths_are_at_most_one(votes: Tensor, iterations: int, leaky: bool) -> None:
    routed = dynamic_routing(votes, iterations, leaky=leaky)
    assert (routed.activations <= 1 + 1e-9).all()
    torch.testing.assert_close(routed.activations, routed.poses.norm(dim=-1), rtol=1e-6, atol=2e-6)


@given(random_votes(), iterations)
def test_an_image_does_not_depend_on_its_neighbours(votes: Tensor, iterations: int) -> None:
    together = dynamic_routing(votes, iterations)
    for image in range(len(votes)):
        alone = dynamic_routing(votes[image : image + 1], iterations)
        assert_close(Routed(*(out[image : image + 1] for out in together)), alone, atol=1e-9)


@given(random_votes(), iterations)
def test_turning_every_vote_turns_every_pose(votes: Tensor, iterations: int) -> None:
    """Agreement is a scalar product: an orthogonal map of the pose space commutes with routing."""
    d = votes.shape[3]
    turn, _ = torch.linalg.qr(torch.randn(d, d, dtype=votes.dtype, generator=torch.Generator().manual_seed(d)))
    routed = dynamic_routing(votes, iterations)
    assert_close(dynamic_routing(votes @ turn, iterations), routed._replace(poses=routed.poses @ turn), atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("leaky", [False, True])
def test_zero_votes_give_zero_poses_and_finite_gradients(backend: str, leaky: bool) -> None:
    votes = torch.zeros(2, 3, 4, 5, requires_grad=True)
    routed = dynamic_routing(votes, 3, leaky=leaky, backend=backend)
    assert torch.equal(routed.poses, torch.zeros(2, 4, 5))
    (gradient,) = torch.autograd.grad(routed.poses.sum(), votes)
    assert gradient.isfinite().all()


def test_zero_votes_give_finite_gradients_of_lengths() -> None:
    votes = torch.zeros(2, 3, 4, 5, requires_grad=True)
    routed = dynamic_routing(votes)
    assert routed.activations.max() <= 1e-5
    (gradient,) = torch.autograd.grad(routed.activations.sum() + routed.couplings.sum(), votes)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_tiny_and_huge_votes_stay_finite(scale: float) -> None:
    votes = (scale * torch.randn(2, 50, 4, 8)).requires_grad_()
    routed = dynamic_routing(votes, 4)
    (gradient,) = torch.autograd.grad(routed.poses.sum() + routed.activations.sum(), votes)
    for tensor in (*routed, gradient):
        assert tensor.isfinite().all()
    assert routed.activations.max() <= 1 + 1e-6


def test_inputs_are_left_alone() -> None:
    votes, bias = torch.randn(2, 3, 4, 5), torch.randn(4, 5)
    before = votes.clone(), bias.clone()
    dynamic_routing(votes, bias=bias)
    assert torch.equal(votes, before[0])
    assert torch.equal(bias, before[1])

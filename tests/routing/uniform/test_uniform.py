import pytest
import torch

from capsella.routing import dynamic_routing, uniform_routing


def test_uniform_is_one_iteration_of_dynamic_routing() -> None:
    votes = torch.randn(2, 7, 3, 5, dtype=torch.float64)
    for ours, expected in zip(uniform_routing(votes), dynamic_routing(votes, iterations=1), strict=True):
        torch.testing.assert_close(ours, expected)


def test_gradients() -> None:
    votes = torch.randn(2, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda votes: uniform_routing(votes)[:2], votes)


def test_zero_and_huge_votes() -> None:
    for scale in (0.0, 1e6):
        votes = (scale * torch.randn(2, 3, 4, 5)).requires_grad_()
        routed = uniform_routing(votes)
        (gradient,) = torch.autograd.grad(routed.poses.sum() + routed.activations.sum(), votes)
        assert routed.poses.isfinite().all()
        assert gradient.isfinite().all()


@pytest.mark.usefixtures("as_users_call")
def test_bad_votes() -> None:
    with pytest.raises(ValueError, match=r"votes: must have the four axes \[b i j d\], got 3 axes, shape \(2, 3, 4\)"):
        uniform_routing(torch.randn(2, 3, 4))

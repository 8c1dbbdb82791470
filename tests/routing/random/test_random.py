import pytest
import torch

from capsella.routing import random_routing, squash
from capsella.routing.random import random_couplings


def test_couplings_are_fixed_by_the_seed() -> None:
    votes = torch.randn(2, 5, 3, 4)
    couplings = random_routing(votes, seed=3).couplings
    torch.manual_seed(123)
    assert torch.equal(random_routing(votes, seed=3).couplings, couplings)
    assert not torch.allclose(random_routing(votes, seed=4).couplings, couplings)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    random_routing(torch.zeros(1, 2, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)


def test_couplings_are_the_same_on_every_image() -> None:
    couplings = random_routing(torch.randn(4, 5, 3, 2)).couplings
    assert torch.equal(couplings, couplings[:1].expand(4, -1, -1))
    torch.testing.assert_close(couplings.sum(2), torch.ones(4, 5))


def test_poses_are_the_squashed_sums() -> None:
    votes = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    routed = random_routing(votes)
    for b in range(2):
        for j in range(3):
            s = sum(routed.couplings[b, i, j] * votes[b, i, j] for i in range(5))
            torch.testing.assert_close(routed.poses[b, j], squash(s))
    torch.testing.assert_close(routed.activations, routed.poses.norm(dim=-1))


def test_gradients() -> None:
    votes = torch.randn(2, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda votes: random_routing(votes)[:2], votes)


@pytest.mark.usefixtures("as_users_call")
def test_bad_votes() -> None:
    with pytest.raises(ValueError, match=r"votes: must be floating point, got torch.int64"):
        random_routing(torch.zeros(1, 2, 3, 4, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_type_changes_no_coupling(dtype: torch.dtype) -> None:
    expected = random_couplings(20, 5, 3)
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(random_couplings(20, 5, 3), expected)
    finally:
        torch.set_default_dtype(torch.float32)

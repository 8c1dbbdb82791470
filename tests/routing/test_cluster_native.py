"""The C++ kernels of cluster routing against eager float64: as near as eager float32 is, for every instruction set."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from capsella.routing import cluster_routing
from tests.routing.helpers import error, gradients, needs_kernels, on_each_set, same_bits

pytestmark = needs_kernels

# b, g, i, j, d; a chunk of the kernels has 128 elements of all parents.
SIZES = [(1, 1, 1, 1, 1), (2, 4, 5, 3, 7), (3, 2, 7, 2, 64), (2, 8, 4, 5, 60), (2, 3, 1, 2, 130), (0, 2, 3, 2, 5)]
LARGE = (5, 4, 3, 4, 100)


def drawn(size: tuple[int, ...]) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def run(votes: Tensor, backend: str) -> list[Tensor]:
    """Poses, weights, and the gradient of one fixed random weighting of both."""
    votes = votes.clone().requires_grad_()
    out = list(cluster_routing(votes, backend=backend))
    return [*out, *gradients(out, [votes])]


@on_each_set()
@pytest.mark.usefixtures("instruction_set", "nan_in_new_memory")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_outputs_and_gradients(size: tuple[int, ...], mean: float) -> None:
    votes = (drawn(size) + mean).float()
    exact, eager = run(votes.double(), "eager"), run(votes, "eager")
    for ours, theirs, truth in zip(run(votes, "native"), eager, exact, strict=True):
        assert ours.shape == truth.shape
        assert ours.numel() == 0 or error(ours, truth) < max(1e-5, 20 * error(theirs, truth))


@on_each_set()
@pytest.mark.usefixtures("instruction_set")
def test_votes_in_bfloat16() -> None:
    """They are read as they are; their gradient is rounded once."""
    votes = drawn(LARGE).bfloat16()
    poses, weights, grad = run(votes, "native")
    expected = run(votes.float(), "native")
    assert same_bits([poses, weights], expected[:2])
    assert grad.dtype == torch.bfloat16
    assert same_bits([grad], [expected[2].bfloat16()])


def test_the_same_bits_with_any_number_of_threads(threads: Callable[[int], None]) -> None:
    results = []
    for count in (1, 2, 5, 2):
        threads(count)
        results.append(run(drawn(LARGE).float(), "native"))
    for other in results[1:]:
        assert same_bits(other, results[0])


def test_second_derivatives_are_refused() -> None:
    votes = drawn((1, 2, 2, 1, 3)).float().requires_grad_()
    (slope,) = torch.autograd.grad(cluster_routing(votes).poses.sum(), votes, create_graph=True)
    with pytest.raises(NotImplementedError, match="cluster routing"):
        slope.square().sum().backward()


@pytest.mark.usefixtures("as_users_call")
def test_the_operators_keep_torch_s_contract() -> None:
    votes = drawn((2, 3, 4, 5, 1)).float().flatten(3).requires_grad_()  # [b i g n], as the operators take them
    poses, weights = torch.randn(2, 5), torch.randn(2, 3, 5)
    torch.library.opcheck(torch.ops.capsella.cluster_routing.default, (votes,))
    torch.library.opcheck(torch.ops.capsella.cluster_routing_backward.default, (votes.detach(), poses, weights))

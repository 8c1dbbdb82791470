import pytest
import torch

from capsella.routing import DynamicRouting, dynamic_routing

pytestmark = pytest.mark.usefixtures("as_users_call")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 3, 4), r"votes: must have the four axes \[b i j d\], got 3 axes, shape \(5, 3, 4\)"),
        ((2, 0, 3, 4), r"votes: must have at least one child, parent and pose element, got shape \(2, 0, 3, 4\)"),
        ((2, 5, 3, 0), r"votes: must have at least one child, parent and pose element, got shape \(2, 5, 3, 0\)"),
    ],
)
def test_shape_of_votes(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dynamic_routing(torch.zeros(shape))


def test_integer_votes() -> None:
    with pytest.raises(ValueError, match=r"votes: must be floating point, got torch\.int32"):
        dynamic_routing(torch.zeros(2, 5, 3, 4, dtype=torch.int32))


@pytest.mark.parametrize("iterations", [0, -1])
def test_iterations(iterations: int) -> None:
    message = rf"iterations: must be a whole number of at least 1, got {iterations}"
    with pytest.raises(ValueError, match=message):
        dynamic_routing(torch.randn(2, 5, 3, 4), iterations)
    with pytest.raises(ValueError, match=message):
        DynamicRouting(iterations)


@pytest.mark.parametrize("shape", [(4,), (3, 1), (1, 3, 4)])
def test_a_bias_that_would_broadcast(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"bias: must have shape \[j d\] = \(3, 4\), got \("):
        dynamic_routing(torch.randn(2, 5, 3, 4), bias=torch.zeros(shape))


def test_backend() -> None:
    message = r"backend: must be 'auto' or one of \['eager', 'reference'\] for this routing, got 'cuda'"
    with pytest.raises(ValueError, match=message):
        dynamic_routing(torch.randn(2, 5, 3, 4), backend="cuda")

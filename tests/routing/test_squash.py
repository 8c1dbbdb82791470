import pytest
import torch

from capsella.routing import dynamic_routing, length, squash, squash_exponential


@pytest.mark.parametrize("size", [1e-3, 0.5, 1.0, 3.0, 100.0])
def test_the_length_follows_equation_1(size: float) -> None:
    direction = torch.tensor([2.0, -1.0, 2.0], dtype=torch.float64) / 3
    torch.testing.assert_close(squash(size * direction), direction * size**2 / (1 + size**2))


def test_squash_is_over_the_last_axis() -> None:
    capsules = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    together = squash(capsules)
    for b, h, w in [(0, 0, 0), (1, 2, 3), (0, 1, 2)]:
        torch.testing.assert_close(together[b, h, w], squash(capsules[b, h, w]))
    transposed = squash(capsules.transpose(2, 3)).transpose(2, 3)
    assert not torch.allclose(together, transposed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_zero_vector_has_zero_value_and_finite_gradient(dtype: torch.dtype) -> None:
    s = torch.zeros(2, 8, dtype=dtype, requires_grad=True)
    v = squash(s)
    assert torch.equal(v, torch.zeros_like(s))
    (gradient,) = torch.autograd.grad(length(v).sum() + v.sum(), s)
    assert gradient.isfinite().all()


def test_length_is_the_norm() -> None:
    assert length(torch.tensor([3.0, 4.0])).item() == pytest.approx(5)
    assert length(torch.zeros(4)).item() == pytest.approx(1e-6)
    v = torch.zeros(4, requires_grad=True)
    length(v).backward()
    assert torch.equal(v.grad, torch.zeros(4))


def test_gradients() -> None:
    s = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squash, s)
    assert torch.autograd.gradcheck(length, s)
    assert torch.autograd.gradgradcheck(squash, s)


@pytest.mark.parametrize("size", [0.0, 1e-4, 1.0, 300.0, 60000.0])
def test_half_precision_is_that_of_single(size: float) -> None:
    """Squares of more than 256 are infinite in float16, and what keeps a root from zero is 0."""
    s = torch.full((2, 3), size, dtype=torch.float16)
    for function in (squash, squash_exponential, length):
        if function is length and size == 60000.0:
            continue  # more than float16 has
        found, expected = function(s), function(s.float())
        assert found.dtype == torch.float16
        torch.testing.assert_close(found.float(), expected, atol=1e-6, rtol=1e-3)
    if size < 1e4:  # whose sum float16 has
        assert dynamic_routing(torch.full((1, 4, 3, 2), size, dtype=torch.float16)).poses.isfinite().all()

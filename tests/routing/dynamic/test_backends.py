"""Eager against the reference: outputs and all gradients, float64, odd sizes."""

import pytest
import torch

from capsella.routing import dynamic_routing, squash
from capsella.routing.dynamic import BACKENDS
from tests.routing.helpers import assert_close, gradients, same_bits, smooth

# b, i, j, d
SIZES = [(1, 1, 1, 1), (2, 5, 3, 7), (3, 11, 2, 1), (1, 3, 1, 5), (2, 1, 5, 3)]


@pytest.mark.parametrize("backend", sorted(set(BACKENDS) - {"reference"}))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_outputs_and_gradients(
    backend: str, size: tuple[int, int, int, int], iterations: int, leaky: bool, with_bias: bool
) -> None:
    votes = torch.randn(size, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(size[2:], dtype=torch.float64, requires_grad=True) if with_bias else None
    options = {"iterations": iterations, "bias": bias, "leaky": leaky}
    ours = smooth(dynamic_routing(votes, **options, backend=backend))
    expected = smooth(dynamic_routing(votes, **options, backend="reference"))
    inputs = [votes] if bias is None else [votes, bias]
    assert_close(ours, expected, rtol=1e-7, atol=1e-9)
    assert_close(gradients(ours, inputs), gradients(expected, inputs), rtol=1e-7, atol=1e-9)


def test_auto_is_eager() -> None:
    votes = torch.randn(2, 5, 3, 4)
    assert same_bits(dynamic_routing(votes), dynamic_routing(votes, backend="eager"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("leaky", [False, True])
def test_gradcheck(backend: str, leaky: bool) -> None:
    votes = torch.randn(2, 3, 2, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda votes, bias: tuple(dynamic_routing(votes, 3, bias=bias, leaky=leaky, backend=backend)), (votes, bias)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_flow_through_every_iteration(backend: str) -> None:
    """Couplings taken as constants give other gradients, so nothing here may detach them."""
    votes = torch.randn(2, 5, 3, 4, dtype=torch.float64, requires_grad=True)
    routed = dynamic_routing(votes, 3, backend=backend)
    (ours,) = torch.autograd.grad(routed.poses.sum(), votes)
    stopped = squash(torch.einsum("bij,bijd->bjd", routed.couplings.detach(), votes))
    torch.testing.assert_close(stopped, routed.poses)
    (detached,) = torch.autograd.grad(stopped.sum(), votes)
    assert (ours - detached).abs().max() > 0.01


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch", [0, 1])
def test_any_batch_size(backend: str, batch: int) -> None:
    routed = dynamic_routing(torch.randn(batch, 5, 3, 4), backend=backend)
    assert [tuple(out.shape) for out in routed] == [(batch, 3, 4), (batch, 3), (batch, 5, 3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_dtype_is_kept(dtype: torch.dtype) -> None:
    votes = torch.randn(1, 3, 2, 4)
    for out, expected in zip(dynamic_routing(votes.to(dtype)), dynamic_routing(votes), strict=True):
        assert out.dtype == dtype
        torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.02)

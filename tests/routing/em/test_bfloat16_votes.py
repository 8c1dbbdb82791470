"""Votes of poses and weights rounded to bfloat16: the same on every backend, and only when asked for."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from capsella import _native
from capsella.layers import CapsuleConv2d
from capsella.routing import CapsuleConv, EMRouting, Geometry
from capsella.routing.convolution import bfloat16_factors
from capsella.types import Capsules
from tests.routing.helpers import LAYERS, assert_close, error, learned, same_bits, with_gradients

needs_kernels = pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))


def inputs(name: str) -> dict[str, Tensor]:
    return learned(EMRouting(), LAYERS[name])


def run(name: str, tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32, **options: Any) -> list[Tensor]:
    return with_gradients(EMRouting(**options), LAYERS[name], tensors, dtype)


def float32_inputs(name: str) -> dict[str, Tensor]:
    """Numbers of float32, held in float64: to bfloat16 both then round alike."""
    return {key: tensor.float().double() for key, tensor in inputs(name).items()}


def rounded(name: str) -> dict[str, Tensor]:
    tensors = float32_inputs(name)
    return {**tensors, **{key: tensors[key].bfloat16().double() for key in ("poses", "weight")}}


@cache
def by_eager(name: str, competition: str) -> tuple[list[Tensor], ...]:
    """In float64 and in float32. Eager knows no instruction sets: it computes once for all of them."""
    both = (torch.float64, torch.float32)
    return tuple(run(name, rounded(name), dtype, backend="eager", competition=competition) for dtype in both)


@needs_kernels
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("competition", ["all", "types"])
def test_native_is_as_near_to_the_rounded_votes_as_eager(name: str, competition: str) -> None:
    """Outputs and gradients; poses of 3×3 and of 5 elements have an odd number to pair."""
    exact, eager = by_eager(name, competition)
    native = run(name, float32_inputs(name), backend="native", votes="bfloat16", competition=competition)
    for ours, theirs, truth in zip(native, eager, exact, strict=True):
        assert ours.shape == truth.shape
        assert error(ours, truth) < max(1e-5, 20 * error(theirs, truth))


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_other_backends_round_alike(backend: str) -> None:
    for name in ("2×2 poses", "tied"):
        ours = run(name, float32_inputs(name), torch.float64, backend=backend, votes="bfloat16", iterations=2)
        expected = run(name, rounded(name), torch.float64, backend="eager", iterations=2)
        assert_close(ours, expected)


@needs_kernels
def test_the_same_bits_with_any_number_of_threads(
    threads: Callable[[int], None], request: pytest.FixtureRequest
) -> None:
    for name in ("4×4 poses", "3×3 poses", "tied"):
        results = []
        for count in (1, 2, 5):
            threads(count)
            results.append(run(name, inputs(name), backend="native", votes="bfloat16"))
        assert all(same_bits(other, results[0]) for other in results[1:])
    request.getfixturevalue("nan_in_new_memory")
    assert same_bits(run("tied", inputs("tied"), backend="native", votes="bfloat16"), results[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_to_the_nearest_even_and_gradients_pass_unrounded(dtype: torch.dtype) -> None:
    values = torch.tensor([1 + 1 / 256, 1 + 3 / 256, 1 + 1.01 / 256, -1 / 3, 0.0, 3e38], dtype=dtype)
    expected = torch.tensor([1.0, 1 + 4 / 256, 1 + 2 / 256, -0.333984375, 0.0, 3.004e38], dtype=dtype)
    poses = values.reshape(1, 1, 1, 1, 6).requires_grad_()
    weight = torch.full((1, 1, 1, 1, 6, 2), 1 / 3, dtype=dtype)
    conv = bfloat16_factors(CapsuleConv(poses, torch.ones(1, 1, 1, 1), weight, Geometry((1, 1))))
    torch.testing.assert_close(conv.poses.detach().flatten(), expected, rtol=1e-4, atol=0)
    assert torch.equal(conv.poses.detach(), conv.poses.detach().bfloat16().to(dtype))
    assert conv.weight.flatten()[0] == 0.333984375
    slope = torch.tensor(1 / 3, dtype=dtype)
    assert torch.equal(torch.autograd.grad((slope * conv.poses).sum(), poses)[0], slope.expand_as(poses))


@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_never_without_being_asked(backend: str) -> None:
    """Neither by default nor because a network runs under autocast."""
    name = "4×4 poses"
    default, plain, reduced = (
        run(name, inputs(name), backend=backend, **options)
        for options in ({}, {"votes": "float32"}, {"votes": "bfloat16"})
    )
    assert same_bits(default, plain)
    assert not same_bits(plain, reduced)
    layer = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=EMRouting(backend=backend))
    children = Capsules(torch.randn(2, 3, 3, 2, 4), torch.rand(2, 3, 3, 2))
    expected = layer(children)
    with torch.autocast("cpu", torch.bfloat16):
        assert same_bits(layer(children), expected)


@pytest.mark.usefixtures("as_users_call")
def test_errors() -> None:
    with pytest.raises(ValueError, match="votes: must be 'auto', 'float32' or 'bfloat16', got 'bf16'"):
        EMRouting(votes="bf16")  # type: ignore[arg-type]

"""The C++ kernels against eager float64: as near as eager float32 is, for every instruction set of this processor."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from capsella import _native
from capsella.routing import CapsuleConv, HeinsenRouting
from capsella.routing.mixture import first_arguments
from tests.routing.helpers import CONV, LAYERS, asking, error, gradients, route, same_bits

pytestmark = pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))

OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "one iteration": {"iterations": 1},
    "shared": {"shared": True, "iterations": 2},
    "no bias": {"bias": False},
    "large ε": {"epsilon": 0.5, "iterations": 4},
}


def inputs(name: str, options: dict[str, Any]) -> dict[str, Tensor]:
    """Of the convolution, β_use, β_ign and B, in float64."""
    generator, layer = torch.Generator().manual_seed(0), LAYERS[name]
    tensors = layer.tensors(scale=0.5, generator=generator)
    (c_in, p), (c_out, d) = layer.children, layer.parents
    children = layer.geometry.kernel[0] * layer.geometry.kernel[1] * c_in
    shapes = HeinsenRouting(**options).parameter_shapes(c_out, d, children, p)
    draws = {key: torch.randn(shape, generator=generator, dtype=torch.float64) for key, shape in shapes.items()}
    return tensors | {key: 0.3 * draw for key, draw in draws.items()}


def run(name: str, tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32, **options: Any) -> list[Tensor]:
    """Poses, activations, and the gradients of one fixed random weighting of both."""
    mine = asking(tensors, dtype, without=["vote_offset"])
    out = route(HeinsenRouting(**options), LAYERS[name].geometry, mine)
    return [*out, *gradients(out, [tensor for tensor in mine.values() if tensor.requires_grad])]


@cache
def by_eager(name: str, options: str) -> tuple[list[Tensor], ...]:
    """In float64 and in float32. Eager knows no instruction sets: it computes once for all of them."""
    tensors, settings = inputs(name, OPTIONS[options]), OPTIONS[options]
    both = (torch.float64, torch.float32)
    return tuple(run(name, tensors, dtype, backend="eager", **settings) for dtype in both)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_and_gradients(name: str, options: str) -> None:
    exact, eager = by_eager(name, options)
    native = run(name, inputs(name, OPTIONS[options]), backend="native", **OPTIONS[options])
    for ours, theirs, truth in zip(native, eager, exact, strict=True):
        assert ours.shape == truth.shape
        assert error(ours, truth) < max(1e-5, 20 * error(theirs, truth))


def test_the_same_bits_with_any_number_of_threads(threads: Callable[[int], None]) -> None:
    for name in ("4×4 poses", "tied", "many images"):
        tensors = inputs(name, {})
        results = []
        for count in (1, 2, 5, 2):
            threads(count)
            results.append(run(name, tensors, backend="native"))
        for other in results[1:]:
            assert same_bits(other, results[0])


def test_no_value_comes_from_memory_never_written(request: pytest.FixtureRequest) -> None:
    tensors = inputs("4×4 poses", {})
    expected = run("4×4 poses", tensors, backend="native")
    request.getfixturevalue("nan_in_new_memory")
    assert same_bits(run("4×4 poses", tensors, backend="native"), expected)


def test_auto_is_native_for_float32_alone() -> None:
    tensors = inputs("4×4 poses", {})
    auto, native, eager = (run("4×4 poses", tensors, backend=backend) for backend in ("auto", "native", "eager"))
    assert same_bits(auto, native)
    assert not same_bits(native, eager)
    assert same_bits(*(run("4×4 poses", tensors, torch.float64, backend=backend) for backend in ("auto", "eager")))


@pytest.mark.usefixtures("as_users_call")
def test_the_operator_keeps_torch_s_contract() -> None:
    from capsella.routing.heinsen.native import Call, _heinsen_capsule_conv

    tensors = asking(inputs("4×4 poses", {}), torch.float32, without=["vote_offset"])
    conv = CapsuleConv(**{key: tensors[key] for key in CONV}, geometry=LAYERS["4×4 poses"].geometry)
    betas = torch.cat([tensors["beta_use"], tensors["beta_ignore"]])
    arguments = first_arguments(conv, betas.detach().requires_grad_(), tensors["bias"])
    torch.library.opcheck(_heinsen_capsule_conv, tuple(Call(**arguments, iterations=3, epsilon=1e-5, shared=False)))

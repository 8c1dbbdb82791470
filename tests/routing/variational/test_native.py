"""The C++ kernels against eager float64: as near as eager float32 is, for every instruction set of this processor."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from capsella import _native
from capsella.layers import CapsuleConv2d
from capsella.routing import CapsuleConv, VariationalRouting
from capsella.routing.mixture import first_arguments
from capsella.types import Capsules
from tests.routing.helpers import CONV, LAYERS, asking, error, gradients, route, same_bits

pytestmark = pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))

OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "authors' code": {"proportions": False},
    "one iteration": {"iterations": 1},
    "other priors": {"concentration": 0.5, "mean_weight": 3.0, "precision": 4.0, "degrees": 0.7, "iterations": 2},
    "code, other priors": {"proportions": False, "concentration": 2.0, "mean_weight": 0.3, "iterations": 4},
}


def inputs(name: str) -> dict[str, Tensor]:
    """Of the convolution, and β, in float64."""
    generator = torch.Generator().manual_seed(0)
    tensors = LAYERS[name].tensors(scale=0.5, generator=generator)
    return tensors | {"bias": torch.randn(LAYERS[name].parents[0], generator=generator, dtype=torch.float64)}


def run(name: str, tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32, **options: Any) -> list[Tensor]:
    """Poses, activations, and the gradients of one fixed random weighting of both."""
    mine = asking(tensors, dtype, without=["vote_offset"])
    out = route(VariationalRouting(**options), LAYERS[name].geometry, mine)
    return [*out, *gradients(out, [tensor for tensor in mine.values() if tensor.requires_grad])]


@cache
def by_eager(name: str, options: str) -> tuple[list[Tensor], ...]:
    """In float64 and in float32. Eager knows no instruction sets: it computes once for all of them."""
    tensors, settings = inputs(name), OPTIONS[options]
    both = (torch.float64, torch.float32)
    return tuple(run(name, tensors, dtype, backend="eager", **settings) for dtype in both)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_and_gradients(name: str, options: str) -> None:
    exact, eager = by_eager(name, options)
    native = run(name, inputs(name), backend="native", **OPTIONS[options])
    for ours, theirs, truth in zip(native, eager, exact, strict=True):
        assert ours.shape == truth.shape
        assert error(ours, truth) < max(1e-5, 20 * error(theirs, truth))


def test_the_same_bits_with_any_number_of_threads(threads: Callable[[int], None]) -> None:
    for name in ("4×4 poses", "tied", "many images"):
        tensors = inputs(name)
        results = []
        for count in (1, 2, 5, 2):
            threads(count)
            results.append(run(name, tensors, backend="native"))
        for other in results[1:]:
            assert same_bits(other, results[0])


def test_no_value_comes_from_memory_never_written(request: pytest.FixtureRequest) -> None:
    expected = run("4×4 poses", inputs("4×4 poses"), backend="native")
    request.getfixturevalue("nan_in_new_memory")
    assert same_bits(run("4×4 poses", inputs("4×4 poses"), backend="native"), expected)


def test_auto_is_native_for_float32_alone() -> None:
    tensors = inputs("4×4 poses")
    auto, native, eager = (run("4×4 poses", tensors, backend=backend) for backend in ("auto", "native", "eager"))
    assert same_bits(auto, native)
    assert not same_bits(native, eager)
    assert same_bits(*(run("4×4 poses", tensors, torch.float64, backend=backend) for backend in ("auto", "eager")))


def test_children_that_are_silent_or_alike_give_finite_gradients() -> None:
    tensors = inputs("4×4 poses")
    silent = tensors | {"activations": torch.zeros_like(tensors["activations"])}
    alike = tensors | {"poses": torch.ones_like(tensors["poses"])}
    far = tensors | {"poses": 1e6 * tensors["poses"]}
    for each in (silent, alike, far):
        assert all(tensor.isfinite().all() for tensor in run("4×4 poses", each, backend="native"))


@pytest.mark.usefixtures("as_users_call")
def test_the_operator_keeps_torch_s_contract() -> None:
    from capsella.routing.variational.native import Call, _variational_capsule_conv

    tensors = asking(inputs("4×4 poses"), torch.float32, without=["vote_offset"])
    conv = CapsuleConv(**{key: tensors[key] for key in CONV}, geometry=LAYERS["4×4 poses"].geometry)
    arguments = first_arguments(conv, tensors["bias"].unsqueeze(0))
    call = Call(
        **arguments, iterations=3, proportions=False, concentration=1.0, mean_weight=1.0, precision=1.0, degrees=2.0
    )
    torch.library.opcheck(_variational_capsule_conv, tuple(call))


def test_a_layer_with_batch_normalisation_takes_the_kernels() -> None:
    layer = CapsuleConv2d(2, 16, 3, 16, 2, pose="matrix", norm="batch", routing=VariationalRouting(backend="native"))
    children = Capsules(torch.randn(2, 4, 4, 2, 16), torch.rand(2, 4, 4, 2))
    native = layer(children)
    layer.routing = VariationalRouting(backend="eager")
    for ours, theirs in zip(native, layer(children), strict=True):
        assert error(ours, theirs) < 1e-3  # dividing by small standard deviations magnifies what was rounded

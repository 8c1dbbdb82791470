"""The native kernels against eager in float64: outputs and all gradients, every instruction set."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from capsella import _native
from capsella.routing import DynamicRouting, Geometry, RoutingInputs
from tests.routing.helpers import CONV, Layer, asking, gradients, kernel_cases, on_each_set, route, same_bits

if _native.UNAVAILABLE is not None:
    pytest.skip(_native.UNAVAILABLE, allow_module_level=True)


LAYERS = {
    "dense as in CapsNet": Layer(3, (2, 3), Geometry((2, 3)), (5, 8), (10, 16)),
    "dense, one image": Layer(1, (3, 3), Geometry((3, 3)), (4, 8), (3, 8)),
    "convolution as in CAPSNET 2": Layer(2, (4, 5), Geometry((3, 3)), (3, 8), (6, 8)),
    "8-D to 8-D, many windows": Layer(3, (5, 5), Geometry((3, 3)), (3, 8), (4, 8)),
    "8-D to 8-D, an odd number": Layer(2, (4, 5), Geometry((3, 3)), (3, 8), (5, 8)),
    "many windows": Layer(9, (5, 5), Geometry((2, 2)), (3, 8), (40, 16)),
    "odd sizes": Layer(2, (5, 6), Geometry((3, 3), (2, 2)), (3, 7), (5, 3)),
    "long poses": Layer(2, (3, 3), Geometry((2, 2)), (2, 19), (3, 37)),
    "stride beyond the kernel": Layer(2, (5, 5), Geometry((1, 2), (3, 3)), (2, 3), (4, 11)),
    "rows left over": Layer(2, (3, 2), Geometry((2, 2), (2, 1)), (2, 3), (4, 4)),
    "1×1": Layer(2, (2, 2), Geometry((1, 1)), (3, 2), (2, 5)),
    "one type, one element": Layer(2, (2, 2), Geometry((2, 2)), (1, 1), (1, 1)),
    "3×3 matrices": Layer(2, (3, 3), Geometry((2, 2), matrix=True), (3, 9), (4, 9)),
    "4×4 matrices": Layer(2, (3, 4), Geometry((2, 2), matrix=True), (3, 16), (4, 16)),
    "tied as in CAPSNET 1": Layer(2, (6, 6), Geometry((6, 6), tied=True), (5, 8), (4, 96)),
    "tied, one image, one type": Layer(1, (2, 3), Geometry((2, 3), tied=True), (1, 5), (3, 4)),
    "tied windows": Layer(3, (5, 6), Geometry((3, 2), (2, 3), tied=True), (4, 7), (5, 19)),
    "tied 3×3 matrices": Layer(2, (4, 5), Geometry((4, 5), tied=True, matrix=True), (3, 9), (4, 9)),
    "tied, many windows": Layer(9, (5, 5), Geometry((2, 2), tied=True), (9, 8), (20, 16)),
}
EPSILON = torch.finfo(torch.float32).eps


def inputs(name: str, batch: int | None = None) -> dict[str, Tensor]:
    """Of the convolution, and a bias."""
    layer = LAYERS[name] if batch is None else LAYERS[name]._replace(batch=batch)
    shapes = {**layer.shapes(), "bias": layer.parents}
    tensors = {key: torch.randn(shape) for key, shape in shapes.items() if key != "activations"}
    return {**tensors, "activations": tensors["poses"].norm(dim=-1)}


def results(
    name: str, tensors: dict[str, Tensor], backend: Any = "native", dtype: Any = None, **options: Any
) -> list[Tensor]:
    """Poses, activations, and the gradients of poses, weight and bias."""
    mine = asking(tensors, dtype, without=["activations", "vote_offset"])
    out = route(DynamicRouting(**options, bias="bias" in mine, backend=backend), LAYERS[name].geometry, mine)
    return [*out, *gradients(out, [tensor for tensor in mine.values() if tensor.requires_grad])]


# Options, and the inputs that are left out.
OPTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "plain": ({"iterations": 3}, ("vote_offset", "bias")),
    "leaky, one iteration": ({"iterations": 1, "leaky": True}, ()),
    "leaky, without an offset": ({"iterations": 2, "leaky": True}, ("vote_offset",)),
    "without a bias": ({"iterations": 4}, ("bias",)),
}


@cache
def by_eager(name: str, options: str) -> tuple[dict[str, Tensor], list[Tensor], list[Tensor]]:
    """Inputs, and what eager makes of them in float64 and in float32.

    Eager knows no instruction sets: it computes once for all of them.
    """
    settings, without = OPTIONS[options]
    if LAYERS[name].geometry.tied:
        without = (*without, "vote_offset")
    tensors = {key: tensor for key, tensor in inputs(name).items() if key not in without}
    exact = results(name, tensors, "eager", torch.float64, **settings)
    return tensors, exact, results(name, tensors, "eager", **settings)


@kernel_cases(list(OPTIONS), list(LAYERS))
@pytest.mark.usefixtures("instruction_set", "nan_in_new_memory")
def test_outputs_and_gradients(name: str, options: str) -> None:
    """Not further from eager in float64 than eight times as far as eager in float32 is, or than a few roundings.

    Eight: eager's own distance is a matter of luck where sums cancel, and of the processor that PyTorch finds.
    """
    tensors, expected, eager = by_eager(name, options)
    native = results(name, tensors, **OPTIONS[options][0])
    for ours, theirs, exact in zip(native, eager, expected, strict=True):
        allowed = 8 * (theirs - exact).abs().max() + 8 * EPSILON * exact.abs().max()
        assert (ours - exact).abs().max() <= allowed


@pytest.mark.parametrize("name", ["dense as in CapsNet", "many windows", "tied windows"])
def test_the_number_of_threads_changes_no_bit(threads: Callable[[int], None], name: str) -> None:
    tensors = inputs(name)
    del tensors["vote_offset"]
    runs = []
    for count in (1, 2, 5):
        threads(count)
        runs.append(results(name, tensors))
    for several in runs[1:]:
        assert same_bits(several, runs[0])


@on_each_set()
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("name", "leaky"), [("odd sizes", False), ("tied windows", True)])
@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e6])
def test_zero_tiny_and_huge_poses_stay_finite(leaky: bool, name: str, scale: float) -> None:
    tensors = inputs(name)
    del tensors["bias"], tensors["vote_offset"]
    tensors["poses"] *= scale
    out = results(name, tensors, leaky=leaky)
    assert all(x.isfinite().all() for x in out)
    assert out[1].max() <= 1 + 1e-6
    if scale == 0:
        assert not out[0].any()


def call_of(tensors: dict[str, Tensor], name: str) -> list[Any]:
    """The arguments of the operator: poses, weight, offset, bias, sizes, iterations, leaky."""
    conv = RoutingInputs(**{key: tensors[key] for key in CONV}, geometry=LAYERS[name].geometry)
    return [conv.poses, conv.weight, conv.vote_offset, tensors["bias"], list(conv.shape), 3, True]


@pytest.mark.parametrize("with_bias", [False, True])
def test_the_operator_is_registered_as_torch_wants(with_bias: bool) -> None:
    call = call_of(asking(inputs("odd sizes"), without=["activations", "vote_offset"]), "odd sizes")
    call[3] = call[3] if with_bias else None
    torch.library.opcheck(torch.ops.capsella.dynamic_capsule_conv.default, tuple(call))


@pytest.mark.usefixtures("as_users_call")
def test_kernels_refuse_arrays_of_another_size() -> None:
    poses, weight, offset, _, sizes, *options = call_of(inputs("odd sizes"), "odd sizes")
    operator = torch.ops.capsella.dynamic_capsule_conv
    with pytest.raises(ValueError, match=r"^bias: must"):
        operator(poses, weight, None, torch.zeros(14), sizes, *options)
    with pytest.raises(ValueError, match=r"^vote_offset: must"):
        operator(poses, weight, offset, None, [*sizes[:-1], 1], *options)

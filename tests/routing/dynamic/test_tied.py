"""Tied layers by algebra against the votes written out: outputs and all gradients, float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from capsella.routing import CapsuleConv, DynamicRouting, Geometry, capsule_votes, dynamic_routing, record
from capsella.routing.dynamic.tied import dynamic_capsule_conv_tied
from tests.routing.helpers import CONV, Layer, asking, assert_close, gradients, route

LAYERS = {
    "dense": Layer(2, (3, 2), Geometry((3, 2), tied=True), (3, 4), (2, 5)),
    "overlapping windows": Layer(2, (4, 5), Geometry((3, 2), (1, 2), tied=True), (3, 4), (2, 5)),
    "1×1": Layer(2, (2, 3), Geometry((1, 1), tied=True), (3, 1), (2, 3)),
    "gaps between windows": Layer(2, (5, 5), Geometry((1, 2), (3, 3), tied=True), (3, 4), (2, 1)),
    "matrix poses": Layer(2, (4, 3), Geometry((2, 2), tied=True, matrix=True), (3, 9), (2, 9)),
}


def inputs(name: str, batch: int = 2) -> dict[str, Tensor]:
    layer = LAYERS[name]._replace(batch=batch)
    return asking({**layer.tensors(), "bias": torch.randn(layer.parents, dtype=torch.float64)}, without=["activations"])


def run(name: str, tensors: dict[str, Tensor], backend: Any = "auto", leaky: bool = False) -> list[Tensor]:
    routing = DynamicRouting(bias="bias" in tensors, leaky=leaky, backend=backend)
    return route(routing, LAYERS[name].geometry, tensors)


def route_votes(name: str, tensors: dict[str, Tensor], leaky: bool = False) -> list[Tensor]:
    """The same with every vote written out."""
    of_conv = {key: tensors[key] for key in CONV if key in tensors}
    conv = CapsuleConv(**of_conv, geometry=LAYERS[name].geometry)
    votes, _ = capsule_votes(conv)
    routed = dynamic_routing(votes, bias=tensors.get("bias"), leaky=leaky, backend="eager")
    return list(conv.parents(routed.poses, routed.activations))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("without", [(), ("vote_offset",), ("vote_offset", "bias")])
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_outputs_and_gradients(name: str, leaky: bool, without: tuple[str, ...], backend: str) -> None:
    tensors = {key: tensor for key, tensor in inputs(name).items() if key not in without}
    ours, expected = run(name, tensors, backend, leaky), route_votes(name, tensors, leaky)
    asked = [tensor for tensor in tensors.values() if tensor.requires_grad]
    assert_close(ours, expected, rtol=1e-7, atol=1e-9)
    assert_close(gradients(ours, asked), gradients(expected, asked), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("batch", [0, 1])
def test_any_batch_size(batch: int) -> None:
    poses, lengths = run("overlapping windows", inputs("overlapping windows", batch))
    assert poses.shape == (batch, 2, 2, 2, 5)
    assert lengths.shape == (batch, 2, 2, 2)


@pytest.mark.parametrize("name", LAYERS)
def test_traces_are_those_of_the_votes(name: str) -> None:
    tensors = inputs(name)
    with record() as traces:
        run(name, tensors)
        route_votes(name, tensors)
    ours, expected = traces
    assert ours.name == expected.name
    for kept in ("couplings", "poses", "activations"):
        for mine, theirs in zip(getattr(ours, kept), getattr(expected, kept), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_nothing_as_large_as_the_votes_is_made() -> None:
    poses, weight = torch.randn(1, 5, 6, 4, 5), torch.randn(1, 1, 4, 3, 5, 10)
    conv = CapsuleConv(poses, torch.rand(1, 5, 6, 4), weight, Geometry((5, 6), tied=True))
    votes = 5 * 6 * 4 * 3 * 10
    largest = 0

    class Sizes(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                largest = max(largest, out.untyped_storage().nbytes() // out.element_size())
            return out

    with Sizes():
        dynamic_capsule_conv_tied(conv, 3, None, False)
    assert 0 < largest <= max(poses.numel(), weight.numel()) < votes


@pytest.mark.usefixtures("as_users_call")
def test_bad_input_says_what_is_wrong() -> None:
    tensors = inputs("dense")
    with pytest.raises(ValueError, match=r"bias: must have shape \[j d\] = \(2, 5\), got \(5,\)"):
        run("dense", {**tensors, "bias": torch.zeros(5, dtype=torch.float64)})
    with pytest.raises(ValueError, match=r"vote_offset: must have shape \[h w d\] = \(3, 2, 5\), got \(2, 3, 5\)"):
        run("dense", {**tensors, "vote_offset": tensors["vote_offset"].transpose(0, 1)})
    with pytest.raises(ValueError, match=r"backend: 'native' cannot run here: its tied layers take no vote_offset"):
        run("dense", tensors, "native")

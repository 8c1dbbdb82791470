"""Tied layers by algebra against the votes written out: outputs and all gradients, float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from capsella.routing import DynamicRouting, Geometry, capsule_votes, dynamic_routing, record
from capsella.routing.dynamic.tied import dynamic_capsule_conv_tied

C_IN, C_OUT = 3, 2
# name: (grid of children, geometry, pose elements of children, of parents)
LAYERS: dict[str, tuple[tuple[int, int], Geometry, int, int]] = {
    "dense": ((3, 2), Geometry((3, 2), tied=True), 4, 5),
    "overlapping windows": ((4, 5), Geometry((3, 2), (1, 2), tied=True), 4, 5),
    "1×1": ((2, 3), Geometry((1, 1), tied=True), 1, 3),
    "gaps between windows": ((5, 5), Geometry((1, 2), (3, 3), tied=True), 4, 1),
    "matrix poses": ((4, 3), Geometry((2, 2), tied=True, matrix=True), 9, 9),
}


def inputs(name: str, batch: int = 2) -> dict[str, Tensor]:
    grid, geometry, p, d = LAYERS[name]
    shapes = {
        "poses": (batch, *grid, C_IN, p),
        "weight": geometry.weight_shape(C_IN, p, C_OUT, d),
        "vote_offset": (*grid, d),
        "bias": (C_OUT, d),
    }
    return {key: torch.randn(shape, dtype=torch.float64, requires_grad=True) for key, shape in shapes.items()}


def route(name: str, tensors: dict[str, Tensor], backend: Any = "auto", leaky: bool = False) -> list[Tensor]:
    routing = DynamicRouting(bias="bias" in tensors, leaky=leaky, backend=backend)
    activations = tensors["poses"].detach().norm(dim=-1)
    rest = {key: tensor for key, tensor in tensors.items() if key != "poses"}
    out = routing.capsule_conv(tensors["poses"], activations, geometry=LAYERS[name][1], **rest)
    return list(out)


def route_votes(name: str, tensors: dict[str, Tensor], leaky: bool = False) -> list[Tensor]:
    """The same with every vote written out."""
    poses, weight, offset = tensors["poses"], tensors["weight"], tensors.get("vote_offset")
    votes, _, grid = capsule_votes(poses, poses.detach().norm(dim=-1), weight, LAYERS[name][1], offset)
    routed = dynamic_routing(votes, bias=tensors.get("bias"), leaky=leaky, backend="eager")
    return [routed.poses.reshape(*grid, *routed.poses.shape[1:]), routed.activations.reshape(*grid, -1)]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("without", [(), ("vote_offset",), ("vote_offset", "bias")])
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_outputs_and_gradients(name: str, leaky: bool, without: tuple[str, ...], backend: str) -> None:
    tensors = {key: tensor for key, tensor in inputs(name).items() if key not in without}
    ours, expected = route(name, tensors, backend, leaky), route_votes(name, tensors, leaky)
    weighting = [torch.randn_like(out) for out in expected]
    gradients = [torch.autograd.grad(outputs, list(tensors.values()), weighting) for outputs in (ours, expected)]
    for mine, theirs in zip((*ours, *gradients[0]), (*expected, *gradients[1]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("batch", [0, 1])
def test_any_batch_size(batch: int) -> None:
    poses, lengths = route("overlapping windows", inputs("overlapping windows", batch))
    assert poses.shape == (batch, 2, 2, C_OUT, 5)
    assert lengths.shape == (batch, 2, 2, C_OUT)


@pytest.mark.parametrize("name", LAYERS)
def test_traces_are_those_of_the_votes(name: str) -> None:
    tensors = inputs(name)
    with record() as traces:
        route(name, tensors)
        route_votes(name, tensors)
    ours, expected = traces
    assert ours.name == expected.name
    for kept in ("couplings", "poses", "activations"):
        for mine, theirs in zip(getattr(ours, kept), getattr(expected, kept), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_nothing_as_large_as_the_votes_is_made() -> None:
    poses, weight = torch.randn(1, 5, 6, 4, 5), torch.randn(1, 1, 4, 3, 5, 10)
    geometry = Geometry((5, 6), tied=True)
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
        dynamic_capsule_conv_tied(poses, weight, geometry, None, 3, None, False)
    assert 0 < largest <= max(poses.numel(), weight.numel()) < votes


@pytest.mark.usefixtures("as_users_call")
def test_bad_input_says_what_is_wrong() -> None:
    tensors = inputs("dense")
    with pytest.raises(ValueError, match=r"bias: must have shape \[j d\] = \(2, 5\), got \(5,\)"):
        route("dense", {**tensors, "bias": torch.zeros(5, dtype=torch.float64)})
    with pytest.raises(ValueError, match=r"vote_offset: must have shape \[h w d\] = \(3, 2, 5\), got \(2, 3, 5\)"):
        route("dense", {**tensors, "vote_offset": tensors["vote_offset"].transpose(0, 1)})
    with pytest.raises(ValueError, match=r"backend: 'native' cannot run here: its tied layers take no vote_offset"):
        route("dense", tensors, "native")

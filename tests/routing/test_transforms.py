"""`torch.func` and forward derivatives: what the reference has by a backward pass, whatever backend a layer takes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from capsella import _native
from capsella.layers import DenseCapsules
from capsella.layers.large_kernels import LargeConv2d
from capsella.routing import ROUTINGS
from capsella.types import Capsules

pytestmark = pytest.mark.filterwarnings("ignore:.*backend .native. cannot run here", "ignore:.*performance drop")
Function = Callable[[Tensor], Tensor]


def forward(function: Function, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, x.sin()))).tangent


def slope(function: Function, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x), x)[0]


TRANSFORMS: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "grad": lambda function, x: torch.func.grad(function)(x),
    "jvp": lambda function, x: torch.func.jvp(function, (x,), (x.sin(),))[1],
    "forward": forward,
    "vmap": lambda function, x: torch.func.vmap(function)(torch.stack([x, 2 * x])),
    "grad of each": lambda function, x: torch.func.vmap(torch.func.grad(function))(torch.stack([x, 2 * x])),
}
USUAL: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "grad": slope,
    "jvp": lambda function, x: (slope(function, x) * x.sin()).sum(),
    "forward": lambda function, x: (slope(function, x) * x.sin()).sum(),
    "vmap": lambda function, x: torch.stack([function(x), function(2 * x)]),
    "grad of each": lambda function, x: torch.stack([slope(function, x), slope(function, 2 * x)]),
}


def loss_of(name: str, backend: str) -> Function:
    """The sum of squared poses of a layer, and of its activations."""
    torch.manual_seed(1)
    layer = DenseCapsules((3, 3), 4, 16, 5, 16, pose="matrix", routing=ROUTINGS[name](backend=backend))
    for parameter in layer.routing_parameters.values():
        torch.nn.init.normal_(parameter, std=0.1)

    def loss(poses: Tensor) -> Tensor:
        found = layer(Capsules(poses, poses.square().mean(-1).sigmoid()))
        return found.poses.square().sum() + found.activations.sum()

    return loss


@pytest.mark.parametrize("name", [name for name, kind in ROUTINGS.items() if "backend" in kind.__dataclass_fields__])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_layer_has_what_the_reference_has(name, transform, monkeypatch) -> None:
    monkeypatch.setattr("capsella.routing.parts.VOTES", {"cpu": 1})  # more images than go through at once
    poses = torch.randn(3, 3, 3, 4, 16, generator=torch.Generator().manual_seed(0))
    found, expected = (
        TRANSFORMS[transform](loss_of(name, "auto"), poses),
        USUAL[transform](loss_of(name, "reference"), poses),
    )
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("transform", ["grad", "jvp", "forward"])
def test_a_large_convolution_has_what_pytorch_has(transform) -> None:
    torch.manual_seed(0)
    layer, images = LargeConv2d(128, 128, 11), torch.randn(8, 128, 28, 28)

    def loss(x: Tensor) -> Tensor:
        return layer(x).square().mean()

    found = TRANSFORMS[transform](loss, images)
    layer.eval()
    torch.testing.assert_close(found, USUAL[transform](loss, images), rtol=1e-3, atol=1e-5)


COMPILED: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "jvp": lambda function, x: torch.compile(TRANSFORMS["jvp"], backend="eager")(function, x),
    "jvp of a compiled layer": lambda function, x: TRANSFORMS["jvp"](torch.compile(function, backend="eager"), x),
}


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("transform", COMPILED)
def test_a_compiled_layer_has_it_too(transform) -> None:
    poses = torch.randn(2, 3, 3, 4, 16, generator=torch.Generator().manual_seed(0))
    found = COMPILED[transform](loss_of("em", "auto"), poses)
    expected = USUAL[transform.partition(" ")[0]](loss_of("em", "reference"), poses)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    torch._dynamo.reset()


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))
def test_a_compiled_layer_keeps_its_kernels() -> None:
    called: list[str] = []

    def noting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        called.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    loss = loss_of("em", "auto")
    torch.compile(loss, backend=noting)(torch.randn(2, 3, 3, 4, 16))
    assert any("em_capsule_conv" in name for name in called)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["dynamic", "em", "heinsen", "variational"])
def test_kept_tensors_come_back_from_anywhere(name) -> None:
    """NumPy allots memory at other bounds than PyTorch."""
    poses = torch.randn(3, 3, 3, 4, 16, generator=torch.Generator().manual_seed(0))
    loss = loss_of(name, "auto")
    expected = slope(loss, poses)
    x = poses.clone().requires_grad_()

    def moved(tensor: Tensor) -> Tensor:
        room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)  # one number behind a bound
        return room[1:].view(tensor.shape).copy_(tensor.detach())

    with torch.autograd.graph.saved_tensors_hooks(moved, lambda tensor: tensor):
        value = loss(x)
    torch.testing.assert_close(torch.autograd.grad(value, x)[0], expected)

"""`torch.func`, forward and second derivatives: those of the reference, whatever backend a layer takes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from capsella.layers import DenseCapsules
from capsella.routing import ROUTINGS
from capsella.types import Capsules
from tests.routing.helpers import needs_kernels

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
}
USUAL: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "grad": slope,
    "jvp": lambda function, x: (slope(function, x) * x.sin()).sum(),
    "forward": lambda function, x: (slope(function, x) * x.sin()).sum(),
    "vmap": lambda function, x: torch.stack([function(x), function(2 * x)]),
}


def loss_of(name: str, backend: str) -> Function:
    """The sum of squared poses of a layer, and of its activations."""
    torch.manual_seed(1)
    layer = DenseCapsules((2, 2), 3, 16, 4, 16, pose="matrix", routing=ROUTINGS[name](backend=backend))
    for parameter in layer.routing_parameters.values():
        torch.nn.init.normal_(parameter, std=0.1)

    def loss(poses: Tensor) -> Tensor:
        found = layer(Capsules(poses, poses.square().mean(-1).sigmoid()))
        return found.poses.square().sum() + found.activations.sum()

    return loss


@pytest.mark.parametrize("name", [name for name, kind in ROUTINGS.items() if "backend" in kind.__dataclass_fields__])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_layer_has_what_the_reference_has(name, transform, monkeypatch) -> None:
    monkeypatch.setattr("capsella.routing.functional.CHUNK", {"cpu": 1})  # more images than go through at once
    poses = torch.randn(3, 2, 2, 3, 16, generator=torch.Generator().manual_seed(0))
    found, expected = (
        TRANSFORMS[transform](loss_of(name, "auto"), poses),
        USUAL[transform](loss_of(name, "reference"), poses),
    )
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("as_users_call")
@needs_kernels
def test_a_compiled_layer_keeps_its_kernels() -> None:
    called: list[str] = []

    def noting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        called.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    loss = loss_of("em", "auto")
    torch.compile(loss, backend=noting)(torch.randn(2, 2, 2, 3, 16))
    assert any("em_capsule_conv" in name for name in called)
    torch._dynamo.reset()


def second(function: Function, x: Tensor, direction: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(x**2).square().sum(), x, create_graph=True)
    return torch.autograd.grad((slope * direction).sum(), x)[0]


@pytest.mark.parametrize("name", ["em", "heinsen", "variational"])
def test_eager_has_the_second_derivatives_of_the_reference(name: str) -> None:
    """What has a backward pass of its own must not take them for 0."""
    votes, direction = torch.randn(2, 2, 6, 3, 4, dtype=torch.float64)
    shapes = ROUTINGS[name]().parameter_shapes(types=3, pose=4, children=6, child_pose=4)
    parameters = {key: torch.full(shape, 0.1, dtype=torch.float64) for key, shape in shapes.items()}
    activations = torch.full((2, 6), 0.6, dtype=torch.float64)
    routings = (ROUTINGS[name](backend=backend) for backend in ("eager", "reference"))
    results = [
        second(lambda V, r=routing: r.route(V, activations, **parameters).poses, votes, direction)
        for routing in routings
    ]
    torch.testing.assert_close(*results)

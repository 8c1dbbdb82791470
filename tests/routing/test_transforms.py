"""`torch.func` and forward derivatives: what the reference has by a backward pass, whatever backend a layer takes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

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

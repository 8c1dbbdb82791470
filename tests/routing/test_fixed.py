"""Routings whose couplings are fixed make no votes in a layer: the same parents and gradients as by the votes."""

from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from capsella.models import create_model
from capsella.routing import CapsuleConv, Geometry, RandomRouting, Routing, UniformRouting, record
from capsella.routing.convolution import capsule_votes

GEOMETRIES = {
    "dense": ((2, 3), Geometry((2, 3))),
    "stride 2, rows left over": ((6, 4), Geometry((3, 3), (2, 2))),
    "tied": ((3, 4), Geometry((2, 2), (1, 2), tied=True)),
    "matrix": ((4, 3), Geometry((3, 2), matrix=True)),
}
every_routing = pytest.mark.parametrize("routing", [UniformRouting(), RandomRouting(seed=3)], ids=lambda r: r.name)


@every_routing
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("has_offset", [False, True])
def test_parents_and_gradients(routing: Routing, name: str, has_offset: bool) -> None:
    grid, geometry = GEOMETRIES[name]
    shapes = (2, *grid, 2, 4), (2, *grid, 2), geometry.weight_shape(2, 4, 3, 4), (*grid, 4)
    poses, activations, weight, offset = (torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes)
    conv = CapsuleConv(poses, activations, weight, geometry, offset if has_offset else None)
    routed = routing.route(*capsule_votes(conv))
    results = []
    for parents in (conv.parents(routed.poses, routed.activations), routing.capsule_conv(conv)):
        total = (parents.poses * torch.arange(4)).sum() + parents.activations.square().sum()
        gradients: Any = torch.autograd.grad(total, (poses, weight, offset), allow_unused=True, materialize_grads=True)
        results.append((*parents, *gradients))
    torch.testing.assert_close(*results)


@every_routing
def test_no_votes_are_kept(routing: Routing) -> None:
    """Of 8 parent types, votes would be 8 times the windows' poses."""
    geometry = Geometry((3, 3))
    conv = CapsuleConv(
        torch.randn(4, 6, 6, 3, 4).requires_grad_(),
        torch.rand(4, 6, 6, 3),
        torch.randn(3, 3, 3, 8, 4, 4).requires_grad_(),
        geometry,
    )
    storages: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        routing.capsule_conv(conv)
    sizes = conv.sizes
    votes = sizes.n * sizes.i * sizes.c_out * sizes.d
    assert max(storages.values()) <= votes / 8
    assert sum(storages.values()) < votes / 2


@every_routing
def test_what_is_recorded(routing: Routing) -> None:
    geometry = Geometry((2, 2))
    conv = CapsuleConv(torch.randn(2, 3, 3, 2, 4), torch.rand(2, 3, 3, 2), torch.randn(2, 2, 2, 3, 4, 5), geometry)
    with record() as traces:
        parents = routing.capsule_conv(conv)
    (trace,) = traces
    routed = routing.route(*capsule_votes(conv))
    torch.testing.assert_close(trace.couplings[-1], routed.couplings)
    assert trace.poses[-1].shape == (8, 3, 5)
    assert parents.poses.shape == (2, 2, 2, 3, 5)


@pytest.mark.parametrize("routing", [UniformRouting(), RandomRouting()])
def test_no_images_with_coordinates_added(routing):
    model = create_model("hinton2018_matrix_capsnet_small", image_size=17, routing=routing).eval()
    assert model(torch.rand(0, 1, 17, 17)).activations.shape == (0, 5)

"""Plain ports compute the eager backend's outputs and gradients on ordinary inputs, in float64."""

from math import prod
from typing import Any

import pytest
import torch

from benchmarks.plain import plain
from capsella.routing import (
    DynamicRouting,
    EMRouting,
    Geometry,
    HeinsenRouting,
    Routing,
    RoutingInputs,
    VariationalRouting,
)

ROUTINGS: dict[str, Routing] = {
    "all": EMRouting(inverse_temperature=0.5, backend="eager"),
    "types": EMRouting(inverse_temperature=0.5, competition="types", backend="eager"),
    "dynamic": DynamicRouting(backend="eager"),
    "variational": VariationalRouting(precision=0.3, backend="eager"),
    "heinsen": HeinsenRouting(backend="eager"),
}
GEOMETRIES = {
    "dense": ((2, 3), Geometry((2, 3))),
    "stride 2, rows left over": ((6, 4), Geometry((3, 3), (2, 2))),
    "tied": ((3, 4), Geometry((2, 2), (1, 2), tied=True)),
    "matrix": ((4, 3), Geometry((3, 2), matrix=True)),
}


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_capsule_convolutions(routing: Routing, name: str) -> None:
    grid, geometry = GEOMETRIES[name]
    shapes = routing.parameter_shapes(3, 4, 2 * prod(geometry.kernel), 4)
    inputs = [
        torch.randn(2, *grid, 2, 4, dtype=torch.float64),
        torch.rand(2, *grid, 2, dtype=torch.float64),
        torch.randn(geometry.weight_shape(2, 4, 3, 4), dtype=torch.float64),
        torch.randn(*grid, 4, dtype=torch.float64),
        *(torch.randn(shape, dtype=torch.float64) for shape in shapes.values()),
    ]
    for tensor in inputs:
        tensor.requires_grad_()
    poses, activations, weight, offset, *rest = inputs
    parameters = dict(zip(shapes, rest, strict=True))
    results = []
    for run in (plain(routing), routing):
        parents = run.route_windows(RoutingInputs(poses, activations, weight, geometry, offset), **parameters)
        total = (parents.poses * torch.arange(4)).sum() + parents.activations.square().sum()
        gradients: Any = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
        results.append((*parents, *gradients))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS)
def test_votes(routing: Routing) -> None:
    votes, activations = torch.randn(2, 5, 3, 4, dtype=torch.float64), torch.rand(2, 5, dtype=torch.float64)
    shapes = routing.parameter_shapes(3, 4, 5, 4)
    parameters = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    results = [tuple(run.route(votes, activations, **parameters)) for run in (plain(routing), routing)]
    torch.testing.assert_close(*results)

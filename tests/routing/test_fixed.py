"""Uniform and random couplings: what they are, and that layers with them make no votes."""

from typing import Any

import pytest
import torch

from capsella.routing import (
    Geometry,
    RandomRouting,
    Routing,
    RoutingInputs,
    UniformRouting,
    random_routing,
    squash,
)
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
    conv = RoutingInputs(poses, activations, weight, geometry, offset if has_offset else None)
    routed = routing.route(*capsule_votes(conv))
    results = []
    for parents in (conv.parents(routed.poses, routed.activations), routing.route_windows(conv)):
        total = (parents.poses * torch.arange(4)).sum() + parents.activations.square().sum()
        gradients: Any = torch.autograd.grad(total, (poses, weight, offset), allow_unused=True, materialize_grads=True)
        results.append((*parents, *gradients))
    torch.testing.assert_close(*results)


def test_random_couplings_depend_on_the_seed_alone() -> None:
    """They serve every image and leave the global generator alone."""
    votes, state = torch.randn(2, 5, 3, 4, dtype=torch.float64), torch.get_rng_state()
    routed = random_routing(votes, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(random_routing(votes, seed=3).couplings, routed.couplings)
    assert not torch.allclose(random_routing(votes, seed=4).couplings, routed.couplings)
    assert torch.equal(routed.couplings[0], routed.couplings[1])
    torch.testing.assert_close(routed.couplings.sum(2), torch.ones(2, 5).double())
    torch.testing.assert_close(routed.poses, squash(torch.einsum("bij,bijd->bjd", routed.couplings, votes)))

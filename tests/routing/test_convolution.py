"""One geometry for dense, convolutional and tied layers: votes against explicit loops."""

from typing import Any

import pytest
import torch
from torch import Tensor

from capsella.routing import (
    Geometry,
    RoutingInputs,
    capsule_votes,
)
from tests.routing.helpers import Layer, assert_close, gradients

# name: (grid of children, geometry)
GEOMETRIES = {
    "dense": ((3, 5), Geometry((3, 5))),
    "stride 1": ((4, 5), Geometry((2, 2))),
    "odd sizes, stride 2, rows left over": ((5, 6), Geometry((3, 3), (2, 2))),
    "non-square": ((4, 7), Geometry((1, 3), (2, 3))),
    "gaps between windows": ((5, 5), Geometry((1, 2), (3, 3))),
    "tied": ((4, 5), Geometry((3, 2), (1, 2), tied=True)),
    "tied dense": ((3, 2), Geometry((3, 2), tied=True)),
    "1×1": ((2, 3), Geometry((1, 1))),
}
C_IN, C_OUT, P, D = 3, 2, 4, 5


def inputs(grid: tuple[int, int], geometry: Geometry, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Poses, activations, weight in float64."""
    tensors = Layer(batch, grid, geometry, (C_IN, P), (C_OUT, D)).tensors()
    return tensors["poses"], tensors["activations"], tensors["weight"]


def votes_by_loops(
    poses: Tensor, activations: Tensor, weight: Tensor, geometry: Geometry
) -> tuple[list[Tensor], list[Tensor]]:
    """[i j d] votes and [i] activations of each window, images first, then rows, then columns."""
    (kh, kw), (sh, sw) = geometry.kernel, geometry.stride
    votes, children = [], []
    for image in range(len(poses)):
        for top in range(0, poses.shape[1] - kh + 1, sh):
            for left in range(0, poses.shape[2] - kw + 1, sw):
                window, present = [], []
                for y in range(kh):
                    for x in range(kw):
                        for c in range(C_IN):
                            u = poses[image, top + y, left + x, c]
                            W = weight[0, 0, c] if geometry.tied else weight[y, x, c]
                            window.append(torch.stack([u @ W[j] for j in range(C_OUT)]))
                            present.append(activations[image, top + y, left + x, c])
                votes.append(torch.stack(window))
                children.append(torch.stack(present))
    return votes, children


@pytest.mark.parametrize("name", GEOMETRIES)
def test_votes_and_their_gradients_match_loops(name: str) -> None:
    grid, geometry = GEOMETRIES[name]
    tensors = [tensor.requires_grad_() for tensor in inputs(grid, geometry)]
    conv = RoutingInputs(*tensors, geometry)
    ours, expected = capsule_votes(conv), [torch.stack(part) for part in votes_by_loops(*tensors, geometry)]
    assert_close(ours, expected)
    assert_close(gradients(ours, tensors), gradients(expected, tensors))
    assert conv.shape.n == conv.shape.batch * conv.shape.rows * conv.shape.columns == len(expected[0])
    assert (conv.shape.rows, conv.shape.columns) == geometry.grid(grid)


def test_weights_are_not_copied_for_each_image() -> None:
    """At batch 128 such copies cost CapsNet 2.1 GB; autograd may keep no tensor larger than votes or weight."""
    geometry = Geometry((4, 4))
    poses, activations, weight = (tensor.requires_grad_() for tensor in inputs((4, 4), geometry, batch=50))
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.untyped_storage().nbytes() // tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        votes, _ = capsule_votes(RoutingInputs(poses, activations, weight, geometry))
    assert kept
    assert max(kept) <= max(votes.numel(), weight.numel()) < 50 * weight.numel()


@pytest.mark.usefixtures("as_users_call")
def test_refusals_name_the_argument() -> None:
    for argument, sizes in (("kernel", ((0, 3), (1, 1))), ("stride", ((3, 3), (1, 0)))):
        with pytest.raises(ValueError, match=f"^{argument}: must"):
            Geometry(*sizes)
    geometry = Geometry((2, 3))
    u, a, W = inputs((3, 4), geometry)
    wrong: list[tuple[str, tuple[Any, ...]]] = [
        ("capsule grid", (u[:, :1], a[:, :1], W, geometry)),
        ("activations", (u, a[..., :1], W, geometry)),
        ("weight", (u, a, W[0, 0, 0, 0], geometry)),
        ("weight", (u, a, W[:, :2], geometry)),
        ("weight", (u, a, W, Geometry((2, 3), tied=True))),
        ("poses", (u.flatten(3), a, W, geometry)),
        ("shapes", (u[..., :0], a, W, geometry)),
        ("shapes", (u, a, W[:, :, :, :0], geometry)),
        ("vote_offset", (u, a, W, geometry, torch.zeros(2, 2, D))),
    ]
    for argument, given in wrong:
        with pytest.raises(ValueError, match=f"^{argument}: m"):
            RoutingInputs(*given)

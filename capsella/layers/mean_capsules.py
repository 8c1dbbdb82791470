"""Capsules that learn no votes: each child votes with its own pose."""

import torch

from capsella.layers.convolution import DenseCapsules
from capsella.routing import Routing


class MeanCapsules(DenseCapsules):
    """Dense capsules whose pose is the mean of their children's, as the routing weighs them.

    For class capsules of self-routing, whose couplings and activations come from the children's poses: votes of their
    own would be weights that no loss reaches, and the authors' network has none.

    Shapes: as `DenseCapsules`, with pose_out = pose_in.

    Args:
        grid: rows and columns of the children.
        types_in: capsule types of the layer below.
        pose: pose elements of children and parents.
        types_out: capsule types of this layer.
        routing: one that can tell parents apart by other than votes, which are the same for all.
    """

    def __init__(self, grid: tuple[int, int], types_in: int, pose: int, types_out: int, *, routing: Routing) -> None:
        super().__init__(grid, types_in, pose, types_out, pose, tied=True, routing=routing)
        del self.weight
        # Not a part of the saved weights, as it never changes. torch.eye would import PyTorch's compiler.
        unit = torch.zeros(pose, pose).fill_diagonal_(1)
        # Written out, for an average over the steps of a training cannot be kept in a tensor that repeats its numbers.
        weight = unit.expand(1, 1, types_in, types_out, pose, pose).clone()
        self.register_buffer("weight", weight, persistent=False)

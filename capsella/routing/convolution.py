"""The one geometry of all capsule layers: a window of children votes for the parents at its site.

A kernel over the whole grid is a fully connected layer; a weight without window axes (1 × 1) is tied: shared by all
children of one type in the window, wherever they stand.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from capsella.errors import ArgumentError, check_argument
from capsella.routing.functional import check_shape
from capsella.types import CapsuleLogits, Capsules


@dataclass(frozen=True)
class Geometry:
    """The children in each parent's window, and how a weight acts on a pose.

    Attributes:
        kernel: rows and columns of the window.
        stride: rows and columns between windows.
        tied: one weight serves all positions of the window.
        matrix: poses are n×n matrices M, row by row, and a vote is the matrix product M·W with W n×n (Hinton et al.
            2018); otherwise they are vectors u and a vote is u·W with W p×d.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    tied: bool = False
    matrix: bool = False

    def __post_init__(self) -> None:
        for argument, value in (("kernel", self.kernel), ("stride", self.stride)):
            check_argument(len(value) == 2 and min(value) >= 1, "be two numbers of at least 1", **{argument: value})

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of parents for a grid of children of this size, without padding."""
        if size[0] < self.kernel[0] or size[1] < self.kernel[1]:
            raise ValueError(
                f"capsule grid: must be at least the kernel, {self.kernel[0]}×{self.kernel[1]}, got {size[0]}×{size[1]}"
            )
        rows, columns = (1 + (n - k) // s for n, k, s in zip(size, self.kernel, self.stride, strict=True))
        return rows, columns

    def weight_shape(self, c_in: int, p: int, c_out: int, d: int) -> tuple[int, ...]:
        """Return [kh kw c_in c_out p d] for vector poses, [kh kw c_in c_out n n] for matrix poses, p = d = n².

        Raises:
            ValueError: matrix poses are not square, or differ between children and parents.
        """
        window = (1, 1) if self.tied else self.kernel
        if not self.matrix:
            return (*window, c_in, c_out, p, d)
        n = math.isqrt(p)
        if n * n != p or p != d:
            raise ValueError(
                "pose: matrix poses must have the same square number of elements (4, 9, 16, …) in children and "
                f"parents, got {p} and {d}"
            )
        return (*window, c_in, c_out, n, n)


def gather_windows(children: Shaped[Tensor, "b h w c *rest"], geometry: Geometry) -> Tensor:
    """Return a view of the children in every window: [b h' w' kh kw c *rest], nothing copied."""
    windows = children
    for axis in (0, 1):
        windows = windows.unfold(1 + axis, geometry.kernel[axis], geometry.stride[axis])
    # unfold puts the window axes last: [b h' w' c *rest kh kw]
    return windows.movedim((-2, -1), (3, 4))


class RoutingShape(NamedTuple):
    """The sizes of a capsule convolution, named as in `Conv` of csrc/kernels.h; README.md explains the letters.

    All are integers, even `tied` (1 or 0), because PyTorch's operators take lists of one type.
    """

    batch: int
    height: int
    width: int
    c_in: int
    rows: int
    columns: int
    c_out: int
    kernel_height: int
    kernel_width: int
    stride_height: int
    stride_width: int
    r: int
    q: int
    e: int
    tied: int

    @property
    def grid(self) -> tuple[int, int, int, int]:
        """The shape of the parents' activations: (b, h', w', c_out)."""
        return self.batch, self.rows, self.columns, self.c_out

    @property
    def n(self) -> int:
        """Windows of all images."""
        return self.batch * self.rows * self.columns

    @property
    def k(self) -> int:
        """Slots of a window."""
        return self.kernel_height * self.kernel_width

    @property
    def i(self) -> int:
        """Children of a window."""
        return self.k * self.c_in

    @property
    def d(self) -> int:
        """Elements of a parent's pose."""
        return self.r * self.e

    @property
    def votes_per_image(self) -> int:
        """Elements of the votes of all windows of one image."""
        return self.rows * self.columns * self.i * self.c_out * self.d


@dataclass(frozen=True, eq=False)
class RoutingInputs:
    """The inputs of one routed layer: its children, the weights that make their votes, and the geometry of both.

    Attributes:
        poses, activations: the children's.
        weight: one W [q e] for each child and parent type at each place of the window; see `Geometry.weight_shape`.
        vote_offset: added to the votes of all children at a grid position, after W (coordinate addition).

    Raises:
        ValueError: the shapes do not fit together.
    """

    poses: Float[Tensor, "b h w c_in p"]
    activations: Float[Tensor, "b h w c_in"]
    weight: Float[Tensor, "kh kw c_in c_out q e"]
    geometry: Geometry
    vote_offset: Float[Tensor, "h w d"] | None = None

    def __post_init__(self) -> None:
        check_argument(self.poses.ndim == 5, "have the five axes [b h w c_in p]", poses=tuple(self.poses.shape))
        check_argument(
            self.weight.ndim == 6, "have the six axes [kh kw c_in c_out p d]", weight=tuple(self.weight.shape)
        )
        if min(*self.poses.shape[1:], *self.weight.shape) < 1:
            shapes = f"poses {tuple(self.poses.shape)} and weight {tuple(self.weight.shape)}"
            raise ArgumentError("shapes", "have no empty axis except that of the images", shapes)
        *grid, c_in, p = self.poses.shape
        self.geometry.grid((grid[1], grid[2]))
        check_shape("activations", self.activations, (*grid, c_in), "[b h w c_in]")
        c_out, _, e = self.weight.shape[3:]
        d = p if self.geometry.matrix else e
        check_shape("weight", self.weight, self.geometry.weight_shape(c_in, p, c_out, d), "[kh kw c_in c_out p d]")
        if self.vote_offset is not None:
            check_shape("vote_offset", self.vote_offset, (*grid[1:], d), "[h w d]")

    @property
    def shape(self) -> RoutingShape:
        """The sizes of all axes."""
        batch, height, width, c_in, p = self.poses.shape
        c_out, q, e = self.weight.shape[3:]
        g = self.geometry
        return RoutingShape(
            batch, height, width, c_in, *g.grid((height, width)), c_out, *g.kernel, *g.stride, p // q, q, e, int(g.tied)
        )

    def with_children(self, children: Capsules) -> "RoutingInputs":
        """Return these inputs with other children, e.g. those of a chunk of the images."""
        return replace(self, poses=children.poses, activations=children.activations)

    def parents(self, poses: Tensor, activations: Tensor) -> Capsules:
        """Put poses [n j d] and activations [n j] of all windows on their grid [b h' w' c_out]."""
        return Capsules(poses.reshape(*self.shape.grid, self.shape.d), activations.reshape(self.shape.grid))

    def parent_logits(self, poses: Tensor, log_odds: Tensor) -> CapsuleLogits:
        """Put poses [n j d] and log-odds [n j] of all windows on their grid, as `parents` does."""
        return CapsuleLogits(*self.parents(poses, log_odds))


def bfloat16_factors(inputs: RoutingInputs) -> RoutingInputs:
    """Round poses and weight to the nearest bfloat16 number (ties to even), but keep their dtype.

    Votes are then products of bfloat16 numbers, summed in that dtype. Gradients pass through the rounding unchanged.
    """
    return replace(inputs, poses=_rounded(inputs.poses), weight=_rounded(inputs.weight))


def _rounded(x: Tensor) -> Tensor:
    # The difference and the sum are exact. Casting to bfloat16 and back would round the gradient, too.
    return x + (x.detach().bfloat16().to(x.dtype) - x.detach())


def slot_positions(inputs: RoutingInputs) -> Int[Tensor, "sites k"]:
    """Return the position of the child in each slot of each window of an image: its row · w + column in the grid."""
    shape = inputs.shape
    positions = torch.arange(shape.height * shape.width, device=inputs.poses.device)
    windows = gather_windows(positions.reshape(1, shape.height, shape.width, 1), inputs.geometry)
    return windows.reshape(shape.rows * shape.columns, shape.k)


def by_window(inputs: RoutingInputs, per_child: Shaped[Tensor, "b h w c *rest"]) -> Tensor:
    """Gather a value of each child, e.g. its activation, into windows: [n i *rest]."""
    windows = gather_windows(per_child, inputs.geometry)
    return windows.reshape(inputs.shape.n, inputs.shape.i, *per_child.shape[4:])


def capsule_votes(inputs: RoutingInputs) -> tuple[Float[Tensor, "n i j d"], Float[Tensor, "n i"]]:
    """Return the votes û = u·W, or M·W, of all windows' children, offsets added, and the children's activations."""
    shape, geometry = inputs.shape, inputs.geometry
    n, i, c_out, r, q, e = shape.n, shape.i, shape.c_out, shape.r, shape.q, shape.e
    u = gather_windows(inputs.poses, geometry).reshape(n, i, r * q)
    W = inputs.weight.reshape(-1, shape.c_in, c_out, q, e).expand(shape.k, -1, -1, -1, -1)
    # One matrix product per child: [i (n r) q] × [i q (j e)].
    W = W.transpose(2, 3).reshape(i, q, c_out * e)
    votes = (u.transpose(0, 1).reshape(i, n * r, q) @ W).reshape(i, n, r, c_out, e)
    # Stored as [n j i d]: the sums over children that every routing makes then read memory in order.
    votes = votes.permute(1, 3, 0, 2, 4).reshape(n, c_out, i, r * e)
    if inputs.vote_offset is not None:
        offset = inputs.vote_offset[None, :, :, None].expand(shape.batch, -1, -1, shape.c_in, -1)
        votes = votes + gather_windows(offset, geometry).reshape(-1, 1, i, r * e)
    return votes.transpose(1, 2), by_window(inputs, inputs.activations)

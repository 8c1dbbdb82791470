"""The one geometry of all capsule layers: a window of children votes for the parents at its position.

A kernel over the whole grid is a fully connected layer; a weight without window axes (1 × 1) is tied: shared by all
children of one type in the window, wherever they stand.
"""

import math
from dataclasses import dataclass

from jaxtyping import Float, Shaped
from torch import Tensor

from capsella.routing.checks import check_shape


@dataclass(frozen=True)
class Geometry:
    """Which children stand in which parent's window, and how a weight acts on a pose.

    kernel: rows and columns of the window. stride: rows and columns between windows. tied: one weight for the window.
    matrix: poses are n×n matrices M, row by row, and a vote is the matrix product M·W with W n×n (Hinton et al. 2018);
        otherwise they are vectors u and a vote is u·W with W p×d.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    tied: bool = False
    matrix: bool = False

    def __post_init__(self) -> None:
        for argument, value in (("kernel", self.kernel), ("stride", self.stride)):
            if len(value) != 2 or min(value) < 1:
                raise ValueError(f"{argument}: must be two numbers of at least 1, got {value}")

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of parents for a grid of children of this size, without padding."""
        if size[0] < self.kernel[0] or size[1] < self.kernel[1]:
            raise ValueError(
                f"capsule grid: must be at least the kernel, {self.kernel[0]}×{self.kernel[1]}, got {size[0]}×{size[1]}"
            )
        rows, columns = (1 + (n - k) // s for n, k, s in zip(size, self.kernel, self.stride, strict=True))
        return rows, columns

    @property
    def weight_window(self) -> tuple[int, int]:
        """The two leading axes of the weight: the kernel, or 1 × 1 where tied."""
        return (1, 1) if self.tied else self.kernel

    def weight_shape(self, c_in: int, p: int, c_out: int, d: int) -> tuple[int, ...]:
        """[kh kw c_in c_out p d] for vector poses, [kh kw c_in c_out n n] for matrix poses of p = d = n² elements.

        Raises:
            ValueError: matrix poses that are not square, or not alike in children and parents.
        """
        if not self.matrix:
            return (*self.weight_window, c_in, c_out, p, d)
        n = math.isqrt(p)
        if n * n != p or p != d:
            raise ValueError(
                "pose: matrix poses must have the same square number of elements (4, 9, 16, …) in children and "
                f"parents, got {p} and {d}"
            )
        return (*self.weight_window, c_in, c_out, n, n)


def gather_windows(children: Shaped[Tensor, "b h w c *rest"], geometry: Geometry) -> Tensor:
    """A view of the children in every window: [b h' w' kh kw c *rest], nothing copied."""
    windows = children
    for axis in (0, 1):
        windows = windows.unfold(1 + axis, geometry.kernel[axis], geometry.stride[axis])
    # unfold puts the window axes last: [b h' w' c *rest kh kw]
    return windows.movedim((-2, -1), (3, 4))


def check_capsule_conv(
    poses: Tensor, activations: Tensor, weight: Tensor, geometry: Geometry, vote_offset: Tensor | None
) -> tuple[int, int, int, int, int]:
    """The shape of the parents' poses, (b, h', w', c_out, d_out), of children and a weight that fit together.

    Raises:
        ValueError: they do not.
    """
    batch, height, width, c_in, p = poses.shape
    rows, columns = geometry.grid((height, width))
    check_shape("activations", activations, (batch, height, width, c_in), "[b h w c_in]")
    if weight.ndim != 6:
        raise ValueError(f"weight: must have the six axes [kh kw c_in c_out p d], got shape {tuple(weight.shape)}")
    c_out, _, d = weight.shape[3:]
    d_out = p if geometry.matrix else d
    check_shape("weight", weight, geometry.weight_shape(c_in, p, c_out, d_out), "[kh kw c_in c_out p d]")
    if vote_offset is not None:
        check_shape("vote_offset", vote_offset, (height, width, d_out), "[h w d]")
    return batch, rows, columns, c_out, d_out


def capsule_votes(
    poses: Float[Tensor, "b h w c_in p"],
    activations: Float[Tensor, "b h w c_in"],
    weight: Float[Tensor, "kh kw c_in c_out q d"],
    geometry: Geometry,
    vote_offset: Float[Tensor, "h w d_out"] | None = None,
) -> tuple[Float[Tensor, "n i j d_out"], Float[Tensor, "n i"], tuple[int, int, int]]:
    """The votes û = u·W, or M·W, of every window; n = b·h'·w' windows with i = kh·kw·c_in children each.

    `weight` has the shape `Geometry.weight_shape` gives: one matrix W [q d] for each child type and parent type.
    `vote_offset` is added to the votes of all children at a grid position, after W (coordinate addition).

    Returns votes, the children's activations [n i], and (b, h', w').
    """
    batch, rows, columns, c_out, d_out = check_capsule_conv(poses, activations, weight, geometry, vote_offset)
    height, width, c_in, p = poses.shape[1:]
    q, d = weight.shape[4:]
    n, window = batch * rows * columns, geometry.kernel[0] * geometry.kernel[1]
    i, pose_rows = window * c_in, p // q  # a vector is a pose of one row, a matrix one of n rows
    u = gather_windows(poses, geometry).reshape(n, i, p)
    W = weight.reshape(-1, c_in, c_out, q, d).expand(window, -1, -1, -1, -1).transpose(2, 3).reshape(i, q, c_out * d)
    # One matrix product per child: [i (n rows) q] × [i q (j d)].
    votes = (u.transpose(0, 1).reshape(i, n * pose_rows, q) @ W).reshape(i, n, pose_rows, c_out, d)
    # Stored as [n j i d]: the sums over children that every routing makes then read memory in order.
    votes = votes.permute(1, 3, 0, 2, 4).reshape(n, c_out, i, d_out)
    if vote_offset is not None:
        votes = votes + _offsets_of_windows(vote_offset, geometry, (batch, height, width, c_in, d_out))
    return votes.transpose(1, 2), gather_windows(activations, geometry).reshape(n, i), (batch, rows, columns)


def _offsets_of_windows(offset: Tensor, geometry: Geometry, shape: tuple[int, int, int, int, int]) -> Tensor:
    """`vote_offset` for every child of every window: [n 1 i d]."""
    batch, _, _, c_in, d = shape
    children = offset[None, :, :, None].expand(batch, -1, -1, c_in, -1)
    return gather_windows(children, geometry).reshape(-1, 1, geometry.kernel[0] * geometry.kernel[1] * c_in, d)

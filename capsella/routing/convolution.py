"""The one geometry of all capsule layers: a window of children votes for the parents at its position.

A kernel over the whole grid is a fully connected layer; a weight without window axes (1 × 1) is tied: shared by all
children of one type in the window, wherever they stand.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from capsella.routing.checks import check_shape


@dataclass(frozen=True)
class Geometry:
    """Which children stand in which parent's window.

    kernel: rows and columns of the window. stride: rows and columns between windows. tied: one weight for the window.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    tied: bool = False

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


def gather_windows(children: Float[Tensor, "b h w c *rest"], geometry: Geometry) -> Tensor:
    """A view of the children in every window: [b h' w' kh kw c *rest], nothing copied."""
    windows = children
    for axis in (0, 1):
        windows = windows.unfold(1 + axis, geometry.kernel[axis], geometry.stride[axis])
    # unfold puts the window axes last: [b h' w' c *rest kh kw]
    return windows.movedim((-2, -1), (3, 4))


def capsule_votes(
    poses: Float[Tensor, "b h w c_in p"],
    activations: Float[Tensor, "b h w c_in"],
    weight: Float[Tensor, "kh kw c_in c_out p d"],
    geometry: Geometry,
) -> tuple[Float[Tensor, "n i j d"], Float[Tensor, "n i"], tuple[int, int, int]]:
    """The votes û = u·W of every window, n = b·h'·w' windows with i = kh·kw·c_in children each.

    Returns votes, the children's activations [n i], and (b, h', w').
    """
    batch, *size, c_in, p = poses.shape
    rows, columns = geometry.grid((size[0], size[1]))
    check_shape("activations", activations, (batch, *size, c_in), "[b h w c_in]")
    if weight.ndim != 6:
        raise ValueError(f"weight: must have the six axes [kh kw c_in c_out p d], got shape {tuple(weight.shape)}")
    c_out, d = weight.shape[3], weight.shape[5]
    check_shape("weight", weight, (*geometry.weight_window, c_in, c_out, p, d), "[kh kw c_in c_out p d]")

    n, window = batch * rows * columns, geometry.kernel[0] * geometry.kernel[1]
    u = gather_windows(poses, geometry).reshape(n, window * c_in, p)
    W = weight.reshape(-1, c_in, c_out, p, d).expand(window, -1, -1, -1, -1).transpose(2, 3)
    # One matrix product per child: [i n p] × [i p (j d)].
    votes = (u.transpose(0, 1) @ W.reshape(window * c_in, p, c_out * d)).reshape(window * c_in, n, c_out, d)
    # Stored as [n j i d]: the sums over children that every routing makes then read memory in order.
    votes = votes.permute(1, 2, 0, 3).contiguous().transpose(1, 2)
    return votes, gather_windows(activations, geometry).reshape(n, window * c_in), (batch, rows, columns)

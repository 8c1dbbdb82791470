"""Where things stand: coordinates added to votes cast through shared weights (Hinton et al. 2018), or to images."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import check_argument
from capsella.layers.convolution import PoseKind


def receptive_field_centres(
    image_size: tuple[int, int], convolutions: Sequence[tuple[int, int]]
) -> Float[Tensor, "h w 2"]:
    """(row, column) of each receptive field's centre, after unpadded convolutions given as (kernel, stride).

    In units of the image: 0 is its upper or left edge, 1 its lower or right edge, and the centre of pixel k of n is
    (k + 1/2) / n.

    >>> receptive_field_centres((4, 4), [(2, 2)])[:, 0]  # windows over pixels 0–1 and 2–3
    tensor([[0.2500, 0.2500],
            [0.7500, 0.2500]])
    """
    field, step = 1, 1  # pixels in a receptive field, and between the fields of neighbours
    for kernel, stride in convolutions:
        field, step = field + (kernel - 1) * step, step * stride
    rows, columns = ([(first + field / 2) / n for first in range(0, n - field + 1, step)] for n in image_size)
    return torch.tensor([(row, column) for row in rows for column in columns]).reshape(len(rows), len(columns), 2)


def coordinate_addition(
    centres: Float[Tensor, "h w 2"], pose_elements: int, pose: PoseKind = "matrix"
) -> Float[Tensor, "h w d"]:
    """What [H] adds to every vote: the scaled centre, in the first two elements of the right-most column.

    A vector pose has no columns: its first two elements take the centre. As [H] writes, the addition is to the votes,
    after W, so that the class capsule learns where the entity is within each receptive field; Forslöv 2018 §7.1.1 says
    to the child's pose.

    Raises:
        ValueError: a matrix pose that is not square, or fewer than two elements to add to.
    """
    n = math.isqrt(pose_elements)
    square = pose != "matrix" or n * n == pose_elements
    check_argument(square, "be a square number for matrix poses", pose_elements=pose_elements)
    row, column = (n - 1, 2 * n - 1) if pose == "matrix" else (0, 1)
    check_argument(column < pose_elements, "have two elements for the coordinates", pose_elements=pose_elements)
    offset = torch.zeros(*centres.shape[:2], pose_elements)
    offset[..., row], offset[..., column] = centres.unbind(2)
    return offset


class CoordinateChannels(nn.Module):
    """Two more channels, which say where a pixel is: its row and its column, from −1 to 1 (Heinsen 2019).

    Shapes: [b c height width] → [b c+2 height width].
    """

    grid: Tensor

    def __init__(self, image_size: tuple[int, int]) -> None:
        super().__init__()
        height, width = image_size
        grid = torch.empty(2, height, width)
        grid[0], grid[1] = torch.linspace(-1, 1, height)[:, None], torch.linspace(-1, 1, width)
        # Not a part of the saved weights: the image size gives it.
        self.register_buffer("grid", grid, persistent=False)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h w"]:
        """Put the coordinates behind the channels of each image."""
        return torch.cat([images, self.grid.expand(images.shape[0], -1, -1, -1)], 1)

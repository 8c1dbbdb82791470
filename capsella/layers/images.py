"""Image preparation as a part of the network, so that all its users prepare alike; and coordinates of pixels."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import ArgumentError, check_argument, not_negative
from capsella.layers.convolution import PoseKind
from capsella.types import at_least_float32


class CropImages(nn.Module):
    """A square crop of every image: at a random place of each image in training mode, else at the centre.

    Shapes: [b c height width] → [b c size size].
    """

    def __init__(self, image_size: tuple[int, int], size: int) -> None:
        super().__init__()
        if not 1 <= size <= min(image_size):
            raise ArgumentError("crop", f"be from 1 to the image's {image_size[0]}×{image_size[1]}", size)
        self.size = size
        self.room = (image_size[0] - size, image_size[1] - size)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c size size"]:
        """Crop each image."""
        size = self.size
        top, left = (room // 2 for room in self.room)
        if not self.training:
            return images[..., top : top + size, left : left + size]
        # [b c h w] → every possible crop as a view [b c tops lefts size size], of which each image takes one
        cuts = images.unfold(2, size, 1).unfold(3, size, 1)
        b = torch.arange(len(images), device=images.device)
        tops, lefts = (torch.randint(room + 1, (len(images),), device=images.device) for room in self.room)
        return cuts[b, :, tops, lefts]


class EnlargeImages(nn.Module):
    """Bilinear enlargement until the shorter side has `least` pixels; larger images stay as they are.

    `image_size` is (height, width) before the enlargement, `size` after it.

    Shapes: [b c height width] → [b c *size].
    """

    def __init__(self, image_size: tuple[int, int], least: int) -> None:
        super().__init__()
        if min(image_size) < 1:
            raise ValueError(f"image_size: must be at least 1×1, got {image_size[0]}×{image_size[1]}")
        scale = max(1.0, least / min(image_size))
        height, width = (round(n * scale) for n in image_size)
        self.image_size, self.size = image_size, (height, width)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c height width"]:
        """Enlarge each image."""
        if self.size == self.image_size:
            return images
        return nn.functional.interpolate(images, self.size, mode="bilinear", align_corners=False)


class StandardiseImages(nn.Module):
    """Standardisation by each image's mean and standard deviation, over all pixels and channels (Hinton et al. 2018).

    The standard deviation is at least 1/√n grey levels of 1/255 for n pixels and channels, as in TensorFlow's per-image
    standardisation, which the authors use. A blank image gives zeros.

    Shapes: [b c h w] → [b c h w].
    """

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Standardise each image."""
        pixels = images.shape[1] * images.shape[2] * images.shape[3]
        wide = at_least_float32(images)  # in float16 the smallest deviation would be 0
        centred = wide - wide.mean((1, 2, 3), keepdim=True)
        variance = centred.square().mean((1, 2, 3), keepdim=True)
        standard = centred * variance.clamp(min=255**-2 / pixels).rsqrt()  # clamped first: √0 has no gradient
        return standard.to(images.dtype)


class JitterImages(nn.Module):
    """Random brightness and contrast for every training image; evaluation images stay as they are.

    x → f·(x − mean) + mean + δ, with f uniform in 1 ± contrast, δ uniform in ± brightness, and the mean over all pixels
    and channels. Brightness is in units of pixel values: after `StandardiseImages`, standard deviations.

    Shapes: [b c h w] → [b c h w].
    """

    def __init__(self, brightness: float, contrast: float) -> None:
        super().__init__()
        not_negative(brightness=brightness)
        check_argument(0 <= contrast < 1, "be in [0, 1)", contrast=contrast)
        self.brightness, self.contrast = brightness, contrast

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Change each image."""
        if not self.training:
            return images
        mean = images.mean((1, 2, 3), keepdim=True)
        f, delta = (2 * torch.rand(2, len(images), 1, 1, 1, device=images.device) - 1).to(images.dtype)
        return (1 + self.contrast * f) * (images - mean) + mean + self.brightness * delta


class PrepareImages(nn.Sequential):
    """Image preparation of the networks of Hinton et al. 2018: crop, standardise, and change brightness in training.

    `image_size` is (height, width) before the crop, `size` after it.

    Shapes: [b c height width] → [b c *size].
    """

    def __init__(
        self, image_size: tuple[int, int], crop: int | None, standardise: bool, brightness: float, contrast: float
    ) -> None:
        super().__init__(
            nn.Identity() if crop is None else CropImages(image_size, crop),
            StandardiseImages() if standardise else nn.Identity(),
            JitterImages(brightness, contrast) if brightness or contrast else nn.Identity(),
        )
        self.image_size = image_size
        self.size = image_size if crop is None else (crop, crop)

    def drawn_size(self) -> tuple[int, int]:
        """Return the size of the images that a decoder reconstructs.

        Raises:
            ValueError: images are cropped at random here, so the loss does not know what to compare with.
        """
        if self.size != self.image_size:
            raise ValueError(f"reconstruction: must be off with a crop, or the crop be None, got {self.size[0]} pixels")
        return self.size


def receptive_field_centres(
    image_size: tuple[int, int], convolutions: Sequence[tuple[int, int]]
) -> Float[Tensor, "h w 2"]:
    """Return (row, column) of each receptive field's centre, after unpadded convolutions given as (kernel, stride).

    Coordinates are fractions of the image: 0 is the upper or left edge, 1 the lower or right edge, and the centre of
    pixel k of n is (k + 1/2) / n.

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
    """Return the offset that [H] adds to every vote: the scaled centre, in the first two elements of the last column.

    A vector pose has no columns: the centre goes into its first two elements. [H] adds to the votes, after W, so that
    the class capsule learns where the entity is within each receptive field; Forslöv 2018 §7.1.1 adds to the child's
    pose.

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
    """Two more channels with the row and the column of each pixel, from −1 to 1 (Heinsen 2019).

    Shapes: [b c height width] → [b c+2 height width].
    """

    grid: Tensor

    def __init__(self, image_size: tuple[int, int]) -> None:
        super().__init__()
        height, width = image_size
        grid = torch.empty(2, height, width)
        grid[0], grid[1] = torch.linspace(-1, 1, height)[:, None], torch.linspace(-1, 1, width)
        # Not saved with the weights: it follows from the image size.
        self.register_buffer("grid", grid, persistent=False)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h w"]:
        """Append the coordinates to the channels of each image."""
        return torch.cat([images, self.grid.expand(images.shape[0], -1, -1, -1)], 1)

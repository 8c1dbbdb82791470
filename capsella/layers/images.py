"""What a network does to its images before the first convolution, so that every user of the network does the same."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import ArgumentError, check_argument, not_negative
from capsella.types import at_least_float32


class CropImages(nn.Module):
    """Cut a square out of every image: at a random place in training mode, at the centre in evaluation mode.

    All images of a training batch are cut at places of their own.

    Shapes: [b c height width] → [b c size size].
    """

    def __init__(self, image_size: tuple[int, int], size: int) -> None:
        super().__init__()
        if not 1 <= size <= min(image_size):
            raise ArgumentError("crop", f"be from 1 to the image's {image_size[0]}×{image_size[1]}", size)
        self.size = size
        self.room = (image_size[0] - size, image_size[1] - size)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c size size"]:
        """Cut each image."""
        size = self.size
        top, left = (room // 2 for room in self.room)
        if not self.training:
            return images[..., top : top + size, left : left + size]
        # [b c h w] → every possible cut as a view [b c tops lefts size size], of which each image takes one
        cuts = images.unfold(2, size, 1).unfold(3, size, 1)
        b = torch.arange(len(images), device=images.device)
        tops, lefts = (torch.randint(room + 1, (len(images),), device=images.device) for room in self.room)
        return cuts[b, :, tops, lefts]


class EnlargeImages(nn.Module):
    """Enlarge images, bilinearly, until their shorter side has `least` pixels; larger ones stay as they are.

    image_size: (height, width) before. size: after.

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
    """Subtract an image's mean and divide by its standard deviation, over all pixels and channels (Hinton et al. 2018).

    The deviation counts as at least 1/√pixels grey levels of 1/255, as in TensorFlow's per-image standardisation, which
    the authors use: a blank image gives zeros.

    Shapes: [b c h w] → [b c h w].
    """

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Standardise each image."""
        pixels = images.shape[1] * images.shape[2] * images.shape[3]
        wide = at_least_float32(images)  # in float16 the least deviation is 0
        centred = wide - wide.mean((1, 2, 3), keepdim=True)
        variance = centred.square().mean((1, 2, 3), keepdim=True)
        standard = centred * variance.clamp(min=255**-2 / pixels).rsqrt()  # clamped first: √0 has no gradient
        return standard.to(images.dtype)


class JitterImages(nn.Module):
    """Give every training image a random brightness and contrast of its own; leave evaluation images as they are.

    x → f·(x − mean) + mean + δ, with f even in 1 ± contrast and δ even in ± brightness, the mean over all pixels and
    channels. In units of the images: after `StandardiseImages`, standard deviations.

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
    """What the networks of Hinton et al. 2018 do to images first: crop, standardise, and change them in training.

    image_size: (height, width) before. size: after the crop.

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
        """What a decoder draws.

        Raises:
            ValueError: images are cropped at random in here, so that no loss knows what is to be drawn.
        """
        if self.size != self.image_size:
            raise ValueError(f"reconstruction: must be off with a crop, or the crop be None, got {self.size[0]} pixels")
        return self.size

"""The layer that gives a stem its images as it wants them, and keeps its weights where they are to stay."""

from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import ArgumentError, check_argument
from capsella.layers import EnlargeImages
from capsella.models.stems.description import StemDescription

LUMA = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in a grey image (ITU-R BT.601), as in Pillow."""


class Stem(nn.Module):
    """Images to the feature maps of a network that was trained before.

    Grey images are repeated for a stem of colours, colours made grey for a grey one. Images are enlarged to the
    description's size, and normalised where the stem wants it.

    Shapes: [b channels height width] in [0, 1] → [b *description.maps].

    Args:
        description: of the stem.
        network: with its weights.
        image_size, channels: of the images.
        freeze: its weights and its batch norms' running statistics stay as they are. Without effect on a stem whose
            weights were not learned before.

    Raises:
        ValueError: channels that do not fit the stem's.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self,
        description: StemDescription,
        network: nn.Module,
        image_size: tuple[int, int],
        channels: int,
        freeze: bool,
    ) -> None:
        super().__init__()
        if channels != description.channels and {channels, description.channels} != {1, 3}:
            raise ArgumentError("channels", f"be {description.channels} for this stem, or grey or RGB", channels)
        self.description = description
        self.is_frozen = freeze and description.learned
        self.enlarge = EnlargeImages(image_size, min(description.size))
        check_argument(
            self.enlarge.size == description.size, f"be {self.enlarge.size} for these images", size=description.size
        )
        self.network = network  # behind what comes before it, so that modules are met in their order
        for name in ("mean", "std"):
            values = getattr(description, name)
            tensor = None if values is None else torch.tensor(values)[:, None, None]
            self.register_buffer(name, tensor, persistent=False)  # the description has them
        if self.is_frozen:
            network.requires_grad_(False)
            network.eval()

    def train(self, mode: bool = True) -> Self:
        """As any module; a frozen stem stays in evaluation mode."""
        super().train(mode)
        if self.is_frozen:
            self.network.eval()
        return self

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b maps rows columns"]:
        """Fit the images, and take the maps."""
        images = self.enlarge(_in_channels(images, self.description.channels))
        if self.mean is not None and self.std is not None:
            images = (images - self.mean) / self.std
        maps: Tensor = self.network(images)
        return maps


def _in_channels(images: Tensor, channels: int) -> Tensor:
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images.expand(-1, 3, -1, -1)
    shares = torch.tensor(LUMA, dtype=images.dtype, device=images.device)
    return (images * shares[:, None, None]).sum(1, keepdim=True)

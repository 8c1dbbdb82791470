"""Mini-batches in [0, 1] from an `ImageSet`."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from capsella.data.images import ImageSet


def batches(
    images: ImageSet, size: int, *, order: Int64[Tensor, "k"] | None = None, device: torch.device | str | None = None
) -> Iterator[tuple[Float[Tensor, "b c h w"], Int64[Tensor, "b"]]]:
    """Yield (images [b c h w] in [0, 1], labels [b]); the last batch holds what is left over.

    Args:
        images: the set.
        size: images a batch.
        order: indices of the images to take, in this order; None takes all as they are.
        device: where the batches go, or None for where the images are; bytes are moved and scaled there.

    Raises:
        ValueError: `size` is below 1.
    """
    if size < 1:
        raise ValueError(f"size: must be at least 1, got {size}")
    return _batches(images, size, order, device)


def _batches(
    images: ImageSet, size: int, order: Tensor | None, device: torch.device | str | None
) -> Iterator[tuple[Tensor, Tensor]]:
    home = images.images.device
    order = torch.arange(len(images), device=home) if order is None else order.to(home)
    for chosen in order.split(size):
        pixels = images.images[chosen].to(device or home)
        yield pixels.float() / 255, images.labels[chosen].to(device or home)

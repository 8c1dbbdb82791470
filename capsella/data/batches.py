"""Mini-batches in [0, 1] from a set of images or of pairs."""

from collections.abc import Iterator

import torch
from jaxtyping import Int64
from torch import Tensor

from capsella.data.images import Batch
from capsella.data.split.sets import LabelledImages
from capsella.errors import at_least


def batches(
    images: LabelledImages,
    size: int,
    *,
    order: Int64[Tensor, "k"] | None = None,
    device: torch.device | str | None = None,
) -> Iterator[Batch]:
    """Yield (images [b c h w] in [0, 1], labels [b], None); the last batch holds what is left over.

    Of pairs: (images, labels [b 2], parts [b 2 c h w] in [0, 1]).

    Args:
        images: the set.
        size: images a batch.
        order: indices of the images to take, in this order; None takes all as they are.
        device: where the batches go, or None for where the images are; bytes are moved and scaled there.

    Raises:
        ValueError: `size` is below 1.
    """
    at_least(1, size=size)
    return _batches(images, size, order, device)


def _batches(
    images: LabelledImages, size: int, order: Tensor | None, device: torch.device | str | None
) -> Iterator[Batch]:
    order = torch.arange(len(images)) if order is None else order
    for chosen in order.split(size):
        taken = images.take(chosen)
        home = device or taken.images.device
        parts = None if taken.parts is None else taken.parts.to(home).float() / 255
        yield Batch(taken.images.to(home).float() / 255, taken.labels.to(home), parts)


def epoch_order(images: int, wanted: int | None, generator: torch.Generator) -> Int64[Tensor, "k"]:
    """Indices of an epoch: all of `images` once in random order; or `wanted` draws from them, each from all."""
    if wanted is None:
        return torch.randperm(images, generator=generator)
    return torch.randint(images, (wanted,), generator=generator)

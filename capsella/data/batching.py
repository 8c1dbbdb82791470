"""Mini-batches in [0, 1] from a set of images or of pairs."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from capsella.data.images import Batch
from capsella.data.splits import LabelledImages
from capsella.errors import check_minimum

# An image of a rare class is drawn at most this many times as often as in a pass over all images. With more, the
# network would memorise a handful of images.
MOST_REPEATS = 5


def batches(
    images: LabelledImages,
    size: int,
    *,
    order: Int64[Tensor, " k"] | None = None,
    device: torch.device | str | None = None,
) -> Iterator[Batch]:
    """Yield (images [b c h w] in [0, 1], labels [b], None); the last batch holds what is left over.

    For pairs: (images, labels [b 2], parts [b 2 c h w] in [0, 1]).

    Args:
        images: the set.
        size: images per batch.
        order: indices of the images to take, in this order; None takes all as they are.
        device: device of the batches, or None for that of the images; bytes are moved there and then scaled.

    Raises:
        ValueError: `size` is below 1.
    """
    check_minimum(1, size=size)
    order = torch.arange(len(images)) if order is None else order
    for chosen in order.split(size):
        taken = images.take(chosen)
        home = device or taken.images.device
        parts = None if taken.parts is None else taken.parts.to(home).float() / 255
        yield Batch(taken.images.to(home).float() / 255, taken.labels.to(home), parts)


def epoch_batches(order: Int64[Tensor, " k"], size: int, devices: int = 1) -> list[Int64[Tensor, " b"]]:
    """Divide an epoch's indices into batches; a remainder of fewer than two images per device joins the last one.

    Batch norm of 1×1 feature maps fails for a single image, and every device needs an image.

    >>> [len(batch) for batch in epoch_batches(torch.arange(9), 4)]
    [4, 5]
    """
    parts = list(order.split(size))
    if len(parts) > 1 and len(parts[-1]) < min(size, 2 * devices):
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def evenly(number: int, most: int) -> Int64[Tensor, " k"]:
    """Return at most `most` of the indices below `number`, evenly spread, because sets are often sorted by class.

    >>> evenly(5, 3).tolist(), evenly(2, 3).tolist()
    ([0, 2, 4], [0, 1])
    """
    return torch.linspace(0, number - 1, min(most, number), dtype=torch.float64).round().long()


def epoch_order(images: int, wanted: int | None, generator: torch.Generator) -> Int64[Tensor, " k"]:
    """Return the indices of an epoch: all images once in random order, or `wanted` draws with replacement."""
    if wanted is None:
        return torch.randperm(images, generator=generator)
    return torch.randint(images, (wanted,), generator=generator)


def even_shares(counts: Sequence[int], most_repeats: float = MOST_REPEATS) -> list[float]:
    """Return the fraction of draws for each class: even, unless an image would be drawn too often.

    No image is drawn more than `most_repeats` times as often as in a pass over all images. The other classes share
    evenly what a small class does not use.

    >>> [round(share, 3) for share in even_shares([160, 80, 10])]
    [0.4, 0.4, 0.2]
    """
    check_minimum(1, most_repeats=most_repeats, images=sum(counts))
    caps = [most_repeats * count / sum(counts) for count in counts]
    left, shares = 1.0, [0.0] * len(counts)
    for done, k in enumerate(sorted(range(len(counts)), key=counts.__getitem__)):
        shares[k] = min(caps[k], left / (len(counts) - done))
        left -= shares[k]
    return shares


def balanced_order(
    labels: Int64[Tensor, " n"],
    wanted: int | None,
    generator: torch.Generator,
    most_repeats: float = MOST_REPEATS,
) -> Int64[Tensor, " k"]:
    """Return an epoch's indices in random order, each class with its fraction from `even_shares`.

    The images of a class are drawn equally often, give or take once. Every epoch omits other images of large classes.

    Args:
        labels: the class of each training image.
        wanted: number of draws; None for the number of images.
        generator: source of random numbers.
        most_repeats: as in `even_shares`.
    """
    shares = torch.tensor(even_shares(labels.bincount().tolist(), most_repeats), dtype=torch.float64)
    ends = (shares.cumsum(0) * (wanted or len(labels))).round()
    drawn = []
    for label, draws in enumerate(ends.long().diff(prepend=torch.zeros(1, dtype=torch.long)).tolist()):
        own = (labels == label).nonzero()[:, 0]
        while draws > 0:
            drawn.append(own[torch.randperm(len(own), generator=generator)][:draws])
            draws -= len(own)
    order = torch.cat(drawn)
    return order[torch.randperm(len(order), generator=generator)]

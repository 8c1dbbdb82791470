"""Pairs of overlaid images, e.g. MultiMNIST, drawn from a seed when they are used.

Pair k of a set depends on (seed, k) alone. Millions of pairs therefore take no memory, can be used in any order, and
a resumed training sees the same pairs as an unbroken one.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int64, Integer, UInt8, UInt64
from torch import Tensor

from capsella.data.images import Batch, ImageSet
from capsella.errors import check_argument, check_minimum

_DRAWS = 5  # random numbers per pair: the second image, and two shifts for each image


@dataclass(frozen=True, eq=False)
class PairSet:
    """Pairs of images of different classes, each shifted on a canvas, added pixel by pixel and clipped.

    They follow Sabour et al. 2017, §6. The first image of pair k is the k-th of the source in a random order that
    starts over after the last. The second is drawn uniformly from the images of all other classes, and the shifts
    uniformly from −shift to shift.

    Raises:
        ValueError: a source in colour or with images of fewer than three classes, no pairs, a negative shift or seed.
    """

    source: ImageSet
    """Source of both images of a pair: light on black, one channel."""
    number: int
    """Number of pairs."""
    seed: int = 0
    """The same seed gives the same pairs on every machine."""
    shift: int = 4
    """Maximum shift of each image in pixels, in each direction; the canvas is larger by twice as much."""
    chosen: Int64[Tensor, " k"] | None = None
    """The pairs of a subset; None for all."""
    channels: ClassVar[int] = 1
    files: ClassVar[None] = None
    group: ClassVar[None] = None
    metadata: ClassVar[dict[str, Tensor]] = {}

    def __post_init__(self) -> None:
        check_argument(self.source.channels == 1, "be 1 for pairs", channels=self.source.channels)
        present = [name for name, count in self.source.counts().items() if count]
        check_argument(len(present) >= 3, "have images of at least 3 classes for pairs", source=present)
        check_minimum(1, number=self.number)
        check_minimum(0, seed=self.seed, shift=self.shift)

    def __len__(self) -> int:
        return self.number if self.chosen is None else len(self.chosen)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, those of the source."""
        return self.source.classes

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of the canvas."""
        height, width = self.source.image_size
        return height + 2 * self.shift, width + 2 * self.shift

    @property
    def labels(self) -> Int64[Tensor, "n 2"]:
        """[n 2], the classes of both images of each pair."""
        return self.source.labels[self.draw(torch.arange(len(self)))[0]]

    def counts(self) -> dict[str, int]:
        """Count the source's images of each class."""
        return self.source.counts()

    def subset(self, indices: Integer[Tensor, " k"]) -> "PairSet":
        """Return the pairs at `indices`, in that order."""
        return replace(self, chosen=indices if self.chosen is None else self.chosen[indices])

    def take(self, indices: Integer[Tensor, " b"]) -> Batch:
        """Return pairs: overlaid [b 1 h w], labels [b 2], and both images alone on the canvas [b 2 1 h w]."""
        members, corners = self.draw(indices)
        images = self.source.images[members.flatten()]
        parts = place(images, corners.flatten(0, 1), self.image_size).unflatten(0, (len(indices), 2))
        first, second = parts.unbind(1)
        overlaid = first + torch.minimum(second, 255 - first)  # min(first + second, 255) without leaving 8 bits
        return Batch(overlaid, self.source.labels[members], parts)

    def draw(self, indices: Integer[Tensor, " b"]) -> tuple[Int64[Tensor, "b 2"], Int64[Tensor, "b 2 2"]]:
        """Return the images that the pairs at `indices` are made of, and their positions on the canvas.

        Returns:
            [b 2], indices into the source; [b 2 2], row and column of each image's top left pixel.
        """
        numbers = (indices if self.chosen is None else self.chosen[indices]).numpy()
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.number:
            raise IndexError(f"indices: must be from 0 to {self.number - 1}, got {numbers.min()} to {numbers.max()}")
        by_class, starts, sizes = self._classes
        draws = random_numbers(self.seed, numbers, _DRAWS)
        first = self._order[numbers % len(self.source)]
        label = self.source.labels.numpy()[first]
        # The rank of the second image among those of all other classes, in the order of the classes.
        rank = (draws[0] % (len(by_class) - sizes[label]).astype(np.uint64)).astype(np.int64)
        second = by_class[rank + np.where(rank >= starts[label], sizes[label], 0)]
        corners = (draws[1:] % np.uint64(2 * self.shift + 1)).astype(np.int64)
        return torch.from_numpy(np.stack([first, second], 1)), torch.from_numpy(corners.T.reshape(-1, 2, 2).copy())

    @cached_property
    def _order(self) -> Int64[np.ndarray, " images"]:
        """The order in which the source's images come first in a pair, mixed so that few pairs have every class."""
        return np.random.default_rng(self.seed).permutation(len(self.source))

    @cached_property
    def _classes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The source's images in the order of their classes; where each class begins; how many it has."""
        sizes = np.bincount(self.source.labels.numpy(), minlength=len(self.classes))
        return np.argsort(self.source.labels.numpy(), kind="stable"), np.cumsum(sizes) - sizes, sizes


def place(
    images: UInt8[Tensor, "b c h w"], corners: Int64[Tensor, "b 2"], size: tuple[int, int]
) -> UInt8[Tensor, "b c height width"]:
    """Place each image on a black canvas of `size`, with its top left pixel at its row and column in `corners`."""
    batch, channels, height, width = images.shape
    canvas = images.new_zeros(batch, channels, *size)
    # Every possible place as a view [b c tops lefts h w], of which each image fills one.
    places = canvas.unfold(2, height, 1).unfold(3, width, 1)
    places[torch.arange(batch), :, corners[:, 0], corners[:, 1]] = images
    return canvas


def random_numbers(seed: int, positions: Int64[np.ndarray, " n"], draws: int) -> UInt64[np.ndarray, "draws n"]:
    """Return `draws` random numbers of 64 bits for each position, by SplitMix64 (Steele, Lea, Flood 2014).

    Unlike NumPy's and torch's generators, it gives the numbers at any position at once.
    """
    key = _mix(np.array([seed + 1], np.uint64) * _GOLDEN)
    step = positions.astype(np.uint64) * np.uint64(draws) + np.arange(1, draws + 1, dtype=np.uint64)[:, None]
    return _mix(key + step * _GOLDEN)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))

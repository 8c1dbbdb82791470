"""Test images, and what a network makes of them: those of a page are chosen among these."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from capsella.data.batching import evenly
from capsella.data.splits import LabelledImages
from capsella.losses import top_classes
from capsella.models import CapsuleClassifier
from capsella.models.inference import inference

BATCH = 64


@dataclass(frozen=True)
class Pool:
    """Images, and what the network makes of them.

    images: [n c h w], 0..255. labels: [n k], the classes of each; k is 1, 2 for pairs, 0 where nobody knows.
    numbers: [n] places in the whole test set, of `of` images; -1 for an image that is not of it. poses: [n classes d].
    """

    images: UInt8[Tensor, "n c h w"]
    labels: Int[Tensor, "n k"]
    numbers: tuple[int, ...]
    of: int
    activations: Float[Tensor, "n classes"]
    poses: Float[Tensor, "n classes d"]

    def take(self, places: list[int]) -> "Pool":
        """Those at some places."""
        index = torch.tensor(places)
        numbers = tuple(self.numbers[place] for place in places)
        return Pool(
            self.images[index], self.labels[index], numbers, self.of, self.activations[index], self.poses[index]
        )

    @property
    def taken(self) -> Int[Tensor, "n k"]:
        """The classes that the network takes each image for, the most active first: one, or two of a pair."""
        return top_classes(self.activations, max(1, self.labels.shape[1]))

    @property
    def right(self) -> Bool[Tensor, " n"]:
        """Whether these are the image's."""
        return (self.taken.sort(1).values == self.labels.sort(1).values).all(1)

    def is_like(self, other: "Pool") -> bool:
        """Whether both are of the same images, whatever the networks make of them."""
        return (
            self.numbers == other.numbers
            and torch.equal(self.images, other.images)
            and torch.equal(self.labels, other.labels)
        )


def look(
    model: CapsuleClassifier,
    images: UInt8[Tensor, "n c h w"],
    labels: Int[Tensor, " n *k"],
    numbers: tuple[int, ...],
    of: int,
) -> Pool:
    """Let the network see images."""
    return Pool(images, labels.reshape(len(images), -1), numbers, of, *seen(model, images.float() / 255))


def make_pool(model: CapsuleClassifier, test: LabelledImages, most: int = 500) -> Pool:
    """At most `most` test images, evenly through the set, seen by the network."""
    numbers = evenly(len(test), most)
    batch = test.take(numbers)  # a set of pairs can hold ten million: only these are drawn
    return look(model, batch.images, batch.labels, tuple(numbers.tolist()), len(test))


def seen(model: CapsuleClassifier, images: Float[Tensor, "n c h w"]) -> tuple[Tensor, Tensor]:
    """Activations [n classes] and poses [n classes d] of images in [0, 1]."""
    activations, poses = [], []
    with inference(model) as device:
        for part in images.split(BATCH):
            capsules = model.encode(part.to(device))
            activations.append(capsules.activations[:, 0, 0].float().cpu())
            poses.append(capsules.poses[:, 0, 0].float().cpu())
    return torch.cat(activations).clone(), torch.cat(poses).clone()

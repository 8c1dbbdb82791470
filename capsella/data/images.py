"""`ImageSet`: images with labels, as returned by every source and used by training and evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Int64, Integer, Shaped, UInt8
from torch import Tensor

from capsella.errors import check_argument, unknown_name


class Batch(NamedTuple):
    """Some images of a set: in 8 bits from `take`, in [0, 1] from `batches`.

    images: [b c h w]. labels: [b], or [b 2] for pairs.
    parts: [b 2 c h w], the two images that a pair overlays, each alone; None where nothing is overlaid.
    """

    images: Shaped[Tensor, "b c h w"]
    labels: Int64[Tensor, " b *k"]
    parts: Shaped[Tensor, "b 2 c h w"] | None = None


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images in memory, 8 bits per channel.

    Raises:
        ValueError: images and labels disagree in number, a type is wrong, or a label lies outside the classes.
    """

    images: UInt8[Tensor, "n c h w"]
    """[n c h w], 0..255."""
    labels: Int64[Tensor, " n"]
    """[n], the index of each image's class in `classes`."""
    classes: tuple[str, ...]
    """Names of the classes; a test set may have no image of a rare one."""
    files: tuple[str, ...] | None = None
    """The file of each image, or None."""
    metadata: dict[str, Shaped[Tensor, "n ..."]] = field(default_factory=dict)
    """More integers for each image. `group`: images of one group (a patient, a photograph) stay in one split. `copies`:
    groups that also join copies of an image. `toy`: images of one toy may be in two splits, but are not independent.
    `domain`: where an image comes from. `content`: changes if the file is replaced. `fingerprint`: [n 5], by which
    copies are found."""

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 2, 3):
            got = f"{images.dtype} of shape {tuple(images.shape)}"
            raise ValueError(f"images: must be uint8 of shape [n c h w] with 1, 2 or 3 channels, got {got}")
        if labels.dtype != torch.int64 or labels.shape != (len(images),):
            got = f"{labels.dtype} of shape {tuple(labels.shape)}"
            raise ValueError(f"labels: must be int64, one for each of the {len(images)} images, got {got}")
        check_argument(len(set(self.classes)) == len(self.classes), "be different names", classes=self.classes)
        outside = (labels < 0) | (labels >= len(self.classes))
        if outside.any():
            first, most = int(outside.nonzero()[0]), len(self.classes) - 1
            raise ValueError(f"labels: must be from 0 to {most}, got {int(labels[first])} for image {first}")
        if self.files is not None and len(self.files) != len(images):
            raise ValueError(f"files: must name every image, got {len(self.files)} for {len(images)} images")
        for name, values in self.metadata.items():
            if len(values) != len(images):
                raise ValueError(
                    f"metadata {name!r}: must have a row for each image, got {len(values)} for {len(images)}"
                )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def group(self) -> Int64[Tensor, " n"] | None:
        """The index of each image's patient, photograph or toy; None if images are independent."""
        return self.metadata.get("group", self.metadata.get("toy"))

    @property
    def channels(self) -> int:
        """Number of channels: 1 for grey, 2 for a grey stereo pair, 3 for colour."""
        return self.images.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.images.shape[2], self.images.shape[3]

    def counts(self) -> dict[str, int]:
        """Count the images of each class, zero included."""
        counts = torch.bincount(self.labels, minlength=len(self.classes)).tolist()
        return dict(zip(self.classes, counts, strict=True))

    def take(self, indices: Integer[Tensor, " b"]) -> Batch:
        """Return the images at `indices` and their labels."""
        return Batch(self.images[indices], self.labels[indices])

    def subset(self, indices: Integer[Tensor, " k"] | Sequence[int]) -> "ImageSet":
        """Return the images at `indices`, in that order, with their labels, files and metadata.

        Raises:
            IndexError: an index lies outside the set.
            ValueError: `indices` is a mask.
        """
        indices = torch.as_tensor(indices)
        if indices.dtype == torch.bool:
            raise ValueError("indices: must be positions, got a mask; use mask.nonzero().flatten()")
        indices = indices.long()
        first = int(indices[0]) if len(indices) else 0
        is_slice = torch.equal(indices, torch.arange(first, first + len(indices)))
        return ImageSet(
            images=self.images[first : first + len(indices)] if is_slice else self.images[indices],
            labels=self.labels[indices],
            classes=self.classes,
            files=None if self.files is None else tuple(self.files[i] for i in indices.tolist()),
            metadata={name: values[indices] for name, values in self.metadata.items()},
        )

    def of_classes(self, names: Sequence[str]) -> "ImageSet":
        """Return the images of some classes; their labels become indices into `names`.

        Raises:
            ValueError: a name is none of the classes.
        """
        for name in set(names) - set(self.classes):
            raise unknown_name("names", name, self.classes)
        number = torch.full((len(self.classes),), -1)
        number[[self.classes.index(name) for name in names]] = torch.arange(len(names))
        kept = self.subset((number[self.labels] >= 0).nonzero().flatten())
        return replace(kept, labels=number[kept.labels], classes=tuple(names))


def join(sets: Sequence[ImageSet]) -> ImageSet:
    """Concatenate sets of the same classes, channels and size.

    File names, and each kind of metadata, are kept if every set has them.

    Raises:
        ValueError: no sets, or sets of other classes, channels or size.
    """
    check_argument(len(sets) > 0, "hold at least one set", sets=sets)
    for what in ("classes", "channels", "image_size"):
        different = {getattr(images, what) for images in sets}
        check_argument(len(different) == 1, f"have the same {what}", sets=sorted(different))
    if len(sets) == 1:
        return sets[0]
    common = [name for name in sets[0].metadata if all(name in images.metadata for images in sets)]
    return ImageSet(
        images=torch.cat([images.images for images in sets]),
        labels=torch.cat([images.labels for images in sets]),
        classes=sets[0].classes,
        files=None
        if any(images.files is None for images in sets)
        else tuple(f for images in sets for f in images.files or ()),
        metadata={name: torch.cat([images.metadata[name] for images in sets]) for name in common},
    )

"""Shared by public data sets: their description in `capsella list data`, resizing, and splits by viewpoint."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from capsella.data.decoding import resize_array
from capsella.data.download import data_root
from capsella.data.images import ImageSet
from capsella.data.options import NamedData
from capsella.data.splits import SourceSplits
from capsella.errors import CapsellaError, check_argument, errors_of

ELEVATIONS = tuple(range(30, 75, 5))  # degrees above the horizon, as in smallNORB
AZIMUTHS = tuple(range(0, 360, 20))  # degrees around the toy, as in smallNORB
FAMILIAR = {"azimuth": (300, 320, 340, 0, 20, 40), "elevation": (30, 35, 40)}  # a third; the others are novel


@dataclass(frozen=True)
class Source:
    """A public data set.

    read: its reader. images: numbers of images in train / validation / test; – for splits that are held out. size:
    height × width × channels as stored. files: the files it reads, relative to the data root. get: how to get them.
    largest: pixels per side of the largest version of a set that is stored at several sizes.
    """

    name: str
    read: Callable[[NamedData], SourceSplits]
    images: str
    size: str
    classes: int
    files: tuple[str, ...]
    citation: str
    get: str = "downloaded on first use"
    largest: int | None = None

    @property
    def found(self) -> str:
        """The place of the set's files on this machine, or how to get them."""
        present = [data_root() / file for file in self.files if (data_root() / file).exists()]
        return f"in {present[0].parent} ({len(present)} of {len(self.files)} files)" if present else self.get


def resized(images: ImageSet, options: NamedData) -> ImageSet:
    """Return the images with the size and channels of `options`."""
    pixels = resize_array(images.images.permute(0, 2, 3, 1).numpy(), options.preprocessing)
    return replace(images, images=pixels)


def is_familiar(images: ImageSet, by: Literal["azimuth", "elevation"]) -> Bool[Tensor, " n"]:
    """Return a mask of the images from familiar viewpoints, see `FAMILIAR` (Hinton et al. 2018, §5.1).

    Raises:
        CapsellaError: the images have no such metadata.
    """
    if by not in images.metadata:
        known = ", ".join(sorted(images.metadata)) or "nothing"
        raise CapsellaError(f"viewpoints: the images must have their {by} as metadata; they have {known}")
    return torch.isin(images.metadata[by], torch.tensor(FAMILIAR[by]))


def arrange_viewpoints(parts: SourceSplits, options: NamedData) -> SourceSplits:
    """Apply `viewpoints`, `test_viewpoints` and `group` to a source with train and test images.

    With viewpoints by azimuth or elevation, training is on familiar ones, and the test on novel ones, or on familiar
    ones for comparison. With `group="instance"`, images of one toy stay in one split. Without, the metadata `toy`
    numbers the toys, for confidence intervals.

    Raises:
        ValueError: `group` is something else.
        CapsellaError: the images have no viewpoints.
    """
    sets = parts.named()
    if options.viewpoints != "all":
        with errors_of(parts.name):
            masks = {split: is_familiar(images, options.viewpoints) for split, images in sets.items()}
        if options.test_viewpoints == "novel":
            masks["test"] = ~masks["test"]
        sets = {split: images.subset(masks[split].nonzero().flatten()) for split, images in sets.items()}
    check_argument(options.group in (None, "instance"), f"be 'instance' for {parts.name}", group=options.group)
    kind = "toy" if options.group is None else "group"
    numbered = {}
    for split, images in sets.items():  # instance numbers restart in each category
        toys = images.metadata["instance"] * len(images.classes) + images.labels
        numbered[split] = replace(images, metadata={**images.metadata, kind: toys})
    return replace(parts, **numbered)  # type: ignore[arg-type]

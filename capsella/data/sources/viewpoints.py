"""Splits by viewpoint and by instance, for sets with the viewpoint of each image (Hinton et al. 2018, §5.1)."""

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from capsella.data.images import ImageSet
from capsella.data.options import NamedData
from capsella.data.splits import SourceSplits
from capsella.errors import CapsellaError, check_argument, errors_of

ELEVATIONS = tuple(range(30, 75, 5))  # degrees above the horizon, as in smallNORB
AZIMUTHS = tuple(range(0, 360, 20))  # degrees around the toy, as in smallNORB
FAMILIAR = {"azimuth": (300, 320, 340, 0, 20, 40), "elevation": (30, 35, 40)}  # a third; the others are novel


def is_familiar(images: ImageSet, by: Literal["azimuth", "elevation"]) -> Bool[Tensor, " n"]:
    """Return a mask of the images from familiar viewpoints, see `FAMILIAR`.

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
    train, test = parts.train, parts.test
    if options.viewpoints != "all":
        with errors_of(parts.name):
            train = _chosen(train, is_familiar(train, options.viewpoints))
            if test is not None:
                familiar = is_familiar(test, options.viewpoints)
                test = _chosen(test, familiar if options.test_viewpoints == "familiar" else ~familiar)
    if options.group is not None:
        check_argument(options.group == "instance", f"be 'instance' for {parts.name}", group=options.group)
    kind = "toy" if options.group is None else "group"
    return replace(parts, train=_by_toy(train, kind), test=None if test is None else _by_toy(test, kind))


def _chosen(images: ImageSet, mask: Bool[Tensor, " n"]) -> ImageSet:
    return images.subset(mask.nonzero().flatten())


def _by_toy(images: ImageSet, kind: str) -> ImageSet:
    # Instance numbers restart in each category.
    toys = images.metadata["instance"] * len(images.classes) + images.labels
    return replace(images, metadata={**images.metadata, kind: toys})

"""Matrix capsules behind a deeper, batch-normalised stem; ours."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from capsella.errors import check_argument
from capsella.layers import (
    CapsuleConv2d,
    DenseCapsules,
    MatrixPrimaryCapsules,
    PrepareImages,
    coordinate_addition,
    receptive_field_centres,
)
from capsella.layers.norms import ParentNorm
from capsella.models.base import register_model
from capsella.models.classifiers import CapsuleClassifier
from capsella.models.matrix_capsnet import SMALLNORB
from capsella.models.shapes import grid_after
from capsella.routing import EMRouting, Routing

POSE = 16
STRIDES = (2, 1, 2)
CAPSULES = [(1, 1), (3, 2), (3, 1)]


@register_model
def stem_matrix_capsnet(
    *, image_size: tuple[int, int] = (48, 48), channels: int = 1, classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = EMRouting(iterations=2), norm: ParentNorm | None = "batch",
    class_norm: ParentNorm | None = "batch", width: int = 64, types: int = 16, crop: int | None = None,
    standardise: bool = True, brightness: float = 0.0, contrast: float = 0.0,
) -> CapsuleClassifier:  # fmt: skip
    """Three 3×3 convolutions with batch normalisation and ReLU, then the capsules of Hinton et al. 2018.

    The capsules are normalised by batch, as in Ribeiro et al. 2020. 121,578 parameters at two channels, 5 classes.

    Args:
        image_size: (height, width), large enough for all kernels.
        channels: of the image; 2 for both cameras of smallNORB.
        classes: their names.
        routing: of all three routed layers.
        norm: "batch" normalises the primary capsules and those of the convolutions by type; None for a routing
            without log-odds.
        class_norm: "batch" normalises the class capsules too.
        width: channels of the last two convolutions; the first, which halves the image as the third does, has half.
        types: of capsules in each routed convolution; there are half as many types of primary capsules.
        crop: cut a square of this many pixels, at random in training and at the centre otherwise.
        standardise: bring each image to zero mean and unit variance first.
        brightness, contrast: as for `hinton2018_matrix_capsnet`.

    Raises:
        ValueError: an image too small for the kernels; a width or types that are odd or below 2.
    """
    check_argument(width > 0 and width % 2 == 0, "be even and at least 2", width=width)
    check_argument(types > 0 and types % 2 == 0, "be even and at least 2", types=types)
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    return CapsuleClassifier(
        backbone=nn.Sequential(prepare, *_stem((channels, width // 2, width, width))),
        primary=MatrixPrimaryCapsules(width, types // 2, POSE, norm=norm),
        capsule_layers=_capsule_layers(prepare.size, types, len(classes), routing, norm, class_norm),
        decoder=None,
        image_size=image_size,
        channels=channels,
        classes=classes,
    )


def _capsule_layers(
    size: tuple[int, int], types: int, classes: int, routing: Routing, norm: ParentNorm | None,
    class_norm: ParentNorm | None,
) -> nn.Sequential:  # fmt: skip
    """Two convolutions of capsules and the class capsules, for images of `size`."""
    convolutions = [*((3, stride) for stride in STRIDES), *CAPSULES]
    grid = grid_after(size, convolutions)
    offset = coordinate_addition(receptive_field_centres(size, convolutions), POSE)
    return nn.Sequential(
        CapsuleConv2d(types // 2, POSE, types, POSE, 3, 2, pose="matrix", routing=routing, norm=norm),
        CapsuleConv2d(types, POSE, types, POSE, 3, 1, pose="matrix", routing=routing, norm=norm),
        DenseCapsules(
            grid, types, POSE, classes, POSE,
            tied=True, pose="matrix", vote_offset=offset, routing=routing, norm=class_norm,
        ),
    )  # fmt: skip


def _stem(widths: Sequence[int]) -> list[nn.Module]:
    """Convolutions from each width to the next."""
    layers: list[nn.Module] = []
    for (before, after), stride in zip(pairwise(widths), STRIDES, strict=True):
        layers += [nn.Conv2d(before, after, 3, stride, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return layers

"""Matrix capsules behind a deeper, batch-normalised stem; ours."""

from collections.abc import Sequence

from torch import nn

from capsella.errors import require
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
CAPSULES = [(1, 1), (3, 2), (3, 1)]


@register_model
def stem_matrix_capsnet(
    *, image_size: tuple[int, int] = (48, 48), channels: int = 1, classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = EMRouting(iterations=2), norm: ParentNorm | None = "batch",
    stem: tuple[int, ...] = (32, 64, 64), strides: tuple[int, ...] = (2, 1, 2),
    types: tuple[int, int, int] = (8, 16, 16), crop: int | None = None, standardise: bool = True,
    brightness: float = 0.0, contrast: float = 0.0,
) -> CapsuleClassifier:  # fmt: skip
    """3×3 convolutions, each with batch normalisation and ReLU, then the capsules of Hinton et al. 2018.

    The capsules are normalised by batch, as in Ribeiro et al. 2020. 121,578 parameters at two channels, 5 classes.

    Args:
        image_size: (height, width), large enough for all kernels.
        channels: of the image; 2 for both cameras of smallNORB.
        classes: their names.
        routing: of all three routed layers.
        norm: "batch" normalises the capsules of every layer by type; None for a routing without log-odds.
        stem: output channels of each convolution.
        strides: their strides, as many.
        types: of primary capsules, and of the two convolutions of capsules.
        crop: cut a square of this many pixels, at random in training and at the centre otherwise.
        standardise: bring each image to zero mean and unit variance first.
        brightness, contrast: changes in training, as of `hinton2018_matrix_capsnet`.

    Raises:
        ValueError: an image too small for the kernels, or stem and strides of different lengths.
    """
    require(len(stem) == len(strides) > 0, f"be as many as the {len(strides)} strides, at least one", stem=stem)
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    convolutions = [*((3, stride) for stride in strides), *CAPSULES]
    grid = grid_after(prepare.size, convolutions)
    offset = coordinate_addition(receptive_field_centres(prepare.size, convolutions), POSE)
    return CapsuleClassifier(
        backbone=nn.Sequential(prepare, *_stem(channels, stem, strides)),
        primary=MatrixPrimaryCapsules(stem[-1], types[0], POSE, norm=norm),
        capsule_layers=nn.Sequential(
            CapsuleConv2d(types[0], POSE, types[1], POSE, 3, 2, pose="matrix", routing=routing, norm=norm),
            CapsuleConv2d(types[1], POSE, types[2], POSE, 3, 1, pose="matrix", routing=routing, norm=norm),
            DenseCapsules(
                grid, types[2], POSE, len(classes), POSE,
                tied=True, pose="matrix", vote_offset=offset, routing=routing, norm=norm,
            ),
        ),
        decoder=None,
        image_size=image_size,
        channels=channels,
        classes=classes,
    )  # fmt: skip


def _stem(channels: int, widths: Sequence[int], strides: Sequence[int]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width, stride in zip(widths, strides, strict=True):
        layers += [nn.Conv2d(channels, width, 3, stride, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return layers

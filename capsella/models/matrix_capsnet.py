"""The networks of Hinton, Sabour, Frosst 2018, "Matrix Capsules with EM Routing" (OpenReview HJWLfGWRb)."""

from torch import nn

from capsella.layers import (
    CapsuleConv2d,
    DenseCapsules,
    DenseDecoder,
    MatrixPrimaryCapsules,
    PrepareImages,
    coordinate_addition,
    receptive_field_centres,
)
from capsella.layers.convolution import PoseKind
from capsella.models.base import register_model
from capsella.models.classifiers import CapsuleClassifier
from capsella.models.shapes import grid_after
from capsella.routing import EMRouting, Routing

SMALLNORB = ("animal", "human", "airplane", "truck", "car")


@register_model
def hinton2018_matrix_capsnet(
    *, image_size: tuple[int, int] = (32, 32), channels: int = 1, classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = EMRouting(), pose: PoseKind = "matrix", pose_elements: int = 16,
    coordinate_addition: bool = True, crop: int | None = None, standardise: bool = True,
    brightness: float = 0.0, contrast: float = 0.0, reconstruction: bool = False, maps: int | None = None,
) -> CapsuleClassifier:  # fmt: skip
    """The network of Figure 1, A = B = C = D = 32: 316,394 parameters at one channel, 5 classes (paper: 310 K).

    Args:
        image_size: (height, width), at least 17×17 (after the crop); the paper's is 32×32, cut from 48×48.
        channels: of the image; 2 for both cameras of smallNORB.
        classes: their names.
        routing: of all three routed layers.
        pose: "matrix", or "vector" for Table 1's 16-D vectors with 16×16 weights.
        pose_elements: 16 for 4×4 matrices, 9 for 3×3 (Forslöv 2018 §7.5, for scenes in the plane).
        coordinate_addition: tell the class capsules' votes where their children stand.
        crop: cut a square of this many pixels, at random in training and at the centre otherwise; the paper's is 32.
        standardise: bring each image to zero mean and unit variance first, as the paper does.
        brightness: in training, add to each image a number of up to this, either way, in its standard deviations.
        contrast: in training, scale each image about its mean by a factor of 1 ± up to this.
        reconstruction: with the decoder of Sabour et al. 2017 on the class poses; the paper has none.
        maps: of the first convolution, None for A; the paper's network for CIFAR-10 has 256.
    """
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    types = (maps or 32, 32, 32, 32)
    return _matrix_capsnet(
        types, prepare, channels, classes, routing, pose, pose_elements, coordinate_addition, reconstruction
    )


@register_model
def hinton2018_matrix_capsnet_small(
    *, image_size: tuple[int, int] = (32, 32), channels: int = 1, classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = EMRouting(), pose: PoseKind = "matrix", pose_elements: int = 16,
    coordinate_addition: bool = True, crop: int | None = None, standardise: bool = True,
    brightness: float = 0.0, contrast: float = 0.0, reconstruction: bool = False, maps: int | None = None,
) -> CapsuleClassifier:  # fmt: skip
    """The paper's smaller network, A = 64, B = 8, C = D = 16: 67,154 parameters (68 K in the paper), 2.2 % there.

    Args as for `hinton2018_matrix_capsnet`.
    """
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    types = (maps or 64, 8, 16, 16)
    return _matrix_capsnet(
        types, prepare, channels, classes, routing, pose, pose_elements, coordinate_addition, reconstruction
    )


def _matrix_capsnet(
    types: tuple[int, int, int, int],
    prepare: PrepareImages,
    channels: int,
    classes: tuple[str, ...],
    routing: Routing,
    pose: PoseKind,
    pose_elements: int,
    with_coordinates: bool,
    reconstruction: bool,
) -> CapsuleClassifier:
    A, B, C, D = types
    p = pose_elements
    convolutions = [(5, 2), (1, 1), (3, 2), (3, 1)]
    grid = grid_after(prepare.size, convolutions)
    centres = receptive_field_centres(prepare.size, convolutions)
    offset = coordinate_addition(centres, p, pose) if with_coordinates else None
    return CapsuleClassifier(
        backbone=nn.Sequential(prepare, nn.Conv2d(channels, A, 5, 2), nn.ReLU()),
        primary=MatrixPrimaryCapsules(A, B, p),
        capsule_layers=nn.Sequential(
            CapsuleConv2d(B, p, C, p, 3, 2, pose=pose, routing=routing),
            CapsuleConv2d(C, p, D, p, 3, 1, pose=pose, routing=routing),
            DenseCapsules(grid, D, p, len(classes), p, tied=True, pose=pose, vote_offset=offset, routing=routing),
        ),
        decoder=DenseDecoder(len(classes), p, (channels, *prepare.drawn_size())) if reconstruction else None,
        image_size=prepare.image_size,
        channels=channels,
        classes=classes,
    )

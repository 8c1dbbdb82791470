"""The networks of Hinton, Sabour, Frosst 2018, "Matrix Capsules with EM Routing" (OpenReview HJWLfGWRb)."""

from torch import nn

from capsella.layers import (
    CapsuleConv2d,
    CropImages,
    DenseCapsules,
    DenseDecoder,
    MatrixPrimaryCapsules,
    StandardiseImages,
    coordinate_addition,
    receptive_field_centres,
)
from capsella.layers.convolution import PoseKind
from capsella.models.base import CapsuleClassifier
from capsella.models.registry import register_model
from capsella.models.shapes import grid_after
from capsella.routing import EMRouting, Routing

SMALLNORB = ("animal", "human", "airplane", "truck", "car")


@register_model
def hinton2018_matrix_capsnet(
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 1,
    classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = EMRouting(),
    pose: PoseKind = "matrix",
    pose_elements: int = 16,
    coordinate_addition: bool = True,
    crop: int | None = None,
    standardise: bool = True,
    reconstruction: bool = False,
) -> CapsuleClassifier:
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
        reconstruction: with the decoder of Sabour et al. 2017 on the class poses; the paper has none.
    """
    return _matrix_capsnet(
        (32, 32, 32, 32),
        image_size=image_size,
        channels=channels,
        classes=classes,
        routing=routing,
        pose=pose,
        pose_elements=pose_elements,
        with_coordinates=coordinate_addition,
        crop=crop,
        standardise=standardise,
        reconstruction=reconstruction,
    )


@register_model
def hinton2018_matrix_capsnet_small(
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 1,
    classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = EMRouting(),
    pose: PoseKind = "matrix",
    pose_elements: int = 16,
    coordinate_addition: bool = True,
    crop: int | None = None,
    standardise: bool = True,
    reconstruction: bool = False,
) -> CapsuleClassifier:
    """The paper's smaller network, A = 64, B = 8, C = D = 16: 67,154 parameters (68 K in the paper), 2.2 % there.

    Args as for `hinton2018_matrix_capsnet`.
    """
    return _matrix_capsnet(
        (64, 8, 16, 16),
        image_size=image_size,
        channels=channels,
        classes=classes,
        routing=routing,
        pose=pose,
        pose_elements=pose_elements,
        with_coordinates=coordinate_addition,
        crop=crop,
        standardise=standardise,
        reconstruction=reconstruction,
    )


def _matrix_capsnet(
    types: tuple[int, int, int, int],
    *,
    image_size: tuple[int, int],
    channels: int,
    classes: tuple[str, ...],
    routing: Routing,
    pose: PoseKind,
    pose_elements: int,
    with_coordinates: bool,
    crop: int | None,
    standardise: bool,
    reconstruction: bool,
) -> CapsuleClassifier:
    A, B, C, D = types
    p = pose_elements
    seen = image_size if crop is None else (crop, crop)
    convolutions = [(5, 2), (1, 1), (3, 2), (3, 1)]
    grid = grid_after(seen, convolutions)
    offset = coordinate_addition(receptive_field_centres(seen, convolutions), p, pose) if with_coordinates else None
    return CapsuleClassifier(
        backbone=nn.Sequential(
            CropImages(image_size, crop) if crop is not None else nn.Identity(),
            StandardiseImages() if standardise else nn.Identity(),
            nn.Conv2d(channels, A, 5, 2),
            nn.ReLU(),
        ),
        primary=MatrixPrimaryCapsules(A, B, p),
        capsule_layers=nn.Sequential(
            CapsuleConv2d(B, p, C, p, 3, 2, pose=pose, routing=routing),
            CapsuleConv2d(C, p, D, p, 3, 1, pose=pose, routing=routing),
            DenseCapsules(grid, D, p, len(classes), p, tied=True, pose=pose, vote_offset=offset, routing=routing),
        ),
        decoder=DenseDecoder(len(classes), p, (channels, *seen)) if reconstruction else None,
        image_size=image_size,
        channels=channels,
        classes=classes,
    )

"""The network of Zhao, Cheng 2021, "Capsule networks with non-iterative cluster routing" (Neural Networks 143)."""

from torch import nn

from capsella.errors import check_minimum
from capsella.layers import ClusterCapsules, PixelCapsules, PoseScores, PrepareImages
from capsella.models.base import grid_after, register_model
from capsella.models.classifiers import CapsuleClassifier
from capsella.models.hinton2018 import SMALLNORB

STRIDES = (1, 2, 1, 2, 1)  # of the five capsule layers; the last layer is the class capsules


@register_model
def zhao2021_cluster_capsnet(
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 2,
    classes: tuple[str, ...] = SMALLNORB,
    types: int = 4,
    votes: int = 8,
    pose: int = 24,
    crop: int | None = None,
    standardise: bool = True,
    brightness: float = 0.0,
    contrast: float = 0.0,
) -> CapsuleClassifier:
    """Five layers of cluster routing, the first on the image itself: 2,972,929 parameters at 32×32×2, 5 classes.

    Args:
        image_size: (height, width), at least 1×1; the authors' is 32×32.
        channels: channels of the images; 2 for both cameras of smallNORB.
        types: capsule types of every layer except the class capsules (the authors' C).
        votes: votes of a child type for each parent (the authors' K).
        pose: elements of a pose (the authors' D).
        crop, standardise, brightness, contrast: as for `hinton2018_matrix_capsnet`.

    Raises:
        ArgumentError: `types` or `pose` below 1, `votes` below 2, or an image without pixels.
    """
    check_minimum(1, types=types, pose=pose)
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    layers, read = _layers(prepare.size, channels, types, votes, pose, len(classes))
    return CapsuleClassifier(
        backbone=prepare,
        primary=nn.Sequential(PixelCapsules(types), layers[0]),
        capsule_layers=nn.Sequential(*layers[1:]),
        scores=PoseScores(read),
    )


def _layers(
    grid: tuple[int, int], channels: int, types: int, votes: int, pose: int, classes: int
) -> tuple[list[ClusterCapsules], int]:
    """Return the five layers for pixels on `grid`, and the number of elements of a class capsule's pose."""
    layers, below = [], channels
    for number, stride in enumerate(STRIDES):
        grid, last = grid_after(grid, [(1, stride)]), number == len(STRIDES) - 1
        parents = classes if last else types
        layers.append(ClusterCapsules(types, below, parents, pose, votes, grid, stride=stride, whole=last))
        below = pose
    return layers, pose * grid[0] * grid[1]

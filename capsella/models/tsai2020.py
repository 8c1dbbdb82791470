"""The network of Tsai, Srivastava, Goh, Salakhutdinov 2020, "Capsules with Inverted Dot-Product Attention Routing"."""

from torch import nn

from capsella.errors import check_minimum
from capsella.layers import (
    AttentionCapsules,
    AttentionStack,
    CapsuleConv2d,
    DenseCapsules,
    LayerNormPrimaryCapsules,
    LogActivations,
    PoseScores,
)
from capsella.models.base import grid_after, register_model
from capsella.models.classifiers import CapsuleClassifier
from capsella.models.he2016 import ResidualBlock
from capsella.routing import InvertedAttentionRouting, Routing

BLOCKS = (64, 64, 64, 128, 128, 128, 128)  # channels of each residual block; the first of 128 halves the maps
POSE = 16
GEOMETRY = (
    (1, 2),
    (3, 2),
    (3, 1),
)  # (kernel, stride): of all residual blocks together, then of each capsule convolution


@register_model
def tsai2020_resnet(
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 3,
    classes: tuple[str, ...] = tuple("0123456789"),
    routing: Routing = InvertedAttentionRouting(),
    concurrent: bool = True,
    types: int = 32,
) -> CapsuleClassifier:
    """ResNet with capsules for CIFAR-10: 1,828,817 parameters at 32×32×3 and 10 classes.

    Args:
        image_size: (height, width), at least 13×13; the paper's is 32×32.
        routing: routing of all three capsule layers; only inverted attention can route them concurrently.
        concurrent: update all layers in every round, as in the paper, instead of routing one layer after the other.
        types: capsule types of every layer except the class capsules.

    Raises:
        ArgumentError: `types` below 1, or an image too small for the kernels.
    """
    check_minimum(1, types=types)
    grid = grid_after(image_size, GEOMETRY)
    return CapsuleClassifier(
        backbone=_backbone(channels),
        primary=LayerNormPrimaryCapsules(BLOCKS[-1], types, POSE),
        capsule_layers=_capsules(grid, types, len(classes), routing, concurrent),
        scores=LogActivations() if routing.has_activations else PoseScores(POSE),
    )


def _backbone(channels: int) -> nn.Sequential:
    width = BLOCKS[0]
    body: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for out in BLOCKS:
        body.append(ResidualBlock(width, out, 1 if out == width else 2))
        width = out
    return nn.Sequential(*body)


def _capsules(grid: tuple[int, int], types: int, classes: int, routing: Routing, concurrent: bool) -> nn.Sequential:
    if isinstance(routing, InvertedAttentionRouting):
        layers = [AttentionCapsules(types, POSE, types, POSE, *window, routing=routing) for window in GEOMETRY[1:]]
        layers.append(AttentionCapsules(types, POSE, classes, POSE, grid, routing=routing))
        return AttentionStack(layers, concurrent=concurrent)
    return nn.Sequential(
        *(CapsuleConv2d(types, POSE, types, POSE, *window, pose="matrix", routing=routing) for window in GEOMETRY[1:]),
        DenseCapsules(grid, types, POSE, classes, POSE, pose="matrix", routing=routing),
    )

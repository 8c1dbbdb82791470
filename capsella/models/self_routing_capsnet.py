"""The networks of Hahn, Pyeon, Kim 2019, "Self-Routing Capsule Networks" (NeurIPS)."""

import math
from collections.abc import Iterator

from torch import nn

from capsella.errors import check_minimum
from capsella.layers import (
    CapsuleConv2d,
    DenseCapsules,
    LogActivations,
    MeanCapsules,
    NormalisedPrimaryCapsules,
    NormalisePoses,
    PadCapsules,
    PrepareImages,
    start_for_relus,
)
from capsella.layers.convolution import WEIGHT_SD
from capsella.layers.norms import Norm, norm_layer
from capsella.models.base import register_model
from capsella.models.classifiers import CapsuleClassifier
from capsella.models.matrix_capsnet import SMALLNORB
from capsella.models.resnet import ResidualBlock
from capsella.models.shapes import grid_after
from capsella.routing import Routing, SelfRouting

BLOCKS = ((1, 1), (1, 1), (1, 1), (2, 2), (2, 1), (2, 1), (4, 2), (4, 1), (4, 1))
"""Channels, in units of the first width, and stride of each residual block of ResNet-20 (He et al. 2016, §4.2)."""
CONVOLUTIONS = ((1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (8, 2))
"""The same of the convolutions for smallNORB."""


@register_model
def hahn2019_resnet20(
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 3,
    classes: tuple[str, ...] = tuple("0123456789"),
    routing: Routing = SelfRouting(),
    width: int = 16,
    types: int = 32,
    pose: int = 16,
    layers: int = 2,
    norm: Norm = "batch",
) -> CapsuleClassifier:
    """ResNet-20 with capsules in place of its pooling: 3,187,536 parameters at 32×32×3 (3.2 M on their poster).

    Args:
        image_size: (height, width), at least 1×1; the paper's is 32×32.
        channels: of the image.
        classes: their names.
        routing: of all capsule layers.
        width: channels of the first residual stage; 2 and 4 times as many in the others.
        types: capsule types of every layer but the last.
        pose: elements of their poses.
        layers: capsule layers behind the primary capsules, the class capsules included; the authors' have 1 or 2.
        norm: of all convolutions, and of the poses between capsule layers; the paper's is batch normalisation.

    Raises:
        ValueError: `width`, `types`, `pose` or `layers` below 1, or an image without pixels.
    """
    check_minimum(1, width=width, types=types, pose=pose, layers=layers)
    grid = grid_after(image_size, [(1, stride) for _, stride in BLOCKS])
    strides = (2, *(1 for _ in range(layers - 2)))[: layers - 1]
    return _with_capsules(
        resnet20(channels, width, norm), 4 * width, grid, strides, types, pose, routing, norm,
        image_size=image_size, channels=channels, classes=classes,
    )  # fmt: skip


@register_model
def hahn2019_convnet(
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 1,
    classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = SelfRouting(),
    width: int = 16,
    types: int = 32,
    pose: int = 16,
    layers: int = 1,
    norm: Norm = "batch",
    crop: int | None = None, standardise: bool = False, brightness: float = 0.0, contrast: float = 0.0,
) -> CapsuleClassifier:  # fmt: skip
    """The convolutions and capsules for smallNORB (their code): 814,960 parameters at 32×32×1 and 5 classes.

    The authors cut images, and do not standardise them.

    Args:
        image_size: (height, width), at least 1×1; the authors' is 32×32, cut from 48×48.
        channels: of the image.
        classes: their names.
        routing, types, pose, layers, norm: as for `hahn2019_resnet20`.
        width: channels of the first of six convolutions; 8 times as many in the last.
        crop, standardise, brightness, contrast: as for `hinton2018_matrix_capsnet`.

    Raises:
        ValueError: `width`, `types`, `pose` or `layers` below 1, or an image without pixels.
    """
    check_minimum(1, width=width, types=types, pose=pose, layers=layers)
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    grid = grid_after(prepare.size, [(1, stride) for _, stride in CONVOLUTIONS])
    body = nn.Sequential(prepare, *convolutions(channels, width, norm))
    return _with_capsules(
        body, 8 * width, grid, (1,) * (layers - 1), types, pose, routing, norm,
        image_size=image_size, channels=channels, classes=classes,
    )  # fmt: skip


def resnet20(channels: int, width: int, norm: Norm) -> nn.Sequential:
    """ResNet-20 for small images, up to its last maps of 4·width channels (He et al. 2016, §4.2, option A)."""
    body: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False), norm_layer(norm, width), nn.ReLU()]
    below = width
    for times, stride in BLOCKS:
        body.append(ResidualBlock(below, times * width, stride, norm, projection=False))
        below = times * width
    return nn.Sequential(*body)


def convolutions(channels: int, width: int, norm: Norm) -> nn.Sequential:
    """The six convolutions for smallNORB, up to their last maps of 8·width channels."""
    body: list[nn.Module] = []
    below = channels
    for times, stride in CONVOLUTIONS:
        convolution = nn.Conv2d(below, times * width, 3, stride, padding=1, bias=False)
        body += [convolution, norm_layer(norm, times * width), nn.ReLU()]
        below = times * width
    return nn.Sequential(*body)


def _with_capsules(
    backbone: nn.Sequential,
    width: int,
    grid: tuple[int, int],
    strides: tuple[int, ...],
    types: int,
    pose: int,
    routing: Routing,
    norm: Norm,
    *,
    image_size: tuple[int, int],
    channels: int,
    classes: tuple[str, ...],
) -> CapsuleClassifier:
    """Primary capsules on a grid, a 3×3 capsule convolution for each of `strides`, and class capsules."""
    start_for_relus(backbone)
    hidden = [module for stride in strides for module in _hidden(types, pose, stride, routing, norm)]
    last = grid_after(grid, [(1, stride) for stride in strides])
    return CapsuleClassifier(
        backbone=backbone,
        primary=NormalisedPrimaryCapsules(width, types, pose, norm=norm),
        capsule_layers=nn.Sequential(*hidden, _class_capsules(last, types, pose, len(classes), routing)),
        decoder=None,
        image_size=image_size,
        channels=channels,
        classes=classes,
        scores=LogActivations(),
    )


def _hidden(types: int, pose: int, stride: int, routing: Routing, norm: Norm) -> Iterator[nn.Module]:
    # Kaiming's deviation, as the authors' code counts the fan-in of their weights [children, types·pose, pose].
    sd = math.sqrt(2 / (types * pose * pose)) if routing.activation_kind == "shares" else WEIGHT_SD
    yield PadCapsules(1)
    yield CapsuleConv2d(types, pose, types, pose, 3, stride, weight_sd=sd, routing=routing)
    yield NormalisePoses(types, pose, norm)


def _class_capsules(grid: tuple[int, int], types: int, pose: int, classes: int, routing: Routing) -> DenseCapsules:
    """Those of self-routing have no votes; another routing needs them."""
    if routing.activation_kind == "shares":
        return MeanCapsules(grid, types, pose, classes, routing=routing)
    return DenseCapsules(grid, types, pose, classes, pose, routing=routing)

"""The networks of Hahn, Pyeon, Kim 2019, "Self-Routing Capsule Networks" (NeurIPS), and their CNN baselines."""

import math
from collections.abc import Sequence

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
    he_init_,
)
from capsella.layers.convolution import WEIGHT_SD
from capsella.models.base import ImageClassifier, grid_after, register_variant
from capsella.models.classifiers import CapsuleClassifier, ConvolutionalClassifier
from capsella.models.he2016 import ResidualBlock
from capsella.models.hinton2018 import SMALLNORB
from capsella.routing import Routing, SelfRouting

# (channels in units of the first width, stride) of each residual block of ResNet-20 (He et al. 2016, §4.2), and of each
# convolution of the network for smallNORB.
BLOCKS = ((1, 1), (1, 1), (1, 1), (2, 2), (2, 1), (2, 1), (4, 2), (4, 1), (4, 1))
CONVOLUTIONS = ((1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (8, 2))


def _resnet20_network(
    capsules: bool,
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 3,
    classes: tuple[str, ...] = tuple("0123456789"),
    routing: Routing = SelfRouting(),
    width: int = 16,
    types: int = 32,
    pose: int = 16,
    layers: int = 2,
) -> ImageClassifier:
    """Build ResNet-20 with capsules or average pooling.

    Args:
        image_size: (height, width), at least 1×1; the paper's is 32×32.
        routing: routing of all capsule layers.
        width: channels of the first residual stage; the others have 2 and 4 times as many.
        types: capsule types of every layer except the class capsules.
        pose: elements of each pose.
        layers: capsule layers after the primary capsules, including the class capsules; the authors' networks have 1
            or 2.

    Raises:
        ArgumentError: `width`, `types`, `pose` or `layers` below 1, or an image without pixels.
    """
    check_minimum(1, width=width, types=types, pose=pose, layers=layers)
    grid = grid_after(image_size, [(1, stride) for _, stride in BLOCKS])
    backbone = _resnet20(channels, width)
    if not capsules:
        return _with_mean(backbone, 4 * width, len(classes))
    he_init_(backbone)
    strides = (2, *(1 for _ in range(layers - 2)))[: layers - 1]
    convolutions, grid = _capsule_convolutions(grid, strides, types, pose, routing)
    primary = NormalisedPrimaryCapsules(4 * width, types, pose)
    last = _class_capsules(grid, types, pose, len(classes), routing)
    return CapsuleClassifier(backbone, primary, nn.Sequential(*convolutions, last), scores=LogActivations())


def _convolutional_network(
    capsules: bool,
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 1,
    classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = SelfRouting(),
    width: int = 16,
    types: int = 32,
    pose: int = 16,
    layers: int = 1,
    crop: int | None = None,
    standardise: bool = False,
    brightness: float = 0.0,
    contrast: float = 0.0,
) -> ImageClassifier:
    """Build the network for smallNORB: convolutions with capsules or average pooling.

    The authors crop images and do not standardise them.

    Args:
        image_size: (height, width), at least 1×1; the authors' is 32×32, cut from 48×48.
        routing, types, pose, layers: as for `hahn2019_resnet20`.
        width: channels of the first of six convolutions; the last has 8 times as many.
        crop, standardise, brightness, contrast: as for `hinton2018_matrix_capsnet`.

    Raises:
        ArgumentError: `width`, `types`, `pose` or `layers` below 1, or an image without pixels.
    """
    check_minimum(1, width=width, types=types, pose=pose, layers=layers)
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    grid = grid_after(prepare.size, [(1, stride) for _, stride in CONVOLUTIONS])
    backbone = nn.Sequential(prepare, *_convolutions(channels, width))
    if not capsules:
        return _with_mean(backbone, 8 * width, len(classes))
    he_init_(backbone)
    convolutions, grid = _capsule_convolutions(grid, (1,) * (layers - 1), types, pose, routing)
    primary = NormalisedPrimaryCapsules(8 * width, types, pose)
    last = _class_capsules(grid, types, pose, len(classes), routing)
    return CapsuleClassifier(backbone, primary, nn.Sequential(*convolutions, last), scores=LogActivations())


register_variant(
    "hahn2019_resnet20",
    "ResNet-20 with capsules in place of its pooling: 3,187,536 parameters at 32×32×3 (3.2 M on their poster).",
    _resnet20_network,
    True,
)
register_variant(
    "hahn2019_convnet",
    "The convolutions and capsules for smallNORB (their code): 814,960 parameters at 32×32×1 and 5 classes.",
    _convolutional_network,
    True,
)
register_variant(
    "hahn2019_resnet20_cnn",
    "ResNet-20 with its average pooling (He et al. 2016, §4.2): 269,722 parameters at 32×32×3 (0.3 M on the poster).",
    _resnet20_network,
    False,
    without=("routing", "types", "pose", "layers"),
)
register_variant(
    "hahn2019_convnet_cnn",
    "The convolutions for smallNORB with average pooling: 144,309 parameters at one channel and 5 classes.",
    _convolutional_network,
    False,
    without=("routing", "types", "pose", "layers"),
)


def _resnet20(channels: int, width: int) -> nn.Sequential:
    """Return ResNet-20 up to its last maps of 4·width channels (He et al. 2016, §4.2, option A)."""
    body: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for times, stride in BLOCKS:
        body.append(ResidualBlock(before, times * width, stride, projection=False))
        before = times * width
    return nn.Sequential(*body)


def _convolutions(channels: int, width: int) -> nn.Sequential:
    """Return the six convolutions for smallNORB, up to their last maps of 8·width channels."""
    body: list[nn.Module] = []
    before = channels
    for times, stride in CONVOLUTIONS:
        convolution = nn.Conv2d(before, times * width, 3, stride, padding=1, bias=False)
        body += [convolution, nn.BatchNorm2d(times * width), nn.ReLU()]
        before = times * width
    return nn.Sequential(*body)


def _with_mean(backbone: nn.Sequential, width: int, classes: int) -> ConvolutionalClassifier:
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)
    return ConvolutionalClassifier(nn.Sequential(*backbone, *head))


def _capsule_convolutions(
    grid: tuple[int, int], strides: Sequence[int], types: int, pose: int, routing: Routing
) -> tuple[list[nn.Module], tuple[int, int]]:
    """Return a padded and normalised 3×3 capsule convolution for each of `strides`, and the grid after them."""
    # Kaiming's standard deviation, with the fan-in of the authors' weights [children, types·pose, pose].
    sd = math.sqrt(2 / (types * pose * pose)) if routing.activation_kind == "shares" else WEIGHT_SD
    layers: list[nn.Module] = []
    for stride in strides:
        convolution = CapsuleConv2d(types, pose, types, pose, 3, stride, weight_sd=sd, routing=routing)
        layers += [PadCapsules(1), convolution, NormalisePoses(types, pose)]
    return layers, grid_after(grid, [(1, stride) for stride in strides])


def _class_capsules(grid: tuple[int, int], types: int, pose: int, classes: int, routing: Routing) -> nn.Module:
    if routing.activation_kind == "shares":  # class capsules of self-routing have no votes
        return MeanCapsules(grid, types, pose, classes, routing=routing)
    return DenseCapsules(grid, types, pose, classes, pose, routing=routing)

"""The network of Mazzia, Salvetti, Chiaberge 2021, "Efficient-CapsNet" (arXiv 2101.12491)."""

import math

import torch
from torch import nn

from capsella.errors import check_minimum
from capsella.layers import DenseCapsules, DenseDecoder, DepthwisePrimaryCapsules, FastConv2d, he_init_
from capsella.models.base import grid_after, register_model, register_variant
from capsella.models.classifiers import CapsuleClassifier, ConvolutionalClassifier
from capsella.routing import Routing, SelfAttentionRouting

# (channels, kernel, stride) of each convolution.
CONVOLUTIONS = ((32, 5, 1), (64, 3, 1), (64, 3, 1), (128, 3, 2))
TYPES, POSE, CLASS_POSE = 16, 8, 16
PAIR_KERNEL = 5  # kernel of the primary capsules in the network for pairs of digits, on maps of 6×6


@register_model
def mazzia2021_efficient_capsnet(
    *,
    image_size: tuple[int, int] = (28, 28),
    channels: int = 1,
    classes: tuple[str, ...] = tuple("0123456789"),
    routing: Routing = SelfAttentionRouting(),
    reconstruction: bool = True,
    halve_from: int | None = None,
    decoder_width: int = 1024,
    for_pairs: bool = False,
) -> CapsuleClassifier:
    """Efficient-CapsNet, §3 of the paper: 161,824 parameters at 28×28×1, 1.57 M with the decoder; no iterations.

    The depthwise kernel is as large as the last maps: 9×9 at the paper's image size.

    Args:
        image_size: (height, width), at least 13×13; the paper's is 28×28.
        channels: channels of the images, 1 for grey, 3 for RGB.
        routing: routing of the class capsules.
        reconstruction: add the decoder.
        halve_from: the first convolution has stride 2 if the shorter side has at least this many pixels; None for
            stride 1.
        decoder_width: units of the decoder's second hidden layer; the first has half as many.
        for_pairs: build the authors' network for MultiMNIST: the third convolution has stride 2, too, and the primary
            capsules have a 5×5 kernel.

    Raises:
        ArgumentError: `halve_from` below 1, `decoder_width` below 2, or an image too small for the convolutions.
    """
    check_minimum(2, decoder_width=decoder_width)
    strides, grid = _geometry(image_size, halve_from, for_pairs)
    backbone = _backbone(channels, strides)
    primary = DepthwisePrimaryCapsules(TYPES, POSE, grid, min(PAIR_KERNEL, *grid) if for_pairs else None)
    # Keras takes all axes but the last of the weights [classes, children, 8, 16] as the fan-in.
    sd = math.sqrt(2 / (len(classes) * TYPES * POSE))
    class_capsules = DenseCapsules((1, 1), TYPES, POSE, len(classes), CLASS_POSE, routing=routing, weight_sd=sd)
    decoder = None
    if reconstruction:
        widths = decoder_width // 2, decoder_width
        decoder = DenseDecoder(len(classes), CLASS_POSE, (channels, *image_size), hidden=widths)
        he_init_(decoder)
    return CapsuleClassifier(
        backbone=backbone,
        primary=primary,
        capsule_layers=nn.Sequential(class_capsules),
        decoder=decoder,
    )


def _convolutions_alone(
    pool: bool,
    *,
    image_size: tuple[int, int] = (28, 28),
    channels: int = 1,
    classes: tuple[str, ...] = tuple("0123456789"),
    halve_from: int | None = None,
) -> ConvolutionalClassifier:
    """Build the convolutions of Efficient-CapsNet with a linear layer in place of its capsules.

    Args:
        image_size: (height, width), at least 13×13.
        halve_from: as for `mazzia2021_efficient_capsnet`.

    Raises:
        ArgumentError: `halve_from` below 1, or an image too small for the convolutions.
    """
    strides, grid = _geometry(image_size, halve_from)
    width = CONVOLUTIONS[-1][0]
    summary = nn.AdaptiveAvgPool2d(1) if pool else nn.Conv2d(width, width, grid, groups=width)
    network = nn.Sequential(*_backbone(channels, strides), summary, nn.Flatten(), nn.Linear(width, len(classes)))
    return ConvolutionalClassifier(network)


register_variant(
    "mazzia2021_average_pooling",
    "The convolutions of Efficient-CapsNet, average pooling and a linear layer: a CNN baseline.",
    _convolutions_alone,
    True,
)
register_variant(
    "mazzia2021_depthwise_linear",
    "The convolutions of Efficient-CapsNet, its depthwise kernel and a linear layer: all of it except the capsules.",
    _convolutions_alone,
    False,
)


def _geometry(
    image_size: tuple[int, int], halve_from: int | None, for_pairs: bool = False
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Return the strides of the convolutions, and the size of the last maps."""
    check_minimum(1, halve_from=halve_from)
    first = 1 if halve_from is None or min(image_size) < halve_from else 2
    strides = (first, 1, 2 if for_pairs else 1, CONVOLUTIONS[3][2])
    kernels = [(kernel, stride) for (_, kernel, _), stride in zip(CONVOLUTIONS, strides, strict=True)]
    grid_after(image_size, [*kernels, (2, 1)])  # maps of at least 2×2: a batch of one image can be normalised
    return strides, grid_after(image_size, kernels)


def _backbone(channels: int, strides: tuple[int, ...]) -> nn.Sequential:
    """Return unpadded convolutions, each followed by a ReLU and a normalisation with Keras's ε."""
    # Running statistics cover 10 batches, not 100 as in Keras, because networks change faster on small data sets.
    layers: list[nn.Module] = []
    for (width, kernel, _), stride in zip(CONVOLUTIONS, strides, strict=True):
        layers += [FastConv2d(channels, width, kernel, stride), nn.ReLU(), nn.BatchNorm2d(width, eps=1e-3)]
        channels = width
    backbone = nn.Sequential(*layers)
    he_init_(backbone)
    # With channels last, these convolutions train a fifth faster on a CPU, and classify batches a tenth to a quarter
    # faster.
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return backbone

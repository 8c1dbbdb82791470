"""The network of Mazzia, Salvetti, Chiaberge 2021, "Efficient-CapsNet" (arXiv 2101.12491)."""

import math

import torch
from torch import nn

from capsella.errors import check_minimum
from capsella.layers import DenseCapsules, DenseDecoder, DepthwisePrimaryCapsules, start_for_relus
from capsella.layers.norms import Norm, norm_layer
from capsella.models.base import register_model
from capsella.models.classifiers import CapsuleClassifier
from capsella.models.shapes import grid_after
from capsella.routing import Routing, SelfAttentionRouting

CONVOLUTIONS = ((32, 5, 1), (64, 3, 1), (64, 3, 1), (128, 3, 2))
"""Channels, kernel and stride of each."""
TYPES, POSE, CLASS_POSE = 16, 8, 16


@register_model
def mazzia2021_efficient_capsnet(
    *, image_size: tuple[int, int] = (28, 28), channels: int = 1, classes: tuple[str, ...] = tuple("0123456789"),
    routing: Routing = SelfAttentionRouting(), class_weight_sd: float | None = None, reconstruction: bool = True,
    halve_from: int | None = None, norm: Norm = "batch", decoder_width: int = 1024,
) -> CapsuleClassifier:  # fmt: skip
    """Efficient-CapsNet, §3 of the paper: 161,824 parameters at 28×28×1, 1.57 M with the decoder; no iterations.

    The last kernel is as large as the last maps, the paper's 9×9 or another image size's.

    Args:
        image_size: (height, width), at least 13×13; the paper's is 28×28.
        channels: of the image, 1 for grey, 3 for RGB.
        classes: their names.
        routing: of the class capsules.
        class_weight_sd: of the class capsules' first weights; None takes the authors' (He: √(2 / fan-in)), 0.04.
        reconstruction: with the decoder.
        halve_from: the first convolution takes steps of 2 where the shorter side has at least this many pixels.
        norm: of the convolutions; the paper's is batch normalisation.
        decoder_width: units before the decoder's pixels, and half as many before those.

    Raises:
        ValueError: `halve_from` below 1, `decoder_width` below 2, or an image too small for the convolutions.
    """
    check_minimum(1, halve_from=halve_from)
    check_minimum(2, decoder_width=decoder_width)
    strides = _strides(image_size, halve_from)
    grid = _grid(image_size, strides)
    return CapsuleClassifier(
        backbone=_backbone(channels, strides, norm),
        primary=DepthwisePrimaryCapsules(TYPES, POSE, grid),
        capsule_layers=nn.Sequential(_class_capsules(len(classes), routing, class_weight_sd)),
        decoder=_decoder(len(classes), (channels, *image_size), decoder_width) if reconstruction else None,
        image_size=image_size, channels=channels, classes=classes,
    )  # fmt: skip


def _strides(image_size: tuple[int, int], halve_from: int | None) -> tuple[int, ...]:
    """Of each convolution."""
    first = 1 if halve_from is None or min(image_size) < halve_from else 2
    return (first, *(stride for _, _, stride in CONVOLUTIONS[1:]))


def _grid(image_size: tuple[int, int], strides: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of the last maps: at least 2×2, so that a batch of one image can be normalised in training."""
    kernels = [(kernel, stride) for (_, kernel, _), stride in zip(CONVOLUTIONS, strides, strict=True)]
    grid_after(image_size, [*kernels, (2, 1)])
    return grid_after(image_size, kernels)


def _class_capsules(classes: int, routing: Routing, weight_sd: float | None) -> DenseCapsules:
    if weight_sd is None:
        # Keras counts the fan-in of weights [classes, children, 8, 16] as all but the last axis.
        weight_sd = math.sqrt(2 / (classes * TYPES * POSE))
    return DenseCapsules((1, 1), TYPES, POSE, classes, CLASS_POSE, routing=routing, weight_sd=weight_sd)


def _decoder(classes: int, image: tuple[int, int, int], width: int) -> DenseDecoder:
    decoder = DenseDecoder(classes, CLASS_POSE, image, hidden=(width // 2, width))
    start_for_relus(decoder)
    return decoder


def _backbone(channels: int, strides: tuple[int, ...], norm: Norm) -> nn.Sequential:
    """Unpadded convolutions, each with ReLU, then normalisation with Keras's ε.

    Keras's running statistics cover 100 batches; here they cover 10, for small sets change faster (LOG.md, L018).
    """
    layers: list[nn.Module] = []
    for (width, kernel, _), stride in zip(CONVOLUTIONS, strides, strict=True):
        layers += [nn.Conv2d(channels, width, kernel, stride), nn.ReLU(), norm_layer(norm, width, eps=1e-3)]
        channels = width
    backbone = nn.Sequential(*layers)
    start_for_relus(backbone)
    # On a CPU these convolutions learn a fifth faster with channels last, and classify batches a tenth to a quarter
    # faster.
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return backbone

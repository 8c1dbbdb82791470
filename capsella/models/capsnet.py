"""The networks of Sabour, Frosst, Hinton 2017, "Dynamic Routing Between Capsules" (arXiv 1710.09829)."""

from typing import Literal

from torch import nn

from capsella.errors import check_minimum
from capsella.layers import DenseCapsules, DenseDecoder, LargeConv2d, PrimaryCapsules, start_truncated
from capsella.layers.convolution import WEIGHT_SD
from capsella.models.base import register_model
from capsella.models.classifiers import CapsuleClassifier
from capsella.models.shapes import grid_after
from capsella.routing import DynamicRouting, Routing


@register_model
def sabour2017_capsnet(
    *, image_size: tuple[int, int] = (28, 28), channels: int = 1, classes: tuple[str, ...] = tuple("0123456789"),
    routing: Routing = DynamicRouting(iterations=3), primary_relu: bool = False, primary_types: int = 32,
    evenly_routed: bool = False, class_weight_sd: float = WEIGHT_SD, reconstruction: bool = True,
    decoder_width: int = 1024,
) -> CapsuleClassifier:  # fmt: skip
    """CapsNet, Figures 1 and 2 of the paper: 6.8 M parameters at 28×28×1, 8.2 M with the decoder.

    Args:
        image_size: (height, width), at least 17×17; the paper's is 28×28.
        channels: of the image, 1 for grey, 3 for RGB.
        classes: their names.
        routing: of the class capsules; 3 iterations in the paper.
        primary_relu: a ReLU before the squash of the primary capsules (Forslöv 2018 §6.1.1; the paper has none).
        primary_types: of primary capsules; 64 in the paper for CIFAR-10.
        evenly_routed: primary capsules and the convolutions' first weights as in the authors' code (`PrimaryCapsules`).
        class_weight_sd: of the class capsules' first weights; 0.1 in the authors' code.
        reconstruction: with the decoder.
        decoder_width: units before the decoder's pixels, from 2 on, and half as many before those; 1024 in the paper.
    """
    check_minimum(2, decoder_width=decoder_width)
    widths = (decoder_width // 2, decoder_width)
    grid = grid_after(image_size, [(9, 1), (9, 2)])
    class_caps = DenseCapsules(grid, primary_types, 8, len(classes), 16, routing=routing, weight_sd=class_weight_sd)
    activation: Literal["relu", "none"] = "relu" if primary_relu else "none"
    conv = LargeConv2d(channels, 256, 9)
    if evenly_routed:
        start_truncated(conv, 0.05)
    return CapsuleClassifier(
        backbone=nn.Sequential(conv, nn.ReLU()),
        primary=PrimaryCapsules(256, primary_types, 8, 9, 2, activation, evenly_routed=evenly_routed),
        capsule_layers=nn.Sequential(class_caps),
        decoder=DenseDecoder(len(classes), 16, (channels, *image_size), widths) if reconstruction else None,
        image_size=image_size, channels=channels, classes=classes,
    )  # fmt: skip

"""The networks of Sabour, Frosst, Hinton 2017, "Dynamic Routing Between Capsules" (arXiv 1710.09829)."""

from itertools import pairwise
from typing import Literal

from torch import nn

from capsella.errors import check_minimum
from capsella.layers import DenseCapsules, DenseDecoder, FastConv2d, PrimaryCapsules, trunc_normal_init_
from capsella.layers.convolution import WEIGHT_SD
from capsella.models.base import grid_after, register_model, register_variant
from capsella.models.classifiers import CapsuleClassifier, ConvolutionalClassifier
from capsella.routing import DynamicRouting, Routing

DIGITS = tuple("0123456789")


@register_model
def sabour2017_capsnet(
    *,
    image_size: tuple[int, int] = (28, 28),
    channels: int = 1,
    classes: tuple[str, ...] = DIGITS,
    routing: Routing = DynamicRouting(iterations=3),
    primary_relu: bool = False,
    primary_types: int = 32,
    uniform_primary_couplings: bool = False,
    class_weight_sd: float = WEIGHT_SD,
    reconstruction: bool = True,
    decoder_width: int = 1024,
) -> CapsuleClassifier:
    """CapsNet, Figures 1 and 2 of the paper: 6.8 M parameters at 28×28×1, 8.2 M with the decoder.

    Args:
        image_size: (height, width), at least 17×17; the paper's is 28×28.
        channels: channels of the images, 1 for grey, 3 for RGB.
        routing: routing of the class capsules; 3 iterations in the paper.
        primary_relu: add a ReLU before the squash of the primary capsules (Forslöv 2018 §6.1.1; the paper has none).
        primary_types: types of primary capsules; 64 in the paper for CIFAR-10.
        uniform_primary_couplings: primary capsules and the convolutions' initial weights as in the authors' code (see
            `PrimaryCapsules`).
        class_weight_sd: standard deviation of the class capsules' initial weights; 0.1 in the authors' code.
        reconstruction: add the decoder.
        decoder_width: units of the decoder's second hidden layer, at least 2; the first has half as many. 1024 in the
            paper.
    """
    check_minimum(2, decoder_width=decoder_width)
    widths = (decoder_width // 2, decoder_width)
    grid = grid_after(image_size, [(9, 1), (9, 2)])
    class_caps = DenseCapsules(grid, primary_types, 8, len(classes), 16, routing=routing, weight_sd=class_weight_sd)
    activation: Literal["relu", "none"] = "relu" if primary_relu else "none"
    conv = FastConv2d(channels, 256, 9)
    if uniform_primary_couplings:
        trunc_normal_init_(conv, 0.05)
    return CapsuleClassifier(
        backbone=nn.Sequential(conv, nn.ReLU()),
        primary=PrimaryCapsules(256, primary_types, 8, 9, 2, activation, uniform_couplings=uniform_primary_couplings),
        capsule_layers=nn.Sequential(class_caps),
        decoder=DenseDecoder(len(classes), 16, (channels, *image_size), widths) if reconstruction else None,
    )


def _cnn(
    convolutions: tuple[tuple[int, int, bool], ...],
    widths: tuple[int, ...],
    activation: Literal["softmax", "sigmoid"] = "softmax",
    *,
    image_size: tuple[int, int] = (28, 28),
    channels: int = 1,
    classes: tuple[str, ...] = DIGITS,
    dropout: float | None = 0.5,
) -> ConvolutionalClassifier:
    """Build a CNN baseline of the paper.

    Args:
        image_size: (height, width), at least 1×1, or 4×4 with max-pools.
        dropout: probability of zeroing an element before the last layer; the paper names dropout without a rate.
    """
    layers: list[nn.Module] = []
    before = channels
    for after, kernel, pool in convolutions:
        layers += conv_relu(before, after, kernel, pool)
        before = after
    rows, columns = grid_after(image_size, [(2, 2) for _, _, pool in convolutions if pool])
    layers += dense_layers(before * rows * columns, *widths, classes=len(classes), dropout=dropout)
    return ConvolutionalClassifier(nn.Sequential(*layers), activation=activation)


register_variant(
    "sabour2017_cnn",
    "CNN baseline of §5: 5×5 convolutions of 256, 256 and 128 channels, FC 328–192; 35.4 M parameters at 28×28×1. "
    'The paper does not give the padding; only "same" gives this number (valid gives 13.2 M).',
    _cnn,
    ((256, 5, False), (256, 5, False), (128, 5, False)),
    (328, 192),
)
register_variant(
    "sabour2017_multimnist_cnn",
    "CNN baseline of §6, for images of several classes: 9×9×512, 5×5×256, FC 1024, a 2×2 max-pool after each "
    'convolution, without dropout; 24.56 M parameters at 36×36×1, with "same" padding. Activations are the logistic of '
    "each logit, so that several classes can be present.",
    _cnn,
    ((512, 9, True), (256, 5, True)),
    (1024,),
    "sigmoid",
    defaults={"image_size": (36, 36), "dropout": None},
    without=("dropout",),
)
register_variant(
    "sabour2017_affnist_cnn",
    "CNN for the comparison on affNIST in §5.2: 13.48 M parameters, as many as CapsNet at 40×40×1. The paper says only "
    '"a traditional convolutional model with a similar number of parameters", with max-pooling and dropout. This is '
    "its MNIST baseline with a 2×2 max-pool after the first and second convolution, without which the dense layer "
    "alone would have 67 M parameters, and with dense layers of 848 and 192.",
    _cnn,
    ((256, 5, True), (256, 5, True), (128, 5, False)),
    (848, 192),
    defaults={"image_size": (40, 40)},
)


def conv_relu(before: int, after: int, kernel: int, pool: bool = False) -> list[nn.Module]:
    """Return a convolution with "same" padding, a ReLU, and a 2×2 max-pool if `pool`."""
    layers: list[nn.Module] = [FastConv2d(before, after, kernel, padding=kernel // 2), nn.ReLU()]
    return [*layers, nn.MaxPool2d(2)] if pool else layers


def dense_layers(*widths: int, classes: int, dropout: float | None = None) -> list[nn.Module]:
    """Return dense layers with ReLUs from flattened maps to logits; the first width is that of the flattened maps."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return [*layers, *([] if dropout is None else [nn.Dropout(dropout)]), nn.Linear(widths[-1], classes)]

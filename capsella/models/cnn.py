"""CNN baselines of the capsule papers."""

from itertools import pairwise

from torch import nn

from capsella.layers import LargeConv2d, PrepareImages
from capsella.models.base import register_model
from capsella.models.classifiers import ConvolutionalClassifier
from capsella.models.shapes import grid_after


@register_model
def sabour2017_cnn(
    *,
    image_size: tuple[int, int] = (28, 28),
    channels: int = 1,
    classes: tuple[str, ...] = tuple("0123456789"),
    dropout: float = 0.5,
) -> ConvolutionalClassifier:
    """The CNN baseline of Sabour et al. 2017, §5: three 5×5 convolutions, 256–256–128 channels, FC 328–192; 35.4 M.

    The text leaves the padding open; only "same" gives its 35.4 M parameters at 28×28×1 (valid gives 13.2 M). It names
    dropout without a rate: 0.5 here, before the last layer.

    Args:
        image_size: (height, width).
        channels: of the image.
        classes: their names.
        dropout: probability of zeroing an element before the last layer.
    """
    height, width = grid_after(image_size, [])  # padding keeps the size
    network = nn.Sequential(
        *_convolution(channels, 256, 5),
        *_convolution(256, 256, 5),
        *_convolution(256, 128, 5),
        *_dense(128 * height * width, 328, 192, classes=len(classes), dropout=dropout),
    )
    return ConvolutionalClassifier(network, image_size=image_size, channels=channels, classes=classes)


@register_model
def sabour2017_multimnist_cnn(
    *, image_size: tuple[int, int] = (36, 36), channels: int = 1, classes: tuple[str, ...] = tuple("0123456789")
) -> ConvolutionalClassifier:
    """The CNN baseline of Sabour et al. 2017, §6, for images of several classes: 9×9×512, 5×5×256, FC 1024; 24.6 M.

    Stride 1 and a 2×2 max-pool after each convolution; activations are the logistic of each class's logit, so that
    several classes can be there. The text leaves the padding open: only "same" gives its 24.56 M at 36×36×1.

    Args:
        image_size: (height, width), at least 4×4; the paper's is 36×36.
        channels: of the image.
        classes: their names.
    """
    rows, columns = grid_after(image_size, [(2, 2), (2, 2)])
    network = nn.Sequential(
        *_convolution(channels, 512, 9, pool=True),
        *_convolution(512, 256, 5, pool=True),
        *_dense(256 * rows * columns, 1024, classes=len(classes)),
    )
    return ConvolutionalClassifier(
        network, image_size=image_size, channels=channels, classes=classes, activation="sigmoid"
    )


@register_model
def sabour2017_affnist_cnn(
    *,
    image_size: tuple[int, int] = (40, 40),
    channels: int = 1,
    classes: tuple[str, ...] = tuple("0123456789"),
    dropout: float = 0.5,
) -> ConvolutionalClassifier:
    """A CNN for the comparison on affNIST (Sabour et al. 2017, §5.2): 13.48 M parameters, as CapsNet's at 40×40×1.

    The paper says "a traditional convolutional model with a similar number of parameters", with max-pooling and
    dropout, and no more. This is its MNIST baseline, 5×5 convolutions of 256, 256 and 128 channels, with a 2×2 max-pool
    after the first and the second, without which the dense layer alone would have 67 M, and with dense layers of 848
    and 192.

    Args:
        image_size: (height, width), at least 4×4; the paper's is 40×40.
        channels: of the image.
        classes: their names.
        dropout: probability of zeroing an element before the last layer.
    """
    rows, columns = grid_after(image_size, [(2, 2), (2, 2)])
    network = nn.Sequential(
        *_convolution(channels, 256, 5, pool=True),
        *_convolution(256, 256, 5, pool=True),
        *_convolution(256, 128, 5),
        *_dense(128 * rows * columns, 848, 192, classes=len(classes), dropout=dropout),
    )
    return ConvolutionalClassifier(network, image_size=image_size, channels=channels, classes=classes)


@register_model
def hinton2018_cnn(
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 1,
    classes: tuple[str, ...] = ("animal", "human", "airplane", "truck", "car"),
    crop: int | None = None,
    standardise: bool = True,
    brightness: float = 0.0,
    contrast: float = 0.0,
    dropout: float = 0.5,
) -> ConvolutionalClassifier:
    """The CNN baseline of Hinton et al. 2018, §5: 5×5 convolutions with 32 and 64 channels, FC 1024; 4.2 M parameters.

    Stride 1 and "same" padding, each with a 2×2 max-pool. The text gives neither the padding nor the dropout rate: only
    "same" gives its 4.2 M at 32×32 (valid has 1.7 M), and the rate is 0.5 here.

    Args:
        image_size: (height, width), at least 4×4; the paper's is 32×32, cut from 48×48.
        channels: of the image.
        classes: their names.
        crop, standardise, brightness, contrast: as for `hinton2018_matrix_capsnet`.
        dropout: probability of zeroing an element before the last layer.
    """
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    rows, columns = grid_after(prepare.size, [(2, 2), (2, 2)])
    network = nn.Sequential(
        prepare,
        *_convolution(channels, 32, 5, pool=True),
        *_convolution(32, 64, 5, pool=True),
        *_dense(64 * rows * columns, 1024, classes=len(classes), dropout=dropout),
    )
    return ConvolutionalClassifier(network, image_size=image_size, channels=channels, classes=classes)


def _convolution(before: int, after: int, kernel: int, pool: bool = False) -> list[nn.Module]:
    """With "same" padding and ReLU, and a 2×2 max-pool where asked for."""
    layers: list[nn.Module] = [LargeConv2d(before, after, kernel, padding=kernel // 2), nn.ReLU()]
    return [*layers, nn.MaxPool2d(2)] if pool else layers


def _dense(*widths: int, classes: int, dropout: float | None = None) -> list[nn.Module]:
    """From maps of as many numbers as the first width through dense layers with ReLU to logits."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return [*layers, *([] if dropout is None else [nn.Dropout(dropout)]), nn.Linear(widths[-1], classes)]

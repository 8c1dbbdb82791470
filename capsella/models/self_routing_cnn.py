"""The CNNs beside the networks of Hahn, Pyeon, Kim 2019: the same convolutions, with their mean instead of capsules."""

from torch import nn

from capsella.errors import check_minimum
from capsella.layers import PrepareImages
from capsella.layers.norms import Norm
from capsella.models.base import register_model
from capsella.models.classifiers import ConvolutionalClassifier
from capsella.models.matrix_capsnet import SMALLNORB
from capsella.models.self_routing_capsnet import BLOCKS, CONVOLUTIONS, convolutions, resnet20
from capsella.models.shapes import grid_after


@register_model
def hahn2019_resnet20_cnn(
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 3,
    classes: tuple[str, ...] = tuple("0123456789"),
    width: int = 16,
    norm: Norm = "batch",
) -> ConvolutionalClassifier:
    """ResNet-20 with its average pooling (He et al. 2016, §4.2): 269,722 parameters at 32×32×3 (0.3 M on the poster).

    Args:
        image_size: (height, width), at least 1×1; the paper's is 32×32.
        channels: of the image.
        classes: their names.
        width, norm: as for `hahn2019_resnet20`.

    Raises:
        ValueError: `width` below 1, or an image without pixels.
    """
    check_minimum(1, width=width)
    grid_after(image_size, [(1, stride) for _, stride in BLOCKS])
    network = nn.Sequential(*resnet20(channels, width, norm), *_mean(4 * width, len(classes)))
    return ConvolutionalClassifier(network, image_size=image_size, channels=channels, classes=classes)


@register_model
def hahn2019_convnet_cnn(
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 1,
    classes: tuple[str, ...] = SMALLNORB,
    width: int = 16,
    norm: Norm = "batch",
    crop: int | None = None, standardise: bool = False, brightness: float = 0.0, contrast: float = 0.0,
) -> ConvolutionalClassifier:  # fmt: skip
    """The convolutions for smallNORB with average pooling: 144,309 parameters at one channel and 5 classes.

    Args:
        image_size: (height, width), at least 1×1; the authors' is 32×32, cut from 48×48.
        channels: of the image.
        classes: their names.
        width, norm: as for `hahn2019_convnet`.
        crop, standardise, brightness, contrast: as for `hinton2018_matrix_capsnet`.

    Raises:
        ValueError: `width` below 1, or an image without pixels.
    """
    check_minimum(1, width=width)
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    grid_after(prepare.size, [(1, stride) for _, stride in CONVOLUTIONS])
    network = nn.Sequential(prepare, *convolutions(channels, width, norm), *_mean(8 * width, len(classes)))
    return ConvolutionalClassifier(network, image_size=image_size, channels=channels, classes=classes)


def _mean(width: int, classes: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)

"""CNN baselines of the capsule papers."""

from torch import nn

from capsella.models.base import ConvolutionalClassifier
from capsella.models.registry import register_model
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
        nn.Conv2d(channels, 256, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(256, 256, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(256, 128, 5, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128 * height * width, 328),
        nn.ReLU(),
        nn.Linear(328, 192),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(192, len(classes)),
    )
    return ConvolutionalClassifier(network, image_size=image_size, channels=channels, classes=classes)

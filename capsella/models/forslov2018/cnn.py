"""CNN-NET 1 to 3 of Forslöv's thesis (2018), which capsules are compared with.

Table 2 counts weights without biases; the counts here do the same. docs/papers/forslov2018.md says what the text
leaves open.
"""

from torch import nn

from capsella.models.base import register_model
from capsella.models.classifiers import ConvolutionalClassifier
from capsella.models.forslov2018.parts import CELLS, INIT_CHANNELS, Front, convolution, grid_behind, init_net

Net = tuple[tuple[tuple[int, int, int], ...], tuple[int, int]]
"""Convolutions behind the INIT-NET as (channels, kernel, stride), and the widths of the two hidden dense layers."""
NET_1: Net = ((), (50, 60))
NET_2: Net = (((512, 9, 1), (512, 5, 1), (96, 3, 1)), (256, 128))
NET_3: Net = (((512, 9, 2), (512, 1, 1)), (256, 256))


@register_model
def forslov2018_cnnnet1_init1(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    standardise: bool = True, batch_norm: bool = False, dropout: float = 0.5,
) -> ConvolutionalClassifier:  # fmt: skip
    """CNN-NET 1 behind INIT-NET 1 (Figure 23): dense layers 50–60; 2,563,000 + 60·|C| weights behind the INIT-NET.

    Args:
        image_size: (height, width), at least 64×64; below 224 on the shorter side, images are enlarged to it. Above,
            the first dense layer grows with the image.
        channels: of the image.
        classes: their names.
        standardise, batch_norm: as for `forslov2018_capsnet1_init1`.
        dropout: probability of zeroing an element after each hidden dense layer; the thesis gives no rate.
    """
    return _cnn(Front(1, image_size, channels, standardise, batch_norm), NET_1, classes, dropout)


@register_model
def forslov2018_cnnnet1_init2(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    standardise: bool = True, batch_norm: bool = False, dropout: float = 0.5,
) -> ConvolutionalClassifier:  # fmt: skip
    """As `forslov2018_cnnnet1_init1`, behind INIT-NET 2."""
    return _cnn(Front(2, image_size, channels, standardise, batch_norm), NET_1, classes, dropout)


@register_model
def forslov2018_cnnnet2_init1(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    standardise: bool = True, batch_norm: bool = False, dropout: float = 0.5,
) -> ConvolutionalClassifier:  # fmt: skip
    """CNN-NET 2 behind INIT-NET 1 (Figure 24): convolutions 9×9×512, 5×5×512, 3×3×96, dense layers 256–128.

    13,221,888 + 128·|C| weights behind the INIT-NET. Args as for `forslov2018_cnnnet1_init1`.
    """
    return _cnn(Front(1, image_size, channels, standardise, batch_norm), NET_2, classes, dropout)


@register_model
def forslov2018_cnnnet2_init2(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    standardise: bool = True, batch_norm: bool = False, dropout: float = 0.5,
) -> ConvolutionalClassifier:  # fmt: skip
    """As `forslov2018_cnnnet2_init1`, behind INIT-NET 2."""
    return _cnn(Front(2, image_size, channels, standardise, batch_norm), NET_2, classes, dropout)


@register_model
def forslov2018_cnnnet3_init1(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    standardise: bool = True, batch_norm: bool = False, dropout: float = 0.5,
) -> ConvolutionalClassifier:  # fmt: skip
    """CNN-NET 3 behind INIT-NET 1 (Figure 25): convolutions 9×9×512 with stride 2 and 1×1×512, dense layers 256–256.

    10,354,688 + 256·|C| weights behind the INIT-NET. Args as for `forslov2018_cnnnet1_init1`.
    """
    return _cnn(Front(1, image_size, channels, standardise, batch_norm), NET_3, classes, dropout)


@register_model
def forslov2018_cnnnet3_init2(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    standardise: bool = True, batch_norm: bool = False, dropout: float = 0.5,
) -> ConvolutionalClassifier:  # fmt: skip
    """As `forslov2018_cnnnet3_init1`, behind INIT-NET 2."""
    return _cnn(Front(2, image_size, channels, standardise, batch_norm), NET_3, classes, dropout)


def _cnn(front: Front, net: Net, classes: tuple[str, ...], dropout: float) -> ConvolutionalClassifier:
    convolutions, (wide, narrow) = net
    network = init_net(*front)
    features = INIT_CHANNELS
    for after, kernel, stride in convolutions:
        network.extend(convolution(features, after, kernel, stride, batch_norm=front.batch_norm))
        features = after
    rows, columns = grid_behind(front.image_size, *((kernel, stride) for _, kernel, stride in convolutions))
    network.extend([nn.Flatten(), nn.Linear(features * rows * columns, wide), nn.ReLU(), nn.Dropout(dropout)])
    network.extend([nn.Linear(wide, narrow), nn.ReLU(), nn.Dropout(dropout), nn.Linear(narrow, len(classes))])
    return ConvolutionalClassifier(network, image_size=front.image_size, channels=front.channels, classes=classes)

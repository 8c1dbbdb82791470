"""The networks of Forslöv's thesis (2018): capsules and CNNs on 224×224 images of white blood cells.

Table 2 counts weights without biases; the counts here do the same. docs/thesis.md says what the text leaves open.
"""

from torch import nn

from capsella.layers import (
    CapsuleConv2d,
    ConvolutionalDecoder,
    DenseCapsules,
    MatrixPrimaryCapsules,
    PrimaryCapsules,
    coordinate_addition,
    receptive_field_centres,
)
from capsella.models.base import CapsuleClassifier, ConvolutionalClassifier
from capsella.models.thesis_parts import (
    CELLS,
    INIT_CHANNELS,
    InitNet,
    convolution,
    grid_behind,
    halved_size,
    init_net,
    with_both_init_nets,
)
from capsella.routing import DynamicRouting, EMRouting, Routing

# Algorithm 2: the types at one position compete, their costs are standardised; λ = 1.0, 1.95, 2.85.
THESIS_EM = EMRouting(iterations=3, competition="types", standardise_costs=True, inverse_temperature=20.0)


@with_both_init_nets
def forslov2018_capsnet1(
    init: InitNet,
    *,
    image_size: tuple[int, int] = (224, 224),
    channels: int = 3,
    classes: tuple[str, ...] = CELLS,
    routing: Routing = DynamicRouting(iterations=3),
    standardise: bool = True,
    batch_norm: bool = False,
    reconstruction: bool = False,
) -> CapsuleClassifier:
    """CAPSNET 1 behind INIT-NET n (Figure 26): 64 types of 8-D capsules on 6×6, routed to 96-D class capsules.

    One weight a type and class, shared over positions; 5,308,416 + 49,152·|C| weights behind the INIT-NET.

    Args:
        image_size: (height, width), at least 64×64; below 224 on the shorter side, images are enlarged to it.
        channels: of the image.
        classes: their names.
        routing: of all routed layers; 3 iterations (§6.5).
        standardise: bring each image to zero mean and unit variance first. The thesis does not say; without it, a tenth
            of the first layer's filters start blind to pictures of cells, which are bright, and stay so.
        batch_norm: batch normalisation between each convolution and its ReLU; the thesis has none.
        reconstruction: with DECODER NET.
    """
    return _capsnet(init, False, image_size, channels, classes, routing, standardise, batch_norm, reconstruction)


@with_both_init_nets
def forslov2018_capsnet2(
    init: InitNet,
    *,
    image_size: tuple[int, int] = (224, 224),
    channels: int = 3,
    classes: tuple[str, ...] = CELLS,
    routing: Routing = DynamicRouting(iterations=3),
    standardise: bool = True,
    batch_norm: bool = False,
    reconstruction: bool = False,
) -> CapsuleClassifier:
    """CAPSNET 2 behind INIT-NET n (Figure 27): CAPSNET 1 with a 3×3 capsule convolution, 64 types on 4×4, between.

    7,667,712 + 49,152·|C| weights behind the INIT-NET. Args as for `forslov2018_capsnet1_init1`.
    """
    return _capsnet(init, True, image_size, channels, classes, routing, standardise, batch_norm, reconstruction)


def _capsnet(
    init: InitNet,
    with_conv_caps: bool,
    image_size: tuple[int, int],
    channels: int,
    classes: tuple[str, ...],
    routing: Routing,
    standardise: bool,
    batch_norm: bool,
    reconstruction: bool,
) -> CapsuleClassifier:
    backbone = init_net(init, image_size, channels, standardise, batch_norm)
    conv_caps = [CapsuleConv2d(64, 8, 64, 8, 3, routing=routing)] if with_conv_caps else []
    grid = grid_behind(image_size, (9, 2), *([(3, 1)] if with_conv_caps else []))
    class_caps = DenseCapsules(grid, 64, 8, len(classes), 96, tied=True, routing=routing)
    return CapsuleClassifier(
        backbone=backbone,
        primary=PrimaryCapsules(INIT_CHANNELS, types=64, pose=8, kernel=9, stride=2, activation="relu"),
        capsule_layers=nn.Sequential(*conv_caps, class_caps),
        decoder=ConvolutionalDecoder(96, (channels, *image_size)) if reconstruction else None,
        image_size=image_size,
        channels=channels,
        classes=classes,
    )


@with_both_init_nets
def forslov2018_emnet1(
    init: InitNet,
    *,
    image_size: tuple[int, int] = (224, 224),
    channels: int = 3,
    classes: tuple[str, ...] = CELLS,
    routing: Routing = THESIS_EM,
    pose_elements: int = 16,
    standardise: bool = True,
    batch_norm: bool = False,
    reconstruction: bool = False,
) -> CapsuleClassifier:
    """EM-NET 1 behind INIT-NET n (Figure 28): 32 types of matrix capsules on 6×6, routed by EM to the classes.

    One weight a type and class, shared over positions, and coordinate addition; 349,184 + 512·|C| weights behind the
    INIT-NET with 4×4 poses.

    Args:
        image_size: (height, width), at least 64×64; below 224 on the shorter side, images are enlarged to it.
        channels: of the image.
        classes: their names; at least three, where costs are standardised.
        routing: of all routed layers; Algorithm 2, with λ rising from 1.0 to 2.85.
        pose_elements: 16 for 4×4 matrices, 9 for 3×3 (§7.5, for scenes in the plane).
        standardise, batch_norm: as for `forslov2018_capsnet1_init1`.
        reconstruction: with DECODER NET.
    """
    return _emnet(
        init, False, image_size, channels, classes, routing, pose_elements, standardise, batch_norm, reconstruction
    )


@with_both_init_nets
def forslov2018_emnet2(
    init: InitNet,
    *,
    image_size: tuple[int, int] = (224, 224),
    channels: int = 3,
    classes: tuple[str, ...] = CELLS,
    routing: Routing = THESIS_EM,
    pose_elements: int = 16,
    standardise: bool = True,
    batch_norm: bool = False,
    reconstruction: bool = False,
) -> CapsuleClassifier:
    """EM-NET 2 behind INIT-NET n (Figure 29): EM-NET 1 with a 3×3 capsule convolution, 32 types on 4×4, between.

    496,640 + 512·|C| weights behind the INIT-NET with 4×4 poses. Args as for `forslov2018_emnet1_init1`.
    """
    return _emnet(
        init, True, image_size, channels, classes, routing, pose_elements, standardise, batch_norm, reconstruction
    )


def _emnet(
    init: InitNet,
    with_conv_caps: bool,
    image_size: tuple[int, int],
    channels: int,
    classes: tuple[str, ...],
    routing: Routing,
    pose_elements: int,
    standardise: bool,
    batch_norm: bool,
    reconstruction: bool,
) -> CapsuleClassifier:
    p = pose_elements
    backbone = init_net(init, image_size, channels, standardise, batch_norm)
    backbone.extend(convolution(INIT_CHANNELS, 32, 9, 2, batch_norm=batch_norm))
    conv_caps = [CapsuleConv2d(32, p, 32, p, 3, pose="matrix", routing=routing)] if with_conv_caps else []
    convolutions = [(9, 2), *([(3, 1)] if with_conv_caps else [])]
    # The map before the 9×9 convolution stands for the image; padding moves its cells by half of one at most.
    offset = coordinate_addition(receptive_field_centres(halved_size(image_size), [(9, 1), *convolutions]), p)
    grid = grid_behind(image_size, *convolutions)
    class_caps = DenseCapsules(
        grid, 32, p, len(classes), p, tied=True, pose="matrix", vote_offset=offset, routing=routing
    )
    return CapsuleClassifier(
        backbone=backbone,
        primary=MatrixPrimaryCapsules(32, 32, p),
        capsule_layers=nn.Sequential(*conv_caps, class_caps),
        decoder=ConvolutionalDecoder(p, (channels, *image_size)) if reconstruction else None,
        image_size=image_size,
        channels=channels,
        classes=classes,
    )


@with_both_init_nets
def forslov2018_cnnnet1(
    init: InitNet,
    *,
    image_size: tuple[int, int] = (224, 224),
    channels: int = 3,
    classes: tuple[str, ...] = CELLS,
    standardise: bool = True,
    batch_norm: bool = False,
    dropout: float = 0.5,
) -> ConvolutionalClassifier:
    """CNN-NET 1 behind INIT-NET n (Figure 23): dense layers 50–60; 2,563,000 + 60·|C| weights behind the INIT-NET.

    Args:
        image_size: (height, width), at least 64×64; below 224 on the shorter side, images are enlarged to it. Above,
            the first dense layer grows with the image.
        channels: of the image.
        classes: their names.
        standardise, batch_norm: as for `forslov2018_capsnet1_init1`.
        dropout: probability of zeroing an element after each hidden dense layer; the thesis gives no rate.
    """
    return _cnn(init, [], 50, 60, image_size, channels, classes, standardise, batch_norm, dropout)


@with_both_init_nets
def forslov2018_cnnnet2(
    init: InitNet,
    *,
    image_size: tuple[int, int] = (224, 224),
    channels: int = 3,
    classes: tuple[str, ...] = CELLS,
    standardise: bool = True,
    batch_norm: bool = False,
    dropout: float = 0.5,
) -> ConvolutionalClassifier:
    """CNN-NET 2 behind INIT-NET n (Figure 24): convolutions 9×9×512, 5×5×512, 3×3×96, dense layers 256–128.

    13,221,888 + 128·|C| weights behind the INIT-NET. Args as for `forslov2018_cnnnet1_init1`.
    """
    convolutions = [(512, 9, 1), (512, 5, 1), (96, 3, 1)]
    return _cnn(init, convolutions, 256, 128, image_size, channels, classes, standardise, batch_norm, dropout)


@with_both_init_nets
def forslov2018_cnnnet3(
    init: InitNet,
    *,
    image_size: tuple[int, int] = (224, 224),
    channels: int = 3,
    classes: tuple[str, ...] = CELLS,
    standardise: bool = True,
    batch_norm: bool = False,
    dropout: float = 0.5,
) -> ConvolutionalClassifier:
    """CNN-NET 3 behind INIT-NET n (Figure 25): convolutions 9×9×512 with stride 2 and 1×1×512, dense layers 256–256.

    10,354,688 + 256·|C| weights behind the INIT-NET. Args as for `forslov2018_cnnnet1_init1`.
    """
    convolutions = [(512, 9, 2), (512, 1, 1)]
    return _cnn(init, convolutions, 256, 256, image_size, channels, classes, standardise, batch_norm, dropout)


def _cnn(
    init: InitNet,
    convolutions: list[tuple[int, int, int]],
    wide: int,
    narrow: int,
    image_size: tuple[int, int],
    channels: int,
    classes: tuple[str, ...],
    standardise: bool,
    batch_norm: bool,
    dropout: float,
) -> ConvolutionalClassifier:
    """`convolutions` as (channels, kernel, stride), then two hidden dense layers."""
    network = init_net(init, image_size, channels, standardise, batch_norm)
    features = INIT_CHANNELS
    for after, kernel, stride in convolutions:
        network.extend(convolution(features, after, kernel, stride, batch_norm=batch_norm))
        features = after
    rows, columns = grid_behind(image_size, *((kernel, stride) for _, kernel, stride in convolutions))
    network.extend([nn.Flatten(), nn.Linear(features * rows * columns, wide), nn.ReLU(), nn.Dropout(dropout)])
    network.extend([nn.Linear(wide, narrow), nn.ReLU(), nn.Dropout(dropout), nn.Linear(narrow, len(classes))])
    return ConvolutionalClassifier(network, image_size=image_size, channels=channels, classes=classes)

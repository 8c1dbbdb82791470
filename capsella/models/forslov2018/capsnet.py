"""CAPSNET 1 and 2 of Forslöv's thesis (2018): dynamic routing of 224×224 images of white blood cells.

Table 2 counts weights without biases; the counts here do the same. docs/papers/forslov2018.md says what the text
leaves open.
"""

from torch import nn

from capsella.layers import CapsuleConv2d, ConvolutionalDecoder, DenseCapsules, PrimaryCapsules, start_for_relus
from capsella.models.base import register_model
from capsella.models.classifiers import CapsuleClassifier
from capsella.models.forslov2018.parts import CELLS, INIT_CHANNELS, Front, grid_behind, init_net
from capsella.routing import DynamicRouting, Routing


@register_model
def forslov2018_capsnet1_init1(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    routing: Routing = DynamicRouting(iterations=3), standardise: bool = True, batch_norm: bool = False,
    he_primary: bool = False, class_weight_sd: float = 0.1, reconstruction: bool = False,
) -> CapsuleClassifier:  # fmt: skip
    """CAPSNET 1 behind INIT-NET 1 (Figure 26): 64 types of 8-D capsules on 6×6, routed to 96-D class capsules.

    One weight a type and class, shared over positions; 5,308,416 + 49,152·|C| weights behind the INIT-NET.

    Args:
        image_size: (height, width), at least 64×64; below 224 on the shorter side, images are enlarged to it.
        channels: of the image, 1 for grey, 3 for RGB.
        classes: their names.
        routing: of all routed layers; 3 iterations (§6.5).
        standardise: bring each image to zero mean and unit variance first, which the thesis does not say.
        batch_norm: batch normalisation between each convolution and its ReLU; the thesis has none.
        he_primary: draw the primary capsules' weights as He et al. 2015 do for ReLUs, 2.4 times as wide as PyTorch.
        class_weight_sd: of the class capsules' first weights. At 0.1 those of CAPSNET 1 start 0.999 long.
        reconstruction: with DECODER NET.
    """
    front = Front(1, image_size, channels, standardise, batch_norm)
    return _capsnet(front, classes, routing, he_primary, class_weight_sd, reconstruction)


@register_model
def forslov2018_capsnet1_init2(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    routing: Routing = DynamicRouting(iterations=3), standardise: bool = True, batch_norm: bool = False,
    he_primary: bool = False, class_weight_sd: float = 0.1, reconstruction: bool = False,
) -> CapsuleClassifier:  # fmt: skip
    """As `forslov2018_capsnet1_init1`, behind INIT-NET 2."""
    front = Front(2, image_size, channels, standardise, batch_norm)
    return _capsnet(front, classes, routing, he_primary, class_weight_sd, reconstruction)


@register_model
def forslov2018_capsnet2_init1(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    routing: Routing = DynamicRouting(iterations=3), standardise: bool = True, batch_norm: bool = False,
    he_primary: bool = False, conv_weight_sd: float = 0.1, class_weight_sd: float = 0.1, reconstruction: bool = False,
) -> CapsuleClassifier:  # fmt: skip
    """CAPSNET 2 behind INIT-NET 1 (Figure 27): CAPSNET 1 with a 3×3 capsule convolution, 64 types on 4×4, between.

    7,667,712 + 49,152·|C| weights behind the INIT-NET. Args as for `forslov2018_capsnet1_init1`, and

    Args:
        conv_weight_sd: of the first weights of the capsule convolution. At 0.1 class capsules start 0.02 long.
    """
    front = Front(1, image_size, channels, standardise, batch_norm)
    return _capsnet(front, classes, routing, he_primary, class_weight_sd, reconstruction, conv_weight_sd)


@register_model
def forslov2018_capsnet2_init2(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    routing: Routing = DynamicRouting(iterations=3), standardise: bool = True, batch_norm: bool = False,
    he_primary: bool = False, conv_weight_sd: float = 0.1, class_weight_sd: float = 0.1, reconstruction: bool = False,
) -> CapsuleClassifier:  # fmt: skip
    """As `forslov2018_capsnet2_init1`, behind INIT-NET 2."""
    front = Front(2, image_size, channels, standardise, batch_norm)
    return _capsnet(front, classes, routing, he_primary, class_weight_sd, reconstruction, conv_weight_sd)


def _capsnet(
    front: Front,
    classes: tuple[str, ...],
    routing: Routing,
    he_primary: bool,
    class_weight_sd: float,
    reconstruction: bool,
    conv_weight_sd: float | None = None,
) -> CapsuleClassifier:
    """`conv_weight_sd`: None without the capsule convolution."""
    backbone = init_net(*front)
    conv_caps = (
        [] if conv_weight_sd is None else [CapsuleConv2d(64, 8, 64, 8, 3, weight_sd=conv_weight_sd, routing=routing)]
    )
    grid = grid_behind(front.image_size, (9, 2), *([(3, 1)] if conv_caps else []))
    class_caps = DenseCapsules(grid, 64, 8, len(classes), 96, tied=True, weight_sd=class_weight_sd, routing=routing)
    primary = PrimaryCapsules(INIT_CHANNELS, types=64, pose=8, kernel=9, stride=2, activation="relu")
    if he_primary:
        start_for_relus(primary)
    return CapsuleClassifier(
        backbone=backbone,
        primary=primary,
        capsule_layers=nn.Sequential(*conv_caps, class_caps),
        decoder=ConvolutionalDecoder(96, (front.channels, *front.image_size)) if reconstruction else None,
        image_size=front.image_size,
        channels=front.channels,
        classes=classes,
    )

"""EM-NET 1 and 2 of Forslöv's thesis (2018): EM routing of 224×224 images of white blood cells.

Table 2 counts weights without biases; the counts here do the same. docs/papers/forslov2018.md says what the text
leaves open.
"""

from torch import nn

from capsella.errors import check_minimum
from capsella.layers import (
    CapsuleConv2d,
    ConvolutionalDecoder,
    DenseCapsules,
    MatrixPrimaryCapsules,
    coordinate_addition,
    receptive_field_centres,
)
from capsella.models.base import register_model
from capsella.models.classifiers import CapsuleClassifier
from capsella.models.forslov2018.parts import (
    CELLS,
    Front,
    convolution,
    grid_behind,
    halved_size,
    init_net,
)
from capsella.routing import EMRouting, Routing

# Algorithm 2: the types at one position compete, their costs are standardised; λ = 1.0, 1.95, 2.85.
THESIS_EM = EMRouting(iterations=3, competition="types", standardise_costs=True, inverse_temperature=20.0)


@register_model
def forslov2018_emnet1_init1(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    routing: Routing = THESIS_EM, pose_elements: int = 16, standardise: bool = True, batch_norm: bool = False,
    reconstruction: bool = False, types: int = 32, stem_width: int = 32, front_width: int = 128, caps_width: int = 32,
    kernel: int = 9,
) -> CapsuleClassifier:  # fmt: skip
    """EM-NET 1 behind INIT-NET 1 (Figure 28): 32 types of matrix capsules on 6×6, routed by EM to the classes.

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
        types: of capsules below the classes'; the thesis's is 32, as the other numbers here.
        stem_width: channels of the INIT-NET's convolutions before the last.
        front_width: channels that the INIT-NET ends with.
        caps_width: channels before the first capsules.
        kernel: of the INIT-NET's last convolution and of the one before the capsules; a smaller one leaves a larger
            grid to route on.
    """
    front = Front(1, image_size, channels, standardise, batch_norm, stem_width, front_width, kernel)
    return _emnet(front, False, classes, routing, pose_elements, reconstruction, types, caps_width)


@register_model
def forslov2018_emnet1_init2(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    routing: Routing = THESIS_EM, pose_elements: int = 16, standardise: bool = True, batch_norm: bool = False,
    reconstruction: bool = False, types: int = 32, stem_width: int = 32, front_width: int = 128, caps_width: int = 32,
    kernel: int = 9,
) -> CapsuleClassifier:  # fmt: skip
    """As `forslov2018_emnet1_init1`, behind INIT-NET 2."""
    front = Front(2, image_size, channels, standardise, batch_norm, stem_width, front_width, kernel)
    return _emnet(front, False, classes, routing, pose_elements, reconstruction, types, caps_width)


@register_model
def forslov2018_emnet2_init1(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    routing: Routing = THESIS_EM, pose_elements: int = 16, standardise: bool = True, batch_norm: bool = False,
    reconstruction: bool = False, types: int = 32, stem_width: int = 32, front_width: int = 128, caps_width: int = 32,
    kernel: int = 9,
) -> CapsuleClassifier:  # fmt: skip
    """EM-NET 2 behind INIT-NET 1 (Figure 29): EM-NET 1 with a 3×3 capsule convolution, 32 types on 4×4, between.

    496,640 + 512·|C| weights behind the INIT-NET with 4×4 poses. Args as for `forslov2018_emnet1_init1`.
    """
    front = Front(1, image_size, channels, standardise, batch_norm, stem_width, front_width, kernel)
    return _emnet(front, True, classes, routing, pose_elements, reconstruction, types, caps_width)


@register_model
def forslov2018_emnet2_init2(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = CELLS,
    routing: Routing = THESIS_EM, pose_elements: int = 16, standardise: bool = True, batch_norm: bool = False,
    reconstruction: bool = False, types: int = 32, stem_width: int = 32, front_width: int = 128, caps_width: int = 32,
    kernel: int = 9,
) -> CapsuleClassifier:  # fmt: skip
    """As `forslov2018_emnet2_init1`, behind INIT-NET 2."""
    front = Front(2, image_size, channels, standardise, batch_norm, stem_width, front_width, kernel)
    return _emnet(front, True, classes, routing, pose_elements, reconstruction, types, caps_width)


def _emnet(
    front: Front, with_conv_caps: bool, classes: tuple[str, ...], routing: Routing, p: int, reconstruction: bool,
    types: int, caps_width: int,
) -> CapsuleClassifier:  # fmt: skip
    """`p`: pose elements."""
    check_minimum(1, types=types, caps_width=caps_width)
    kernel = front.kernel
    backbone = init_net(*front)
    backbone.extend(convolution(front.front_width, caps_width, kernel, 2, batch_norm=front.batch_norm))
    conv_caps = [CapsuleConv2d(types, p, types, p, 3, pose="matrix", routing=routing)] if with_conv_caps else []
    convolutions = [(kernel, 2), *([(3, 1)] if with_conv_caps else [])]
    # The map before the INIT-NET's last convolution stands for the image; padding moves its cells by half of one.
    offset = coordinate_addition(
        receptive_field_centres(halved_size(front.image_size), [(kernel, 1), *convolutions]), p
    )
    grid = grid_behind(front.image_size, *convolutions, kernel=kernel)
    class_caps = DenseCapsules(
        grid, types, p, len(classes), p, tied=True, pose="matrix", vote_offset=offset, routing=routing
    )
    return CapsuleClassifier(
        backbone=backbone,
        primary=MatrixPrimaryCapsules(caps_width, types, p),
        capsule_layers=nn.Sequential(*conv_caps, class_caps),
        decoder=ConvolutionalDecoder(p, (front.channels, *front.image_size)) if reconstruction else None,
        image_size=front.image_size,
        channels=front.channels,
        classes=classes,
    )

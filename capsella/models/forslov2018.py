"""The fourteen networks of Forslöv's thesis (2018): seven heads, each after one of two INIT-NETs.

Table 2 counts weights without biases, and so do the counts here. docs/papers/forslov2018.md lists what the thesis
leaves open.
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import ArgumentError, check_minimum
from capsella.layers import (
    CapsuleConv2d,
    ConvolutionalDecoder,
    DenseCapsules,
    EnlargeImages,
    FastConv2d,
    MatrixPrimaryCapsules,
    PrimaryCapsules,
    StandardiseImages,
    coordinate_addition,
    he_init_,
    receptive_field_centres,
)
from capsella.models.base import ImageClassifier, grid_after, register_variant
from capsella.models.classifiers import CapsuleClassifier, ConvolutionalClassifier
from capsella.routing import DynamicRouting, EMRouting, Routing

InitNet = Literal[1, 2]
# The classes of Table 1: "basic" has the first five, "medium" the first ten, "hard" all.
CELLS = (
    "Segmented Neutrophil",
    "Eosinophil",
    "Basophil",
    "Lymphocyte",
    "Monocyte",
    "Erythroblast",
    "Giant Thrombocyte",
    "Blast",
    "Smudge Cell",
    "Artefact",
    "Thrombocyte Aggregation",
    "Band Neutrophil",
    "Myelocyte",
    "Metamyelocyte",
    "Plasma Cell",
)
SMALLEST_SIZE, PUBLISHED_SIZE = 64, 224
INIT_CHANNELS = 128  # at the end of an INIT-NET
# Algorithm 2: the types at one position compete, their costs are standardised; λ = 1.0, 1.95, 2.85.
THESIS_EM = EMRouting(iterations=3, competition="types", standardise_costs=True, inverse_temperature=20.0)
# Convolutions after the INIT-NET as (channels, kernel, stride), and the widths of the two hidden dense layers.
CNN_NETS: dict[str, tuple[tuple[tuple[int, int, int], ...], tuple[int, int]]] = {
    "cnnnet1": ((), (50, 60)),
    "cnnnet2": (((512, 9, 1), (512, 5, 1), (96, 3, 1)), (256, 128)),
    "cnnnet3": (((512, 9, 2), (512, 1, 1)), (256, 256)),
}


def init_net(
    init: InitNet,
    image_size: tuple[int, int],
    channels: int,
    standardise: bool,
    batch_norm: bool = False,
    *,
    stem_width: int = 32,
    front_width: int = INIT_CHANNELS,
    kernel: int = 9,
) -> nn.Sequential:
    """Return the layers from images to feature maps [b 128 rows columns]: 20×20 for 224×224 (Figures 21, 22, Table 2).

    The text gives no strides; these fit Table 2's kernels and 20×20×128 at the end. INIT-NET 1 has 5×5×3 with stride 2,
    2×2 max-pool, 5×5×32, 2×2 max-pool. In place of the pools, INIT-NET 2 has 5×5 convolutions with stride 2, of 3 and
    of 32 channels. Both halve the sides three times, to 28×28, with zeros around the maps, and end with an unpadded
    9×9×128. A ReLU follows each convolution and its pool; with `batch_norm`, batch normalisation precedes it.

    `stem_width`, `front_width` and `kernel` replace the figures' 32 and 128 channels and the last 9×9 kernel.

    Raises:
        ArgumentError: an image below 64×64, or a width or kernel below 1.
    """
    check_minimum(1, stem_width=stem_width, front_width=front_width, kernel=kernel)
    if min(image_size) < SMALLEST_SIZE:
        rule = f"be at least {SMALLEST_SIZE}×{SMALLEST_SIZE} for the networks of the thesis"
        raise ArgumentError("image_size", rule, image_size, shown="×".join(map(str, image_size)))

    def same(before: int, after: int, stride: int) -> list[nn.Module]:
        return _convolution(before, after, 5, stride, padding=2, batch_norm=batch_norm)

    if init == 1:
        halvings = [*_pooled(same(channels, 3, 2)), *_pooled(same(3, stem_width, 1))]
    else:
        wide = [*same(3, stem_width, 1), *same(stem_width, stem_width, 2)]
        halvings = [*same(channels, 3, 2), *same(3, 3, 2), *wide]
    prepare = [StandardiseImages() if standardise else nn.Identity(), EnlargeImages(image_size, PUBLISHED_SIZE)]
    last = _convolution(stem_width, front_width, kernel, batch_norm=batch_norm)
    net = nn.Sequential(*prepare, *halvings, *last, _ChannelsFirst())
    he_init_(net)
    # On a CPU, PyTorch pools 32 maps four times as fast with channels last, and these convolutions are no slower. The
    # wider convolutions after the INIT-NET would be slower.
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net


def halved_size(image_size: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of the map before the last convolution of an INIT-NET.

    >>> halved_size((224, 224)), halved_size((64, 128)), halved_size((300, 260))
    ((28, 28), (28, 56), (38, 33))
    """
    rows, columns = (-(-n // 8) for n in EnlargeImages(image_size, PUBLISHED_SIZE).size)
    return rows, columns


def grid_after_init(image_size: tuple[int, int], *convolutions: tuple[int, int], kernel: int = 9) -> tuple[int, int]:
    """Return rows and columns after an INIT-NET whose last kernel is `kernel`, and then unpadded convolutions.

    Convolutions are given as (kernel, stride).

    >>> grid_after_init((224, 224)), grid_after_init((224, 224), (9, 2), (3, 1))
    ((20, 20), (4, 4))
    """
    return grid_after(halved_size(image_size), [(kernel, 1), *convolutions])


def _convolution(
    before: int, after: int, kernel: int, stride: int = 1, *, padding: int = 0, batch_norm: bool
) -> list[nn.Module]:
    norm = [nn.BatchNorm2d(after)] if batch_norm else []
    return [FastConv2d(before, after, kernel, stride, padding), *norm, nn.ReLU()]


def _pooled(layers: list[nn.Module]) -> list[nn.Module]:
    """Insert a max-pool before the ReLU at the end of `layers`, which then has a quarter of the work."""
    *before, relu = layers
    return [*before, nn.MaxPool2d(2, ceil_mode=True), relu]  # output size ⌈n / 2⌉, as for the strided convolutions


class _ChannelsFirst(nn.Module):
    """A layer that makes maps stored channels last contiguous.

    Shapes: [b c h w] → [b c h w].
    """

    def forward(self, maps: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Copy maps that are not contiguous."""
        return maps.contiguous()


def _cnn_net(
    head: str,
    init: InitNet,
    *,
    image_size: tuple[int, int] = (224, 224),
    channels: int = 3,
    classes: tuple[str, ...] = CELLS,
    standardise: bool = True,
    batch_norm: bool = False,
    dropout: float = 0.5,
) -> ConvolutionalClassifier:
    """Build a CNN-NET.

    Args:
        image_size: (height, width), at least 64×64. Images with a shorter side below 224 are enlarged to it; for larger
            ones, the first dense layer grows with the image.
        standardise: bring each image to zero mean and unit variance first; the thesis does not mention it.
        batch_norm: batch normalisation between each convolution and its ReLU; the thesis has none.
        dropout: probability of zeroing an element after each hidden dense layer; the thesis gives no rate.
    """
    convolutions, (wide, narrow) = CNN_NETS[head]
    network = init_net(init, image_size, channels, standardise, batch_norm)
    width = INIT_CHANNELS
    for after, kernel, stride in convolutions:
        network.extend(_convolution(width, after, kernel, stride, batch_norm=batch_norm))
        width = after
    rows, columns = grid_after_init(image_size, *((kernel, stride) for _, kernel, stride in convolutions))
    network.extend([nn.Flatten(), nn.Linear(width * rows * columns, wide), nn.ReLU(), nn.Dropout(dropout)])
    network.extend([nn.Linear(wide, narrow), nn.ReLU(), nn.Dropout(dropout), nn.Linear(narrow, len(classes))])
    return ConvolutionalClassifier(network)


def _capsnet(
    head: str,
    init: InitNet,
    *,
    image_size: tuple[int, int] = (224, 224),
    channels: int = 3,
    classes: tuple[str, ...] = CELLS,
    routing: Routing = DynamicRouting(iterations=3),
    standardise: bool = True,
    batch_norm: bool = False,
    he_primary: bool = False,
    conv_weight_sd: float = 0.1,
    class_weight_sd: float = 0.1,
    reconstruction: bool = False,
) -> CapsuleClassifier:
    """Build a CAPSNET.

    Args:
        image_size: (height, width), at least 64×64; images below 224 on the shorter side are enlarged to it.
        routing: routing of all routed layers; 3 iterations in the thesis (§6.5).
        standardise: bring each image to zero mean and unit variance first; the thesis does not mention it.
        batch_norm: batch normalisation between each convolution and its ReLU; the thesis has none.
        he_primary: initialise the primary capsules' weights as He et al. 2015 for ReLUs, 2.4 times as wide as PyTorch.
        conv_weight_sd: standard deviation of the capsule convolution's initial weights. With 0.1, class capsules are at
            first 0.02 long.
        class_weight_sd: standard deviation of the class capsules' initial weights. With 0.1, those of CAPSNET 1 are at
            first 0.999 long.
        reconstruction: add DECODER NET.
    """
    backbone = init_net(init, image_size, channels, standardise, batch_norm)
    between = [CapsuleConv2d(64, 8, 64, 8, 3, weight_sd=conv_weight_sd, routing=routing)] if head == "capsnet2" else []
    grid = grid_after_init(image_size, (9, 2), *([(3, 1)] if between else []))
    last = DenseCapsules(grid, 64, 8, len(classes), 96, tied=True, weight_sd=class_weight_sd, routing=routing)
    primary = PrimaryCapsules(INIT_CHANNELS, types=64, pose=8, kernel=9, stride=2, activation="relu")
    if he_primary:
        he_init_(primary)
    return CapsuleClassifier(
        backbone=backbone,
        primary=primary,
        capsule_layers=nn.Sequential(*between, last),
        decoder=ConvolutionalDecoder(96, (channels, *image_size)) if reconstruction else None,
    )


def _em_net(
    head: str,
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
    types: int = 32,
    stem_width: int = 32,
    front_width: int = INIT_CHANNELS,
    caps_width: int = 32,
    kernel: int = 9,
) -> CapsuleClassifier:
    """Build an EM-NET.

    Args:
        image_size: (height, width), at least 64×64; images below 224 on the shorter side are enlarged to it.
        classes: names of the classes, at least three while costs are standardised.
        routing: routing of all routed layers; in the thesis Algorithm 2, with λ rising from 1.0 to 2.85.
        pose_elements: 16 for 4×4 matrices, 9 for 3×3 (§7.5, for planar scenes).
        standardise: bring each image to zero mean and unit variance first; the thesis does not mention it.
        batch_norm: batch normalisation between each convolution and its ReLU; the thesis has none.
        reconstruction: add DECODER NET.
        types: capsule types of all layers before the class capsules; 32 in the thesis.
        stem_width: channels of the INIT-NET's convolutions before the last.
        front_width: channels at the end of the INIT-NET.
        caps_width: channels of the convolution before the primary capsules.
        kernel: kernel size of the INIT-NET's last convolution and of the convolution before the primary capsules; a
            smaller kernel leaves a larger grid to route on.
    """
    check_minimum(1, types=types, caps_width=caps_width)
    p = pose_elements
    widths = {"stem_width": stem_width, "front_width": front_width, "kernel": kernel}
    backbone = init_net(init, image_size, channels, standardise, batch_norm, **widths)
    backbone.extend(_convolution(front_width, caps_width, kernel, 2, batch_norm=batch_norm))
    between = [CapsuleConv2d(types, p, types, p, 3, pose="matrix", routing=routing)] if head == "emnet2" else []
    convolutions = [(kernel, 2), *([(3, 1)] if between else [])]
    # Centres are computed on the map before the INIT-NET's last convolution; padding shifts its cells by half a cell.
    centres = receptive_field_centres(halved_size(image_size), [(kernel, 1), *convolutions])
    offset = coordinate_addition(centres, p)
    grid = grid_after_init(image_size, *convolutions, kernel=kernel)
    last = DenseCapsules(grid, types, p, len(classes), p, tied=True, pose="matrix", vote_offset=offset, routing=routing)
    return CapsuleClassifier(
        backbone=backbone,
        primary=MatrixPrimaryCapsules(caps_width, types, p),
        capsule_layers=nn.Sequential(*between, last),
        decoder=ConvolutionalDecoder(p, (channels, *image_size)) if reconstruction else None,
    )


# For each head: the function that builds it, the network's summary, and the function's options that it lacks.
HEADS: dict[str, tuple[Callable[..., ImageClassifier], str, tuple[str, ...]]] = {
    "cnnnet1": (_cnn_net, "CNN-NET 1 (Figure 23): dense layers 50–60; 2,563,000 + 60·|C| weights", ()),
    "cnnnet2": (
        _cnn_net,
        "CNN-NET 2 (Figure 24): convolutions 9×9×512, 5×5×512, 3×3×96, dense 256–128; 13,221,888 + 128·|C| weights",
        (),
    ),
    "cnnnet3": (
        _cnn_net,
        "CNN-NET 3 (Figure 25): convolutions 9×9×512, stride 2, 1×1×512, dense 256–256; 10,354,688 + 256·|C| weights",
        (),
    ),
    "capsnet1": (
        _capsnet,
        "CAPSNET 1 (Figure 26): 64 types of 8-D capsules on 6×6, routed to 96-D class capsules with one weight for "
        "each type and class; 5,308,416 + 49,152·|C| weights",
        ("conv_weight_sd",),
    ),
    "capsnet2": (
        _capsnet,
        "CAPSNET 2 (Figure 27): CAPSNET 1 with a 3×3 capsule convolution in between; 7,667,712 + 49,152·|C| weights",
        (),
    ),
    "emnet1": (
        _em_net,
        "EM-NET 1 (Figure 28): 32 types of matrix capsules on 6×6, routed by EM to the classes with one weight for "
        "each type and class, and coordinate addition; 349,184 + 512·|C| weights",
        (),
    ),
    "emnet2": (
        _em_net,
        "EM-NET 2 (Figure 29): EM-NET 1 with a 3×3 capsule convolution in between; 496,640 + 512·|C| weights",
        (),
    ),
}
for _head, (_build, _summary, _lacks) in HEADS.items():
    for _init in (1, 2):
        _name = f"forslov2018_{_head}_init{_init}"
        register_variant(_name, f"{_summary} after INIT-NET {_init}.", _build, _head, _init, without=_lacks)

"""What the networks of Forslöv's thesis (2018) share: the INIT-NETs in front, and the names of the classes."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import ArgumentError, check_minimum
from capsella.layers import EnlargeImages, LargeConv2d, StandardiseImages, start_for_relus
from capsella.models.shapes import grid_after

InitNet = Literal[1, 2]

# Table 1: basic has the first five classes, medium the first ten, hard all.
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
LEAST_SIZE, PUBLISHED_SIZE = 64, 224
# Channels that an INIT-NET ends with.
INIT_CHANNELS = 128


class Front(NamedTuple):
    """What stands before each of the networks: the arguments of `init_net`."""

    init: InitNet
    image_size: tuple[int, int]
    channels: int
    standardise: bool
    batch_norm: bool
    stem_width: int = 32
    front_width: int = INIT_CHANNELS
    kernel: int = 9


def init_net(
    init: InitNet, image_size: tuple[int, int], channels: int, standardise: bool, batch_norm: bool = False,
    stem_width: int = 32, front_width: int = INIT_CHANNELS, kernel: int = 9,
) -> nn.Sequential:  # fmt: skip
    """Images to feature maps [b 128 rows columns]: 20×20 from 224×224 (Figures 21 and 22, Table 2).

    The figures' strides are not in the text; Table 2's kernels, and 20×20×128 at the end, fit these. INIT-NET 1: 5×5×3
    with stride 2, 2×2 max-pool, 5×5×32, 2×2 max-pool. INIT-NET 2 has a 5×5 convolution with stride 2, of 3 and of 32
    channels, for each pool. Both halve the sides three times, to 28×28, with zeros around the maps, and end with an
    unpadded 9×9×128. A ReLU follows each convolution and its pool, where asked for behind batch normalisation.

    `stem_width`, `front_width`, `kernel`: in place of the figures' 32 and 128 channels and of the last 9×9.

    Raises:
        ValueError: an image below 64×64, or a width or kernel below 1.
    """
    check_minimum(1, stem_width=stem_width, front_width=front_width, kernel=kernel)
    if min(image_size) < LEAST_SIZE:
        height, width = image_size
        rule = f"be at least {LEAST_SIZE}×{LEAST_SIZE} for the networks of the thesis"
        raise ArgumentError("image_size", rule, image_size, shown=f"{height}×{width}")

    def same(before: int, after: int, stride: int) -> list[nn.Module]:
        return convolution(before, after, 5, stride, padding=2, batch_norm=batch_norm)

    if init == 1:
        halvings = [*_pooled(*same(channels, 3, 2)), *_pooled(*same(3, stem_width, 1))]
    else:
        wide = [*same(3, stem_width, 1), *same(stem_width, stem_width, 2)]
        halvings = [*same(channels, 3, 2), *same(3, 3, 2), *wide]
    prepare = [StandardiseImages() if standardise else nn.Identity(), EnlargeImages(image_size, PUBLISHED_SIZE)]
    last = convolution(stem_width, front_width, kernel, batch_norm=batch_norm)
    net = nn.Sequential(*prepare, *halvings, *last, _ChannelsFirst())
    start_for_relus(net)
    # On a CPU, PyTorch pools 32 maps four times as fast with channels last, and these convolutions are no slower; the
    # wider ones behind them are.
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net


def halved_size(image_size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the map that covers the image before the 9×9 convolution of an INIT-NET.

    >>> halved_size((224, 224)), halved_size((64, 128)), halved_size((300, 260))
    ((28, 28), (28, 56), (38, 33))
    """
    rows, columns = (-(-n // 8) for n in EnlargeImages(image_size, PUBLISHED_SIZE).size)
    return rows, columns


def grid_behind(image_size: tuple[int, int], *convolutions: tuple[int, int], kernel: int = 9) -> tuple[int, int]:
    """Rows and columns after an INIT-NET, whose last kernel this is, and unpadded convolutions as (kernel, stride).

    >>> grid_behind((224, 224)), grid_behind((224, 224), (9, 2)), grid_behind((224, 224), (9, 2), (3, 1))
    ((20, 20), (6, 6), (4, 4))
    """
    return grid_after(halved_size(image_size), [(kernel, 1), *convolutions])


def convolution(
    before: int, after: int, kernel: int, stride: int = 1, *, padding: int = 0, batch_norm: bool
) -> list[nn.Module]:
    """A convolution and its ReLU, with batch normalisation between them where asked for."""
    norm = [nn.BatchNorm2d(after)] if batch_norm else []
    return [LargeConv2d(before, after, kernel, stride, padding), *norm, nn.ReLU()]


def _pooled(*layers: nn.Module) -> list[nn.Module]:
    """Layers and a pool behind them; a ReLU at their end comes last, where it has a quarter of the work."""
    *before, relu = layers
    return [*before, nn.MaxPool2d(2, ceil_mode=True), relu]  # ⌈n / 2⌉, as the strided convolutions


class _ChannelsFirst(nn.Module):
    """Maps that are stored channels last to contiguous ones.

    Shapes: [b c h w] → [b c h w].
    """

    def forward(self, maps: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Copy what is not contiguous."""
        return maps.contiguous()

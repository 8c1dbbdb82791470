"""A small residual network, as a modern CNN baseline for capsule networks."""

from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import check_minimum
from capsella.models.base import grid_after, register_model
from capsella.models.classifiers import ConvolutionalClassifier
from capsella.models.forslov2018 import CELLS

HALVED_FROM = 64  # pixels on the shorter side; the first convolution halves larger images, as in Table 1


class ResidualBlock(nn.Module):
    """Two normalised 3×3 convolutions whose output is added to their input (He et al. 2016, Figure 2 and §3.4).

    Shapes: [b channels_in h w] → [b channels_out ⌈h/stride⌉ ⌈w/stride⌉]. If these differ, the shortcut is a 1×1
    convolution (option B), or a `PaddedShortcut` without `projection` (option A).
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int, projection: bool = True) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module
        if (channels_in, stride) == (channels_out, 1):
            self.shortcut = nn.Identity()
        elif projection:
            convolution = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(channels_out))
        else:
            self.shortcut = PaddedShortcut(channels_in, channels_out, stride)

    def forward(self, x: Float[Tensor, "b channels_in h w"]) -> Float[Tensor, "b channels_out rows columns"]:
        """Return the ReLU of the sum."""
        added: Tensor = self.shortcut(x) + self.residual(x)
        return added.relu()


class PaddedShortcut(nn.Module):
    """A shortcut without weights: every `stride`-th pixel, padded with channels of zeros (He et al. 2016, option A).

    Shapes: [b channels_in h w] → [b channels_out ⌈h/stride⌉ ⌈w/stride⌉], channels_out ≥ channels_in.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        missing = channels_out - channels_in
        self.before, self.after, self.stride = missing // 2, missing - missing // 2, stride

    def forward(self, x: Float[Tensor, "b channels_in h w"]) -> Float[Tensor, "b channels_out rows columns"]:
        """Subsample and pad."""
        return nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


@register_model
def he2016_resnet10(
    *,
    image_size: tuple[int, int] = (224, 224),
    channels: int = 3,
    classes: tuple[str, ...] = CELLS,
    width: int = 24,
    pool_from: int = 64,
    dropout: float = 0.0,
) -> ConvolutionalClassifier:
    """Residual network of ten layers with about as many parameters as EM-NET 1: 694,397 at 224×224×3 and 5 classes.

    It follows He, Zhang, Ren, Sun 2016, "Deep Residual Learning", Table 1, but has one block in each of the four stages
    and `width`, 2, 4 and 8 × `width` channels instead of 64 to 512. As in the paper's §4.2 for CIFAR-10, images below
    64 pixels are not halved before the first block.

    Args:
        image_size: (height, width), at least 8×8.
        width: channels of the first stage.
        pool_from: max pooling halves the maps again before the first block, as in Table 1, if the shorter side has at
            least this many pixels.
        dropout: probability of zeroing a channel's mean before the last layer; the paper has none.

    Raises:
        ArgumentError: `width` or `pool_from` below 1, or an image too small for the halvings.
    """
    check_minimum(1, width=width, pool_from=pool_from)
    halves, pools = min(image_size) >= HALVED_FROM, min(image_size) >= pool_from
    grid_after(image_size, [(2, 2)] * (3 + halves + pools))  # each of the last three stages halves the maps, too
    network = nn.Sequential(
        *_first_layers(halves, pools, channels, width),
        ResidualBlock(width, width, 1),
        ResidualBlock(width, 2 * width, 2),
        ResidualBlock(2 * width, 4 * width, 2),
        ResidualBlock(4 * width, 8 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(8 * width, len(classes)),
    )
    return ConvolutionalClassifier(network)


def _first_layers(halves: bool, pools: bool, channels: int, width: int) -> list[nn.Module]:
    """Return the layers before the first block."""
    kernel, stride = (7, 2) if halves else (3, 1)
    convolution = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
    pooling = [nn.MaxPool2d(3, 2, padding=1)] if pools else []
    return [convolution, nn.BatchNorm2d(width), nn.ReLU(), *pooling]

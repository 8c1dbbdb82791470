"""Layers after class capsules: decoders to images, and logits for networks whose classes compete in a softmax."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import product
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from capsella.errors import check_argument
from capsella.layers.fast_convolution import fast_conv2d
from capsella.layers.norms import he_init_
from capsella.types import Capsules, at_least_float32

FIRST_MAP = 30  # rows and columns of the first map of DECODER NET: its 2,700 numbers are 30·30·3
LEAST_ACTIVATION = 1e-12  # smaller activations count as this, so that their logarithm stays finite


def mask_all_but(capsules: Capsules, target: Int[Tensor, " b"]) -> Float[Tensor, "b 1 1 classes d"]:
    """Return class poses with those of all classes except each image's `target` set to zero ([S] §4.1).

    Raises:
        ValueError: not one target per image.
    """
    poses = capsules.poses
    if target.shape != poses.shape[:1]:
        raise ValueError(f"target: must be one class per image [b] = ({len(poses)},), got shape {tuple(target.shape)}")
    keep = torch.nn.functional.one_hot(target.long(), poses.shape[3]).to(poses)
    return poses * keep[:, None, None, :, None]


class DenseDecoder(nn.Module):
    """The fully connected decoder 512–1024–pixels with ReLU, ReLU and sigmoid (Sabour et al. 2017, Figure 2).

    Shapes: class poses [b 1 1 classes d], masked → images [b channels height width] in [0, 1].
    """

    def __init__(
        self, classes: int, pose: int, image: tuple[int, int, int], hidden: Sequence[int] = (512, 1024)
    ) -> None:
        super().__init__()
        channels, height, width = image
        widths = [classes * pose, *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in zip(widths[:-1], widths[1:], strict=True):
            layers += [nn.Linear(before, after), nn.ReLU()]
        layers += [nn.Linear(widths[-1], channels * height * width), nn.Sigmoid(), nn.Unflatten(1, image)]
        self.layers = nn.Sequential(*layers)

    def forward(self, poses: Float[Tensor, "b 1 1 classes d"]) -> Float[Tensor, "b channels height width"]:
        """Turn masked class poses into images."""
        images: Tensor = self.layers(poses.to(cast(nn.Linear, self.layers[1]).weight.dtype))
        return images


class ConvolutionalDecoder(nn.Module):
    """DECODER NET: dense 675–2700, then convolutions with nearest-neighbour upsizing between (Forslöv 2018, Fig. 30).

    2,700 numbers are reshaped to a map of 3 channels, 30×30. Three 6×6 convolutions with ReLU follow. After each, the
    map is upsized: to a quarter of the image's sides (never below 30), to half of them, and to the image. A 7×7
    convolution and a sigmoid come last. Zeros around the maps keep their size. An upsizing and the convolution after it
    are one layer, see `UpsizedConv2d`.

    The input is one capsule: the figure says "one capsule at the output layer", and Table 2's 675·CT weights leave room
    for no more. That capsule is the sum over the classes, of which all but one are masked.

    The text does not give the sizes in the figure. Table 2 has 6·6·256·256 weights in the fifth layer, after 128
    channels from the fourth: a misprint, which is also in its total of 4,521,252 + 675·CT. Here the layer has
    6·6·128·256 weights, and the decoder 3,341,604 + 675·CT without biases, for 3-channel images.

    Shapes: class poses [b 1 1 classes d], masked → images [b channels height width] in [0, 1].

    Args:
        pose: d, the elements of a class pose.
        image: (channels, height, width), of at least 30×30.
        hidden: channels of the 6×6 convolutions.

    Raises:
        ValueError: a smaller image, or not three numbers in `hidden`.
    """

    def __init__(self, pose: int, image: tuple[int, int, int], hidden: Sequence[int] = (64, 128, 256)) -> None:
        super().__init__()
        channels, height, width = image
        if min(height, width) < FIRST_MAP:
            raise ValueError(f"image: must be at least {FIRST_MAP}×{FIRST_MAP} to decode to, got {height}×{width}")
        check_argument(len(hidden) == 3, "be three numbers of channels", hidden=tuple(hidden))
        quarter, half = ((max(FIRST_MAP, -(-height // part)), max(FIRST_MAP, -(-width // part))) for part in (4, 2))
        few, more, most = hidden
        layers: list[tuple[str, nn.Module]] = [
            ("0", nn.Linear(pose, 675)),
            ("1", nn.ReLU()),
            ("2", nn.Linear(675, 3 * FIRST_MAP**2)),
            ("3", nn.ReLU()),
            ("4", nn.Unflatten(1, (3, FIRST_MAP, FIRST_MAP))),
            ("5", nn.ZeroPad2d((2, 3, 2, 3))),
            ("6", nn.Conv2d(3, few, 6)),
            ("7", nn.ReLU()),
            ("10", UpsizedConv2d(few, more, 6, quarter)),
            ("11", nn.ReLU()),
            ("14", UpsizedConv2d(more, most, 6, half)),
            ("15", nn.ReLU()),
            ("17", UpsizedConv2d(most, channels, 7, (height, width))),
            ("18", nn.Sigmoid()),
        ]
        self.layers = nn.Sequential(OrderedDict(layers))  # numbered as if upsizings were separate layers
        he_init_(self.layers)

    def forward(self, poses: Float[Tensor, "b 1 1 classes d"]) -> Float[Tensor, "b channels height width"]:
        """Turn masked class poses into images."""
        images: Tensor = self.layers(poses.sum((1, 2, 3)).to(cast(nn.Linear, self.layers[0]).weight.dtype))
        return images.contiguous()


class LogActivations(nn.Module):
    """Logits ln a: their softmax is each activation's share of the sum, their cross-entropy −ln of the true class's.

    Shapes: Capsules(poses [b 1 1 classes d], activations [b 1 1 classes]) → [b classes].
    """

    def forward(self, capsules: Capsules) -> Float[Tensor, "b classes"]:
        """Return the logarithms of the activations."""
        return at_least_float32(capsules.activations[:, 0, 0]).clamp(min=LEAST_ACTIVATION).log()


class PoseScores(nn.Module):
    """Logits by one linear unit on the pose of each class capsule, shared by all classes.

    Shapes: Capsules(poses [b 1 1 classes d], activations [b 1 1 classes]) → [b classes].

    Args:
        pose: elements of each pose.
        bias: learn a number that is added to all scores, as the papers do. A softmax cancels it.
    """

    def __init__(self, pose: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(pose, 1, bias)

    def forward(self, capsules: Capsules) -> Float[Tensor, "b classes"]:
        """Return a score per class, in the dtype of the weights even under autocast."""
        poses = capsules.poses[:, 0, 0].to(self.linear.weight.dtype)
        with torch.autocast(poses.device.type, enabled=False):
            return cast(Tensor, self.linear(poses))[..., 0]


class UpsizedConv2d(nn.Conv2d):
    """Nearest-neighbour upsizing to `size`, zeros around the larger map that keep its size, and a convolution.

    At twice the size, neighbouring pixels of the larger map are equal, so several weights multiply the same number.
    Which ones do depends only on whether the output's row and column are even or odd. The layer then equals four small
    convolutions of the small map, one per parity, whose weights are sums of the large kernel's. A 6×6 kernel becomes
    3×3, 3×4, 4×3 and 4×4 (49 products instead of 144), a 7×7 kernel four of 4×4 (64 instead of 196).

    `weight` and `bias` are those of the large convolution, as in `torch.nn.Conv2d`.

    Shapes: maps [b in_channels h w] → [b out_channels *size].

    Args:
        in_channels: channels of the small map.
        out_channels: channels of the large map.
        kernel: rows and columns of the kernel; the odd one of an even kernel's zeros is at the lower right, as in
            TensorFlow.
        size: rows and columns of the larger map.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, size: tuple[int, int]) -> None:
        super().__init__(in_channels, out_channels, kernel)
        self.size, self.before, self.after = size, (kernel - 1) // 2, kernel // 2

    def forward(self, maps: Float[Tensor, "b c h w"]) -> Float[Tensor, "b out *size"]:
        """Upsize and convolve."""
        height, width = maps.shape[2:]
        maps = maps.contiguous(memory_format=torch.channels_last)
        if (2 * height, 2 * width) != self.size:
            zeros = (self.before, self.after, self.before, self.after)
            return super().forward(F.pad(_nearest(maps, self.size), zeros))
        parts = []
        for row, column in product((0, 1), (0, 1)):  # 0 is even, 1 is odd
            (top, rows), (left, columns) = self._taps(row), self._taps(column)
            kernel = torch.einsum("oiyx,yr,xc->oirc", self.weight, rows, columns)
            convolve = fast_conv2d if len(rows.T) == len(columns.T) else F.conv2d
            bottom, right = top + len(rows.T) - 1, left + len(columns.T) - 1
            parts.append(convolve(F.pad(maps, (-left, right, -top, bottom)), kernel, self.bias))
        return F.pixel_shuffle(torch.stack(parts, 2).flatten(1, 2), 2)

    def _taps(self, parity: int) -> tuple[int, Tensor]:
        """Return, for one axis, which places of the small map an output of this parity reads, and by which weights.

        The first result is the first of these places, relative to the output's place. The second, [kernel places], is
        1 where a weight of the kernel multiplies a place, else 0.
        """
        places = [(parity + k - self.before) // 2 for k in range(self.kernel_size[0])]
        meets = [[float(place == at) for at in range(places[0], places[-1] + 1)] for place in places]
        return places[0], torch.tensor(meets).to(self.weight)


def _nearest(maps: Float[Tensor, "b c h w"], size: tuple[int, int]) -> Tensor:
    """Interpolate by indices, because ONNX's Resize rounds some places to another neighbour than PyTorch does."""
    for axis, (before, after) in enumerate(zip(maps.shape[2:], size, strict=True), start=2):
        scale = np.float32(before / after)  # as PyTorch rounds
        places = [int(np.float32(place) * scale) for place in range(after)]
        maps = maps.index_select(axis, torch.tensor(places, device=maps.device))
    return maps.contiguous(memory_format=torch.channels_last)

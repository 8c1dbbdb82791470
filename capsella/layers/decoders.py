"""Decoders: from class capsules back to an image."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsella.errors import ArgumentError
from capsella.layers.initial_weights import start_for_relus
from capsella.layers.upsized import UpsizedConv2d
from capsella.types import Capsules

# Rows and columns of the first map of DECODER NET: its 2,700 numbers are 30·30·3.
FIRST_MAP = 30


def mask_all_but(capsules: Capsules, target: Int[Tensor, " b"]) -> Float[Tensor, "b 1 1 classes d"]:
    """The class poses [b 1 1 classes d] with every class but each image's `target` set to zero ([S] §4.1).

    Raises:
        ValueError: not one target an image.
    """
    poses = capsules.poses
    if target.shape != poses.shape[:1]:
        raise ValueError(f"target: must be one class an image [b] = ({len(poses)},), got shape {tuple(target.shape)}")
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
        """Masked class poses to images."""
        images: Tensor = self.layers(poses.to(cast(nn.Linear, self.layers[1]).weight.dtype))
        return images


class ConvolutionalDecoder(nn.Module):
    """DECODER NET: dense 675–2700, then convolutions with nearest-neighbour upsizing between (Forslöv 2018, Fig. 30).

    2,700 numbers make a map of 3 channels, 30×30. Three 6×6 convolutions with ReLU follow, each before an upsizing: to
    a quarter of the image's sides (never below 30), to half of them, to the image; then a 7×7 convolution and a
    sigmoid. Zeros around the maps keep their size. Upsizing and convolving is one layer, see `UpsizedConv2d`.

    It is fed with one capsule, the figure's "one capsule at the output layer"; Table 2's 675·CT weights leave room for
    no more. All classes but one being masked, that capsule is the sum over the classes.

    The figure's sizes are not in the text. Table 2 has 6·6·256·256 weights in the fifth layer, after 128 channels from
    the fourth: a misprint, which its total of 4,521,252 + 675·CT inherits. Here it has 6·6·128·256, and the decoder
    3,341,604 + 675·CT weights beside its biases, with 3-channel images.

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
        if len(hidden) != 3:
            raise ArgumentError("hidden", "be three numbers of channels", tuple(hidden))
        quarter, half = ((max(FIRST_MAP, -(-height // part)), max(FIRST_MAP, -(-width // part))) for part in (4, 2))
        few, more, most = hidden
        zeros = (2, 3, 2, 3)  # the odd one of five at the lower right, as in TensorFlow
        layers: list[tuple[str, nn.Module]] = [
            ("0", nn.Linear(pose, 675)),
            ("1", nn.ReLU()),
            ("2", nn.Linear(675, 3 * FIRST_MAP**2)),
            ("3", nn.ReLU()),
            ("4", nn.Unflatten(1, (3, FIRST_MAP, FIRST_MAP))),
            ("5", nn.ZeroPad2d(zeros)),
            ("6", nn.Conv2d(3, few, 6)),
            ("7", nn.ReLU()),
            ("10", UpsizedConv2d(few, more, 6, zeros, quarter)),
            ("11", nn.ReLU()),
            ("14", UpsizedConv2d(more, most, 6, zeros, half)),
            ("15", nn.ReLU()),
            ("17", UpsizedConv2d(most, channels, 7, (3, 3, 3, 3), (height, width))),
            ("18", nn.Sigmoid()),
        ]
        self.layers = nn.Sequential(OrderedDict(layers))  # numbered as when upsizings were layers of their own
        start_for_relus(self.layers)

    def forward(self, poses: Float[Tensor, "b 1 1 classes d"]) -> Float[Tensor, "b channels height width"]:
        """Masked class poses to images."""
        images: Tensor = self.layers(poses.sum((1, 2, 3)).to(cast(nn.Linear, self.layers[0]).weight.dtype))
        return images.contiguous()

"""Decoders: from class capsules back to an image."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsella.types import Capsules


def mask_all_but(capsules: Capsules, target: Int[Tensor, " b"]) -> Float[Tensor, "b 1 1 classes d"]:
    """The class poses [b 1 1 classes d] with every class but each image's `target` set to zero ([S] §4.1)."""
    poses = capsules.poses
    keep = torch.nn.functional.one_hot(target, poses.shape[3]).to(poses)
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
        images: Tensor = self.layers(poses)
        return images

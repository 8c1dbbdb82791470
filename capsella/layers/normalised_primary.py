"""Primary capsules that normalise what their convolution makes."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import check_argument
from capsella.layers.initial_weights import start_for_relus
from capsella.layers.norms import Norm, norm_layer
from capsella.types import Capsules, at_least_float32


class NormalisedPrimaryCapsules(nn.Module):
    """As `MatrixPrimaryCapsules`, with a normalisation in place of the biases (Hahn et al. 2019, their code).

    Shapes: [b in_channels height width] → Capsules(poses [b h w types pose], activations [b h w types]); zeros around.

    Args:
        in_channels: feature maps.
        types: capsule types.
        pose: pose elements of each.
        kernel: rows and columns, an odd number; the grid stays as large as the maps.
        norm: of all that the convolution makes.
    """

    def __init__(self, in_channels: int, types: int, pose: int, kernel: int = 3, norm: Norm = "batch") -> None:
        super().__init__()
        check_argument(kernel % 2 == 1, "be an odd number", kernel=kernel)
        self.types, self.pose = types, pose
        width = types * (pose + 1)
        conv = nn.Conv2d(in_channels, width, kernel, padding=kernel // 2, bias=False)
        self.maps = nn.Sequential(conv, norm_layer(norm, width))
        start_for_relus(self)

    def forward(self, features: Float[Tensor, "b in_channels height width"]) -> Capsules:
        """Feature maps to poses and activations."""
        maps = at_least_float32(self.maps(features)).permute(0, 2, 3, 1)  # [b h w (types pose | types)]
        poses, logits = maps.split([self.types * self.pose, self.types], dim=3)
        return Capsules(poses.unflatten(3, (self.types, self.pose)), torch.sigmoid(logits))


class LayerNormPrimaryCapsules(nn.Module):
    """A 1×1 convolution cut into poses, each layer-normalised over its elements (Tsai et al. 2020).

    Scale and shift are shared by all types. There are no activations: all are 1.

    Shapes: [b in_channels height width] → Capsules(poses [b h w types pose], activations [b h w types]).
    """

    def __init__(self, in_channels: int, types: int, pose: int) -> None:
        super().__init__()
        self.types, self.pose = types, pose
        self.conv = nn.Conv2d(in_channels, types * pose, 1, bias=False)
        self.norm = nn.LayerNorm(pose)

    def forward(self, features: Float[Tensor, "b in_channels height width"]) -> Capsules:
        """Feature maps to normalised poses."""
        maps = self.conv(features).to(self.norm.weight.dtype).permute(0, 2, 3, 1)  # [b h w (types pose)]
        poses = self.norm(maps.unflatten(3, (self.types, self.pose)))
        return Capsules(poses, torch.ones_like(poses[..., 0]))

"""Primary capsules: the layer that turns feature maps into the first capsules."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from capsella.routing import length, squash
from capsella.types import Capsules


class PrimaryCapsules(nn.Module):
    """A convolution whose output channels are cut into `types` capsules of `pose` elements, each squashed.

    Sabour et al. 2017, section 4: 32 types, 8-D, kernel 9×9, stride 2. Channel t·pose + k is element k of type t, so a
    capsule never mixes positions. `activation="relu"` applies a ReLU before the squash (Forslöv 2018, §6.1.1); the
    paper, and the default here, do not.

    Shapes: [b in_channels height width] → Capsules(poses [b h w types pose], activations ‖pose‖ [b h w types]).
    """

    def __init__(
        self,
        in_channels: int,
        types: int,
        pose: int,
        kernel: int = 9,
        stride: int = 2,
        activation: Literal["none", "relu"] = "none",
    ) -> None:
        super().__init__()
        if activation not in ("none", "relu"):
            raise ValueError(f"activation: must be 'none' or 'relu', got {activation!r}")
        self.types, self.pose = types, pose
        self.conv = nn.Conv2d(in_channels, types * pose, kernel, stride)
        self.activation = nn.ReLU() if activation == "relu" else nn.Identity()

    def forward(self, features: Float[Tensor, "b in_channels height width"]) -> Capsules:
        """Feature maps to squashed capsules."""
        maps = self.activation(self.conv(features))
        # [b (types pose) h w] → [b h w types pose]; float32, because the squash divides small numbers
        u = squash(maps.float().unflatten(1, (self.types, self.pose)).permute(0, 3, 4, 1, 2))
        return Capsules(u, length(u))

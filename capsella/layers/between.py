"""What stands between capsule layers: capsules around a grid that are not there, and poses that are normalised."""

from typing import cast

from torch import Tensor, nn
from torch.nn.functional import pad

from capsella.errors import check_minimum
from capsella.layers.norms import Norm, norm_layer
from capsella.types import Capsules, check_children


class PadCapsules(nn.Module):
    """Surround a grid with capsules of activation zero and pose zero, as padded convolutions do with pixels.

    Shapes: Capsules(poses [b h w c d], activations [b h w c]) → the same with h + 2·width rows, w + 2·width columns.
    """

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        check_minimum(1, width=width)
        self.width = width

    def forward(self, capsules: Capsules) -> Capsules:
        """The padded grid."""
        n = self.width
        return Capsules(pad(capsules.poses, (0, 0, 0, 0, n, n, n, n)), pad(capsules.activations, (0, 0, n, n, n, n)))


class NormalisePoses(nn.Module):
    """Normalise each element of each capsule type's pose, as the feature maps that they are; see `norm_layer`.

    Shapes: Capsules(poses [b h w types pose], activations [b h w types]) → the same; activations stay as they are.

    Args:
        types: capsule types.
        pose: elements of each.
        norm: batch, group or instance.
    """

    def __init__(self, types: int, pose: int, norm: Norm = "batch") -> None:
        super().__init__()
        self.types, self.pose = types, pose
        self.norm = norm_layer(norm, types * pose)

    def forward(self, capsules: Capsules) -> Capsules:
        """Channel t·pose + k is element k of type t.

        Raises:
            ValueError: capsules of other types or pose elements.
        """
        check_children(capsules, self.types, self.pose)
        poses = capsules.poses.to(
            cast(Tensor, self.norm.weight).dtype
        )  # a capsule layer's are not those of its weights
        maps: Tensor = self.norm(poses.flatten(3).permute(0, 3, 1, 2))
        return Capsules(maps.permute(0, 2, 3, 1).reshape(capsules.poses.shape), capsules.activations)

"""Normalisation of feature maps by the batch, by groups of channels, or by each image's channels; and of capsules."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import at_least, unknown_name
from capsella.types import ScoredCapsules

Norm = Literal["batch", "group", "instance"]
ParentNorm = Literal["batch"]
GROUP = 16
"""Channels a group (Wu and He 2018, Table 3), or all where there are fewer."""


def norm_layer(kind: str, channels: int, eps: float = 1e-5) -> nn.Module:
    """A layer with scale and shift for maps [b channels h w].

    batch: as over all images, by running statistics when it classifies (Ioffe and Szegedy 2015). group: over the pixels
    of `GROUP` channels of one image (Wu and He 2018). instance: of one channel of one image (Ulyanov et al. 2016).
    The last two know no other images, so those of another laboratory are normalised by their own statistics.

    Raises:
        ValueError: not a `Norm`, `channels` below 1, or no multiple of its groups.
    """
    at_least(1, channels=channels)
    if kind == "batch":
        return nn.BatchNorm2d(channels, eps=eps)
    if kind == "group":
        groups = max(1, channels // GROUP)
        return nn.GroupNorm(groups, channels, eps=eps)
    if kind == "instance":
        return nn.GroupNorm(channels, channels, eps=eps)
    raise unknown_name("norm", kind, ("batch", "group", "instance"))


class NormaliseCapsules(nn.Module):
    """Batch normalisation of capsules, by type: of their poses, and of their activations' log-odds.

    Ribeiro, Leontidis, Kollias 2020 (their code): one mean and variance a type, over images, sites and pose elements,
    without scale and shift. In training by the batch, whose statistics run along (Ioffe and Szegedy 2015); a single
    class capsule of a single image has no variance and is normalised by those that run.

    Shapes: ScoredCapsules(poses [b h w types d], log_odds [b h w types]) → the same.

    Args:
        types: capsule types.
        affine: with a scale and a shift a type.
    """

    def __init__(self, types: int, affine: bool = False) -> None:
        super().__init__()
        self.poses = nn.BatchNorm1d(types, affine=affine)
        self.log_odds = nn.BatchNorm1d(types, affine=affine)

    def forward(self, capsules: ScoredCapsules) -> ScoredCapsules:
        """Normalise both."""
        poses, log_odds = capsules
        return ScoredCapsules(_by_type(self.poses, poses), _by_type(self.log_odds, log_odds.unsqueeze(4)).squeeze(4))


def _by_type(norm: nn.BatchNorm1d, x: Float[Tensor, "b h w c d"]) -> Float[Tensor, "b h w c d"]:
    batch, h, w, types, d = x.shape
    values = x.permute(0, 3, 1, 2, 4).reshape(batch, types, h * w * d)
    if norm.training and values.numel() == types:
        normalised = nn.functional.batch_norm(
            values, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
        )
    else:
        normalised = norm(values)
    return normalised.reshape(batch, types, h, w, d).permute(0, 2, 3, 1, 4)

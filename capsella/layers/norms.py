"""Normalisation of feature maps by the batch, by groups of channels, or by each image's channels; and of capsules."""

from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import check_minimum, unknown_name
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
    check_minimum(1, channels=channels)
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
    without scale and shift.

    Shapes: ScoredCapsules(poses [b h w types d], log_odds [b h w types]) → the same.

    Args:
        types: capsule types.
        affine: with a scale and a shift a type.
    """

    def __init__(self, types: int, affine: bool = False) -> None:
        super().__init__()
        self.poses = NormaliseTypes(types, affine=affine)
        self.log_odds = NormaliseTypes(types, affine=affine)

    def forward(self, capsules: ScoredCapsules) -> ScoredCapsules:
        """Normalise both."""
        poses, log_odds = capsules
        return ScoredCapsules(_by_type(self.poses, poses), _by_type(self.log_odds, log_odds.unsqueeze(4)).squeeze(4))


class NormaliseTypes(nn.BatchNorm1d):
    """Batch normalisation whose running statistics are, after n batches, their mean until n is 1/momentum.

    PyTorch's start from a variance of 1, which takes a hundred batches to forget where the true one is 1e-4, as that of
    log-odds may be: a short training would end in a network that is at chance when it classifies.

    One number a type, of a class capsule of a single image, has no variance, nor has a batch without images: they are
    normalised by what runs.

    Statistics of half precision are taken in float32: log-odds may differ by less than its steps.

    Shapes: [b types n] → [b types n].
    """

    def forward(self, x: Float[Tensor, "b types n"]) -> Float[Tensor, "b types n"]:
        """In training by the batch's own statistics, else by those that run."""
        mean, variance = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        kind = torch.promote_types(mean.dtype, torch.float32)
        x = x.to(kind)
        affine = (None, None) if self.weight is None else (self.weight.to(kind), self.bias.to(kind))
        if not self.training or x.numel() <= self.num_features:
            return nn.functional.batch_norm(x, mean.to(kind), variance.to(kind), *affine, eps=self.eps)
        self._keep(x.detach())
        return nn.functional.batch_norm(x, None, None, *affine, training=True, eps=self.eps)

    def _keep(self, x: Tensor) -> None:
        mean, variance, batches = self.running_mean, self.running_var, self.num_batches_tracked
        assert mean is not None and variance is not None and batches is not None and self.momentum is not None  # noqa: PT018
        batches += 1
        share = (1 / batches.to(x)).clamp(min=self.momentum)
        new_variance, new_mean = torch.var_mean(x, (0, 2))
        mean.lerp_(new_mean.to(mean), share.to(mean))
        variance.lerp_(new_variance.to(variance), share.to(variance))


def _by_type(norm: NormaliseTypes, x: Float[Tensor, "b h w c d"]) -> Float[Tensor, "b h w c d"]:
    batch, h, w, types, d = x.shape
    normalised = norm(x.permute(0, 3, 1, 2, 4).reshape(batch, types, h * w * d))
    return normalised.reshape(batch, types, h, w, d).permute(0, 2, 3, 1, 4)

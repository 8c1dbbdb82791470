"""Normalisation of feature maps and capsules, padding of capsules, and initial weights of ordinary layers."""

from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from capsella.errors import check_minimum
from capsella.types import CapsuleLogits, Capsules, check_children

ParentNorm = Literal["batch"]


class NormaliseCapsules(nn.Module):
    """Batch normalisation of capsules by type, for poses and for the log-odds of activations.

    As in the code of Ribeiro, Leontidis, Kollias 2020, each type has one mean and variance over images, sites and pose
    elements, and no scale or shift.

    Shapes: CapsuleLogits(poses [b h w types d], log_odds [b h w types]) → the same.

    Args:
        types: capsule types.
        affine: learn a scale and a shift per type.
    """

    def __init__(self, types: int, affine: bool = False) -> None:
        super().__init__()
        self.poses = NormaliseTypes(types, affine=affine)
        self.log_odds = NormaliseTypes(types, affine=affine)

    def forward(self, capsules: CapsuleLogits) -> CapsuleLogits:
        """Normalise poses and log-odds."""
        poses, log_odds = capsules
        return CapsuleLogits(_by_type(self.poses, poses), _by_type(self.log_odds, log_odds.unsqueeze(4)).squeeze(4))


class NormaliseTypes(nn.BatchNorm1d):
    """Batch normalisation with running statistics that are plain means over the first 1/momentum batches.

    After these batches, they are exponential averages. PyTorch's running variance starts at 1 and takes a hundred
    batches to forget that. If the true variance is 1e-4, as for some log-odds, a network would be at chance in
    evaluation mode after a short training.

    The class capsules of a single image have one number per type and so no variance; they are normalised by the running
    statistics, as is a batch without images. Statistics are computed at least in float32, because log-odds may differ
    by less than half precision resolves.

    Shapes: [b types n] → [b types n].
    """

    def forward(self, x: Float[Tensor, "b types n"]) -> Float[Tensor, "b types n"]:
        """Normalise by the batch's statistics in training mode, otherwise by the running ones."""
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
        assert mean is not None and variance is not None and batches is not None  # noqa: PT018
        batches += 1
        share = (1 / batches.to(x)).clamp(min=self.momentum or 0)  # None is the mean of all batches, as in PyTorch
        new_variance, new_mean = torch.var_mean(x, (0, 2))
        mean.lerp_(new_mean.to(mean), share.to(mean))
        variance.lerp_(new_variance.to(variance), share.to(variance))


def _by_type(norm: NormaliseTypes, x: Float[Tensor, "b h w c d"]) -> Float[Tensor, "b h w c d"]:
    batch, h, w, types, d = x.shape
    normalised = norm(x.permute(0, 3, 1, 2, 4).reshape(batch, types, h * w * d))
    return normalised.reshape(batch, types, h, w, d).permute(0, 2, 3, 1, 4)


class PadCapsules(nn.Module):
    """Zero padding: a border of capsules with zero poses and activations.

    Shapes: Capsules(poses [b h w c d], activations [b h w c]) → the same with h + 2·width rows, w + 2·width columns.
    """

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        check_minimum(1, width=width)
        self.width = width

    def forward(self, capsules: Capsules) -> Capsules:
        """Pad the grid."""
        n = self.width
        return Capsules(pad(capsules.poses, (0, 0, 0, 0, n, n, n, n)), pad(capsules.activations, (0, 0, n, n, n, n)))


class NormalisePoses(nn.Module):
    """Batch normalisation of poses, where each element of each capsule type is a feature map.

    Shapes: Capsules(poses [b h w types pose], activations [b h w types]) → the same; activations stay as they are.
    """

    def __init__(self, types: int, pose: int) -> None:
        super().__init__()
        self.types, self.pose = types, pose
        self.norm = nn.BatchNorm2d(types * pose)

    def forward(self, capsules: Capsules) -> Capsules:
        """Normalise poses as maps, in which channel t·pose + k is element k of type t.

        Raises:
            ValueError: capsules of other types or pose elements.
        """
        check_children(capsules, self.types, self.pose)
        poses = capsules.poses.to(self.norm.weight.dtype)  # a capsule layer returns at least float32
        maps: Tensor = self.norm(poses.flatten(3).permute(0, 3, 1, 2))
        return Capsules(maps.permute(0, 2, 3, 1).reshape(capsules.poses.shape), capsules.activations)


def he_init_(network: nn.Module) -> None:
    """Initialise the weights of all convolutions and dense layers as He et al. 2015 for ReLUs, and zero their biases.

    PyTorch's default shrinks the signal by √6 per layer. Capsule layers keep their own initial weights. Weights on the
    meta device are skipped: drawing them would make PyTorch import its compiler, which takes seconds.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def trunc_normal_init_(layer: nn.Conv2d, sd: float) -> None:
    """Draw weights from a normal distribution truncated at ± 2 `sd`, set biases to 0.1 (code of Sabour et al. 2017)."""
    nn.init.trunc_normal_(layer.weight, std=sd, a=-2 * sd, b=2 * sd)
    if layer.bias is not None:
        nn.init.constant_(layer.bias, 0.1)

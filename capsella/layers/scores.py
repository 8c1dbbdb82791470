"""From class capsules to logits, for networks whose classes compete in a softmax."""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.types import Capsules, at_least_float32

LEAST = 1e-12
"""Activations below it count as this: their logarithm stays finite."""


class LogActivations(nn.Module):
    """ln a: a softmax of it is each activation's share of their sum, and a cross-entropy −ln of the share.

    Shapes: Capsules(poses [b 1 1 classes d], activations [b 1 1 classes]) → [b classes].
    """

    def forward(self, capsules: Capsules) -> Float[Tensor, "b classes"]:
        """Their logarithms."""
        return at_least_float32(capsules.activations[:, 0, 0]).clamp(min=LEAST).log()


class PoseScores(nn.Module):
    """One linear unit, the same for all classes, on the poses of class capsules.

    Shapes: Capsules(poses [b 1 1 classes d], activations [b 1 1 classes]) → [b classes].

    Args:
        pose: elements of each.
        bias: with a number that is added to all scores, as the papers have it. A softmax takes it away again.
    """

    def __init__(self, pose: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(pose, 1, bias)

    def forward(self, capsules: Capsules) -> Float[Tensor, "b classes"]:
        """A score a class, in the type of the weights, also under autocast."""
        poses = capsules.poses[:, 0, 0].to(self.linear.weight.dtype)
        with torch.autocast(poses.device.type, enabled=False):
            return cast(Tensor, self.linear(poses))[..., 0]

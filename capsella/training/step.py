"""Parts of a training step: mixup and the average of the weights."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from capsella.errors import CapsellaError
from capsella.losses import MixupTargets


class TrainingDivergedError(CapsellaError):
    """The loss or a gradient is no longer a finite number. remedy: how training can go on."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


def mixup(
    images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"], alpha: float
) -> tuple[Float[Tensor, "b c h w"], MixupTargets]:
    """Return s·image + (1 − s)·another image of the batch, s from Beta(α, α) for each image (Zhang et al. 2018, Eq. 1).

    s is at least one half, so that an image keeps the label of its larger part. This leaves the distribution as it is:
    each pair is drawn in both orders, and the blend with 1 − s is that of the swapped pair with s.

    Returns:
        The blended images, and the labels and shares of what was mixed into each.
    """
    share = torch.distributions.Beta(alpha, alpha).sample((len(images),)).to(images.device)
    share = torch.maximum(share, 1 - share)
    other = torch.randperm(len(images), device=images.device)
    s = share[:, None, None, None].to(images.dtype)
    return s * images + (1 - s) * images[other], MixupTargets(labels[other], 1 - share)


def exponential_average(model: nn.Module, decay: float) -> AveragedModel:
    """Return an exponential moving average of a model, in evaluation mode; call `update_parameters` after each step.

    The first update copies the weights. Then average ← d · average + (1 − d) · weights with
    d = min(decay, (1 + n)/(10 + n)) after n updates, so that early weights are soon forgotten (as in TensorFlow's
    `ExponentialMovingAverage` with `num_updates`). Running statistics of batch norms are averaged alike.
    """

    def update(
        averages: list[Tensor] | tuple[Tensor, ...], weights: list[Tensor] | tuple[Tensor, ...], n: Tensor | int
    ) -> None:
        """Update all tensors of one type at once, so that the number of updates is copied from a GPU once."""
        if not averages[0].is_floating_point():  # counts of batches
            torch._foreach_copy_(averages, weights)
            return
        updates = int(n)
        torch._foreach_lerp_(averages, weights, 1 - min(decay, (1 + updates) / (10 + updates)))

    average = AveragedModel(model, multi_avg_fn=update, use_buffers=True).eval()
    average.requires_grad_(False)
    return average

"""The moving average of a network's weights over the steps of its training."""

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

Tensors = tuple[Tensor, ...] | list[Tensor]


def average_of(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of `model`, in evaluation mode; `update_parameters(model)` after each step.

    The first update copies the weights. Then average ← d · average + (1 − d) · weights, with
    d = min(decay, (1 + n)/(10 + n)) after n updates, so that early weights are soon forgotten (as in TensorFlow's
    `ExponentialMovingAverage` with `num_updates`). Running statistics of batch norm are averaged alike.
    """

    def mix(kept: Tensors, new: Tensors, updates: Tensor | int) -> None:
        """All tensors of one type at once: a GPU is asked once for the number of updates."""
        if not kept[0].is_floating_point():  # counts of batches
            torch._foreach_copy_(kept, new)
            return
        n = int(updates)
        torch._foreach_lerp_(kept, new, 1 - min(decay, (1 + n) / (10 + n)))

    average = AveragedModel(model, multi_avg_fn=mix, use_buffers=True).eval()
    average.requires_grad_(False)
    return average

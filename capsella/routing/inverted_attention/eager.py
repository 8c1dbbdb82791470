"""One round of inverted dot-product attention, vectorised and differentiable."""

import math

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from capsella.routing.base import Routed

EPSILON = 1e-5
"""Added to the variance of a pose's elements before its root, as PyTorch's and so the authors' layer normalisation."""


def attend_eager(votes: Tensor, poses: Tensor | None, scale: Tensor, shift: Tensor) -> Routed:
    """Tsai et al. 2020, for votes [b i j d] and the parents' poses [b j d], or None in the first round."""
    parents, d = votes.shape[2:]
    V = votes.transpose(1, 2)  # [b j i d]
    if poses is None:
        couplings = votes.new_full(votes.shape[:3], 1 / parents)
        s = V.sum(2) / parents
    else:
        agreement = (V @ poses.unsqueeze(3)).squeeze(3)  # [b j i]
        R = (agreement / math.sqrt(d)).softmax(1)
        couplings = R.transpose(1, 2)
        s = (R.unsqueeze(2) @ V).squeeze(2)
    p = s if d == 1 else layer_norm(s, (d,), scale, shift, EPSILON)
    return Routed(p, torch.ones_like(p[..., 0]), couplings)

"""One round of inverted dot-product attention, vectorised and differentiable."""

import math

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from capsella.routing.base import Routed
from capsella.routing.votes import StoredVotes, Votes

EPSILON = 1e-5
"""Added to the variance of a pose's elements before its root, as PyTorch's and so the authors' layer normalisation."""


def attend_eager(votes: Tensor, poses: Tensor | None, scale: Tensor, shift: Tensor) -> Routed:
    """Tsai et al. 2020, for votes [b i j d] and the parents' poses [b j d], or None in the first round."""
    return attend_by_products(StoredVotes(votes), poses, scale, shift)


def attend_by_products(votes: Votes, poses: Tensor | None, scale: Tensor, shift: Tensor) -> Routed:
    """The same by products of votes."""
    if poses is None:
        couplings = votes.ones().softmax(2)  # all even
    else:
        couplings = (votes.agreements(poses) / math.sqrt(poses.shape[2])).softmax(2)
    s = votes.sums(couplings)
    d = s.shape[2]
    p = s if d == 1 else layer_norm(s, (d,), scale, shift, EPSILON)
    return Routed(p, torch.ones_like(p[..., 0]), couplings)

"""One round of inverted dot-product attention in plain loops, line for line with the code of Tsai et al. 2020. Slow."""

import math

import torch
from torch import Tensor

from capsella.routing.base import Routed
from capsella.routing.dynamic.reference import softmax_reference
from capsella.routing.inverted_attention.eager import EPSILON


def attend_reference(votes: Tensor, poses: Tensor | None, scale: Tensor, shift: Tensor) -> Routed:
    """Of votes [b i j d] and the parents' poses [b j d], or None in the first round."""
    new, couplings = torch.zeros_like(votes[:, 0]), torch.zeros_like(votes[..., 0])
    for image, V in enumerate(votes):
        before = None if poses is None else poses[image]
        new[image], couplings[image] = _attend_one(V, before, scale, shift)
    return Routed(new, torch.ones_like(new[..., 0]), couplings)


def _attend_one(V: Tensor, p: Tensor | None, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """One image: V [i j d], p [j d] → new p [j d], R [i j]."""
    children, parents, d = V.shape
    zero = V.new_zeros(())
    R = []
    for i in range(children):
        agreement = [zero if p is None else (V[i, j] * p[j]).sum() / math.sqrt(d) for j in range(parents)]
        R.append(torch.stack(softmax_reference(agreement)))  # the parents compete for the child
    new = []
    for j in range(parents):
        s_j = torch.zeros_like(V[0, j])
        for i in range(children):
            s_j = s_j + R[i][j] * V[i, j]
        new.append(_layer_norm(s_j, scale, shift))
    return torch.stack(new), torch.stack(R)


def _layer_norm(s: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """One vector s [d] to zero mean and unit variance, but for ε; a single number stays as it is."""
    if len(s) == 1:
        return s
    mean = s.sum() / len(s)
    variance = ((s - mean) * (s - mean)).sum() / len(s)
    return scale * (s - mean) / (variance + EPSILON).sqrt() + shift

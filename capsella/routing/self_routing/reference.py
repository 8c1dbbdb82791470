"""Self-routing in plain loops, line for line with Hahn et al. 2019. Slow, and meant to be read."""

import torch
from torch import Tensor

from capsella.routing.base import Routed
from capsella.routing.dynamic.reference import softmax_reference
from capsella.routing.self_routing.eager import LEAST


def self_routing_reference(votes: Tensor, activations: Tensor, logits: Tensor) -> Routed:
    """Votes [b i j d], activations [b i] and logits [b i j]."""
    poses, a = torch.zeros_like(votes[:, 0]), torch.zeros_like(votes[:, 0, :, 0])
    couplings = torch.zeros_like(logits)
    for image in range(len(votes)):
        poses[image], a[image], couplings[image] = _route_one(votes[image], activations[image], logits[image])
    return Routed(poses, a, couplings)


def _route_one(V: Tensor, a: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One image: V [i j d], a [i], logits [i j] → poses [j d], activations [j], R [i j]."""
    children, parents = logits.shape
    zero = V.new_zeros(())
    R = [softmax_reference(list(logits[i])) for i in range(children)]  # over the parents
    total = zero
    for i in range(children):
        total = total + a[i]
    poses, activations = [], []
    for j in range(parents):
        received, pose = zero, zero
        for i in range(children):
            received = received + a[i] * R[i][j]
            pose = pose + a[i] * R[i][j] * V[i, j]
        activations.append(received / total.clamp(min=LEAST))
        poses.append(pose / received.clamp(min=LEAST))
    return torch.stack(poses), torch.stack(activations), torch.stack([torch.stack(list(row)) for row in R])

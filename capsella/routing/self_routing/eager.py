"""Self-routing, vectorised and differentiable."""

import torch
from torch import Tensor

from capsella.routing.base import Routed
from capsella.routing.recording import new_trace

LEAST = 1e-6
"""The least that activations count in sum: without it, children none of whom is active would make 0/0."""


def self_routing_eager(votes: Tensor, activations: Tensor, logits: Tensor) -> Routed:
    """Hahn et al. 2019, for votes [b i j d], activations [b i] and logits [b i j]."""
    couplings = logits.softmax(2)
    given = activations.unsqueeze(2) * couplings  # a_i R_ij
    received = given.sum(1)  # [b j]
    a = received / activations.sum(1, keepdim=True).clamp(min=LEAST)
    shares = given / received.clamp(min=LEAST).unsqueeze(1)
    poses = torch.einsum("bij,bijd->bjd", shares, votes)
    new_trace("self").add(couplings, poses, a)
    return Routed(poses, a, couplings)

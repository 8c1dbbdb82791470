"""Dynamic routing, vectorised and differentiable. Gradients flow through every iteration, as in the authors' code."""

import torch
from torch import Tensor

from capsella.routing.base import Routed
from capsella.routing.recording import new_trace
from capsella.routing.squash import length, squash


def dynamic_routing_eager(votes: Tensor, iterations: int, bias: Tensor | None, leaky: bool) -> Routed:
    """Sabour et al. 2017, Procedure 1, for votes [b i j d]."""
    trace = new_trace("dynamic")
    V = votes.transpose(1, 2)  # [b j i d], so that both sums below are batched matrix products
    logits = V.new_zeros(V.shape[:3])  # [b j i]
    for iteration in range(iterations):
        couplings = softmax_over_parents(logits, leaky)
        s = (couplings.unsqueeze(2) @ V).squeeze(2)  # [b j d]
        v = squash(s if bias is None else s + bias)
        activations = length(v)
        trace.add(couplings.transpose(1, 2), v, activations)
        if iteration < iterations - 1:
            logits = logits + (V @ v.unsqueeze(3)).squeeze(3)
    return Routed(v, activations, couplings.transpose(1, 2))


def softmax_over_parents(logits: Tensor, leaky: bool) -> Tensor:
    """[b j i] → couplings; leaky adds a parent with logit 0 that takes its share and is dropped."""
    if not leaky:
        return logits.softmax(1)
    leak = torch.zeros_like(logits[:, :1])
    return torch.cat([leak, logits], 1).softmax(1)[:, 1:]

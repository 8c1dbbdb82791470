"""Dynamic routing, vectorised and differentiable. Gradients flow through every iteration, as in the authors' code."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from capsella.routing.base import Routed
from capsella.routing.recording import new_trace
from capsella.routing.squash import length, squash


@runtime_checkable
class Votes(Protocol):
    """What the procedure asks of the votes û_ij, which it need not see: two passes over them."""

    def weighted_sum(self, couplings: Tensor) -> Tensor:
        """The sums s = Σ_i c û [b j d], for couplings of the logits' shape."""

    def agreement(self, v: Tensor) -> Tensor:
        """û·v, of the logits' shape, for parents [b j d]."""


@dataclass(frozen=True)
class WrittenVotes:
    """`Votes` that stand in memory: V [b j i d], so that both sums are batched matrix products."""

    V: Tensor

    def weighted_sum(self, couplings: Tensor) -> Tensor:
        """Sum over the children."""
        return (couplings.unsqueeze(2) @ self.V).squeeze(2)

    def agreement(self, v: Tensor) -> Tensor:
        """Sum over the pose elements."""
        return (self.V @ v.unsqueeze(3)).squeeze(3)


def dynamic_routing_eager(votes: Tensor, iterations: int, bias: Tensor | None, leaky: bool) -> Routed:
    """Sabour et al. 2017, Procedure 1, for votes [b i j d]."""
    V = votes.transpose(1, 2)
    return dynamic_procedure(WrittenVotes(V), V.new_zeros(V.shape[:3]), iterations, bias, leaky)


def dynamic_procedure(votes: Votes, logits: Tensor, iterations: int, bias: Tensor | None, leaky: bool) -> Routed:
    """Procedure 1 from logits, zeros at its start: [b j i], or [b j m k] where a child i is one of type m in slot k."""
    trace = new_trace("dynamic")
    for iteration in range(iterations):
        couplings = softmax_over_parents(logits, leaky)
        s = votes.weighted_sum(couplings)  # [b j d]
        v = squash(s if bias is None else s + bias)
        activations = length(v)
        by_child = couplings.transpose(1, -1).flatten(1, -2)  # [b i j]
        trace.add(by_child, v, activations)
        if iteration < iterations - 1:
            logits = logits + votes.agreement(v)
    return Routed(v, activations, by_child)


def softmax_over_parents(logits: Tensor, leaky: bool) -> Tensor:
    """[b j i] → couplings; leaky adds a parent with logit 0 that takes its share and is dropped."""
    if not leaky:
        return logits.softmax(1)
    leak = torch.zeros_like(logits[:, :1])
    return torch.cat([leak, logits], 1).softmax(1)[:, 1:]

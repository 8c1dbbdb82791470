"""Self-routing, vectorised and differentiable."""

from torch import Tensor

from capsella.routing.base import Routed
from capsella.routing.recording import new_trace
from capsella.routing.votes import StoredVotes, Votes

LEAST = 1e-6
"""The least that activations count in sum: without it, children none of whom is active would make 0/0."""


def self_routing_eager(votes: Tensor, activations: Tensor, logits: Tensor) -> Routed:
    """Hahn et al. 2019, for votes [b i j d], activations [b i] and logits [b i j]."""
    return route_by_children(StoredVotes(votes), activations, logits)


def route_by_children(votes: Votes, activations: Tensor, logits: Tensor) -> Routed:
    """The same by products of votes."""
    couplings = logits.softmax(2)
    given = activations.unsqueeze(2) * couplings  # a_i R_ij
    received = given.sum(1)  # [b j]
    a = received / activations.sum(1, keepdim=True).clamp(min=LEAST)
    poses = votes.sums(given) / received.clamp(min=LEAST).unsqueeze(2)
    new_trace("self").add(couplings, poses, a)
    return Routed(poses, a, couplings)

"""Self-attention routing, vectorised and differentiable."""

import math

from torch import Tensor

from capsella.routing.base import Routed
from capsella.routing.recording import new_trace
from capsella.routing.squash import length, squash_exponential
from capsella.routing.votes import StoredVotes, Votes


def self_attention_routing_eager(votes: Tensor, prior: Tensor | None) -> Routed:
    """Mazzia et al. 2021, Equations 4 to 6, for votes [b i j d]."""
    return attend_to_all(StoredVotes(votes), prior)


def attend_to_all(votes: Votes, prior: Tensor | None) -> Routed:
    """The same by products of votes.

    Σ_k û_i·û_k = û_i·(Σ_k û_k): the matrix of all agreements [b j i i], which the authors write to memory, is not
    needed for its sums.
    """
    total = votes.sums(votes.ones())
    couplings = (votes.agreements(total) / math.sqrt(total.shape[2])).softmax(2)
    v = squash_exponential(votes.sums(couplings if prior is None else couplings + prior))
    activations = length(v)
    new_trace("self_attention").add(couplings, v, activations)
    return Routed(v, activations, couplings)

"""Self-attention routing, vectorised and differentiable."""

import math

from torch import Tensor

from capsella.routing.base import Routed
from capsella.routing.recording import new_trace
from capsella.routing.squash import length, squash_exponential


def self_attention_routing_eager(votes: Tensor, prior: Tensor | None) -> Routed:
    """Mazzia et al. 2021, Equations 4 to 6, for votes [b i j d].

    Σ_k û_i·û_k = û_i·(Σ_k û_k): the matrix of all agreements [b j i i], which the authors write to memory, is not
    needed for its sums.
    """
    V = votes.transpose(1, 2)  # [b j i d]
    agreement = (V @ V.sum(2).unsqueeze(3)).squeeze(3)  # [b j i]
    couplings = (agreement / math.sqrt(V.shape[3])).softmax(1)
    weights = couplings if prior is None else couplings + prior.t()
    v = squash_exponential((weights.unsqueeze(2) @ V).squeeze(2))
    activations = length(v)
    couplings = couplings.transpose(1, 2)
    new_trace("self_attention").add(couplings, v, activations)
    return Routed(v, activations, couplings)

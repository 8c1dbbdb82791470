"""A routing of your own, in 40 lines: a vote counts by its cosine with the mean vote for the same parent.

    capsella train demo --plugin examples/cosine_routing.py --model-kwargs routing=cosine
    capsella papers run routings --rows cosine --plugin examples/cosine_routing.py --data smallnorb --budget medium

It is not from a paper.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cosine_similarity

from capsella.routing import Routed, Routing, length, register_routing, squash


def cosine_routing(votes: Tensor, sharpness: float = 4.0) -> Routed:
    """Route votes [b i j d] to parents j in one pass.

    Couplings are a softmax over the parents of the cosine between a vote and the mean vote for its parent.
    """
    mean = votes.mean(1, keepdim=True)  # [b 1 j d]
    couplings = (sharpness * cosine_similarity(votes, mean, dim=3)).softmax(2)  # [b i j]
    poses = squash((couplings.unsqueeze(3) * votes).sum(1))  # [b j d], shorter than 1
    return Routed(poses, length(poses), couplings)


@register_routing
@dataclass(frozen=True)
class CosineRouting(Routing):
    """Options of `cosine_routing` for a capsule layer."""

    name: ClassVar[str] = "cosine"

    sharpness: float = 4.0
    """Larger values peak the couplings."""

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """Route the votes; the children's activations, which are the lengths of their poses, are not used."""
        return cosine_routing(votes, self.sharpness)

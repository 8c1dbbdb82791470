"""Fixed random couplings: the other ablation (Gu and Tresp 2020; Paik et al. 2019)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.routing.base import Routed, Routing, register_routing
from capsella.routing.checks import check_votes
from capsella.routing.convolution import CapsuleConv
from capsella.routing.fixed import fixed_capsule_conv, squashed_sums
from capsella.types import Capsules


def random_routing(votes: Float[Tensor, "b i j d"], seed: int = 0) -> Routed:
    """Couplings c_i = softmax over the parents of standard normal logits, drawn once from `seed` and never changed.

    The same i × j couplings serve every image and every position of a convolution.

    Returns:
        poses [b j d], activations ‖v‖ [b j], couplings [b i j].
    """
    check_votes(votes)
    batch, children, parents, _ = votes.shape
    couplings = random_couplings(children, parents, seed).to(votes)
    return squashed_sums("random", torch.einsum("ij,bijd->bjd", couplings, votes), couplings.expand(batch, -1, -1))


# An operator, because torch.compile cannot trace a generator.
@torch.library.custom_op("capsella::random_couplings", mutates_args=())
def random_couplings(children: int, parents: int, seed: int) -> Tensor:
    """Softmax over the parents of standard normal logits [i j], in float64 on the CPU: the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(children, parents, generator=generator, dtype=torch.float32, device="cpu")
    return logits.double().softmax(1)


@random_couplings.register_fake
def _(children, parents, seed):  # type: ignore[no-untyped-def]
    return torch.empty(children, parents, dtype=torch.float64)


@register_routing
@dataclass(frozen=True)
class RandomRouting(Routing):
    """`random_routing` for a capsule layer."""

    name: ClassVar[str] = "random"

    seed: int = 0
    """Seed of the couplings."""

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """`random_routing` of the votes."""
        return random_routing(votes, self.seed)

    def capsule_conv(self, conv: CapsuleConv, **parameters: Tensor) -> Capsules:
        """Every window, with no vote made."""
        sizes = conv.sizes
        return fixed_capsule_conv(self.name, conv, random_couplings(sizes.i, sizes.c_out, self.seed).to(conv.poses))

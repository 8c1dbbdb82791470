"""Routings that need of their votes two products alone: sums, and agreements with poses. No vote is stored for them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from jaxtyping import Float
from torch import Tensor

from capsella.routing.backends import Backend, choose_conv_backend
from capsella.routing.base import Routed, Routing
from capsella.routing.convolution import CapsuleConv, gather_windows
from capsella.types import Capsules

FUSED = ("native",)
PRODUCT_BACKENDS = ("reference", "eager", *FUSED)


class Votes(ABC):
    """The votes V_ij of children i for parents j in windows n, stored or made anew for each product."""

    @abstractmethod
    def sums(self, weights: Float[Tensor, "n i j"]) -> Float[Tensor, "n j d"]:
        """Σ_i w_ij V_ij."""

    @abstractmethod
    def agreements(self, poses: Float[Tensor, "n j d"]) -> Float[Tensor, "n i j"]:
        """V_ij · p_j."""

    @abstractmethod
    def ones(self) -> Float[Tensor, "n i j"]:
        """The same weight for all votes."""


@dataclass(frozen=True, eq=False)
class StoredVotes(Votes):
    """Votes as a tensor."""

    votes: Float[Tensor, "n i j d"]

    def sums(self, weights: Tensor) -> Tensor:
        """See `Votes`."""
        return (weights.transpose(1, 2).unsqueeze(2) @ self.votes.transpose(1, 2)).squeeze(2)

    def agreements(self, poses: Tensor) -> Tensor:
        """See `Votes`."""
        return (self.votes.transpose(1, 2) @ poses.unsqueeze(3)).squeeze(3).transpose(1, 2)

    def ones(self) -> Tensor:
        """See `Votes`."""
        return self.votes.new_ones(self.votes.shape[:3])


@dataclass(frozen=True, eq=False)
class FusedVotes(Votes):
    """Votes of a capsule convolution that the C++ kernels of csrc/votes.cpp make for each product, in float32."""

    conv: CapsuleConv

    def sums(self, weights: Tensor) -> Tensor:
        """See `Votes`."""
        from capsella.routing.votes_native import vote_sums

        return vote_sums(self.conv, weights)

    def agreements(self, poses: Tensor) -> Tensor:
        """See `Votes`."""
        from capsella.routing.votes_native import vote_agreements

        return vote_agreements(self.conv, poses)

    def ones(self) -> Tensor:
        """See `Votes`."""
        sizes = self.conv.sizes
        return self.conv.poses.new_ones((sizes.n, sizes.i, sizes.c_out))


class ProductRouting(Routing):
    """A routing made of the products of `Votes`: C++ kernels on the CPU, else the stored votes of a few images."""

    fused: ClassVar[tuple[str, ...]] = FUSED
    backend: Backend

    @abstractmethod
    def route_by_products(self, votes: Votes, conv: CapsuleConv, **parameters: Tensor) -> Routed:
        """Route the votes of all windows of a capsule convolution."""

    def capsule_conv(self, conv: CapsuleConv, **parameters: Tensor) -> Capsules:
        """See `Routing`."""
        backend = self.backend_for(conv)
        if backend != "native":
            return self.conv_with_votes(backend, conv, **parameters)
        routed = self.route_by_products(FusedVotes(conv), conv, **parameters)
        return conv.parents(routed.poses, routed.activations)

    def conv_with_votes(self, backend: Backend, conv: CapsuleConv, **parameters: Tensor) -> Capsules:
        """The same by a backend that stores votes."""
        return Routing.capsule_conv(cast(Routing, replace(cast(Any, self), backend=backend)), conv, **parameters)

    def backend_for(self, conv: CapsuleConv) -> Backend:
        """As `choose_conv_backend`."""
        slower = f"{self.name.replace('_', '-')} routing runs in PyTorch, three to ten times slower"
        return choose_conv_backend(self.backend, PRODUCT_BACKENDS, conv, slower)


def windows_of(conv: CapsuleConv, per_child: Tensor) -> Tensor:
    """What stands at every child, [b h w c_in *rest], by windows: [n i *rest]."""
    gathered = gather_windows(per_child, conv.geometry)
    return gathered.reshape(conv.sizes.n, conv.sizes.i, *per_child.shape[4:])

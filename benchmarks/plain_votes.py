"""Votes as a reader of the papers makes them, all in memory, and routings that take those of each window by itself."""

from abc import abstractmethod

import torch
from torch import Tensor

from capsella.routing import CapsuleConv, Routed, Routing
from capsella.routing.convolution import gather_windows
from capsella.types import Capsules


def plain_votes(conv: CapsuleConv) -> tuple[Tensor, Tensor]:
    """Votes [b s k m j d] and the children's activations [b s k m] of every window.

    s: sites; k: slots of a window; m, j: child and parent types. V = M W by one einsum, which spares the copies that
    many ports make: of M for every parent, and of W for every image and position.
    """
    sizes, weight = conv.sizes, conv.weight
    M = gather_windows(conv.poses, conv.geometry).reshape(sizes.batch, -1, sizes.k, sizes.c_in, sizes.r, sizes.q)
    W = weight.expand(*conv.geometry.kernel, *weight.shape[2:]).reshape(sizes.k, *weight.shape[2:])
    V = torch.einsum("bskmrq,kmjqe->bskmjre", M, W).flatten(5)
    if conv.vote_offset is not None:
        V = V + gather_windows(conv.vote_offset[None], conv.geometry).reshape(-1, sizes.k, 1, 1, sizes.d)
    return V, gather_windows(conv.activations, conv.geometry).reshape(sizes.batch, -1, sizes.k, sizes.c_in)


class Windows(Routing):
    """A routing whose windows are routed each by itself: the types at one site compete."""

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """Votes [b i j d] as those of one window."""
        poses, a, R = self._procedure(votes[:, None, None], activations[:, None, None], **parameters)
        return Routed(poses[:, 0], a[:, 0], R[:, 0, 0])

    def capsule_conv(self, conv: CapsuleConv, **parameters: Tensor) -> Capsules:
        """The formulas of `_procedure`, a line each."""
        poses, a, _ = self._procedure(*plain_votes(conv), **parameters)
        return conv.parents(poses, a)

    @abstractmethod
    def _procedure(self, V: Tensor, a_in: Tensor, **parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Votes [b s k m j d] → poses [b s j d], a [b s j], R [b s k m j]."""

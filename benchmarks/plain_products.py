"""Self-routing and both attentions in plain PyTorch, which need of their votes sums and agreements alone."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from benchmarks.plain_votes import Windows, plain_votes
from capsella.routing import CapsuleConv, squash_exponential
from capsella.routing.convolution import gather_windows
from capsella.types import Capsules


@dataclass(frozen=True)
class PlainSelfRouting(Windows):
    """Hahn et al. 2019 with the formulas of `self_routing`."""

    name: ClassVar[str] = "plain-self"

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """W [i j p] and b [i j]."""
        return {"weight": (children, types, child_pose), "bias": (children, types)}

    def capsule_conv(self, conv: CapsuleConv, **parameters: Tensor) -> Capsules:
        """The children's poses say where they go."""
        sizes = conv.sizes
        u = gather_windows(conv.poses, conv.geometry).reshape(sizes.batch, -1, sizes.k, sizes.c_in, sizes.r * sizes.q)
        weight = parameters["weight"].unflatten(0, (sizes.k, sizes.c_in))
        logits = torch.einsum("bskmp,kmjp->bskmj", u, weight)
        V, a_in = plain_votes(conv)
        poses, a, _ = self._procedure(V, a_in, logits=logits, **parameters)
        return conv.parents(poses, a)

    def _procedure(  # type: ignore[override]
        self, V: Tensor, a_in: Tensor, bias: Tensor, weight: Tensor, logits: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        R = (logits + bias.unflatten(0, V.shape[2:4]).expand(V.shape[:5])).softmax(4)
        given = a_in[..., None] * R  # [b s k m j]
        received = given.sum((2, 3))
        poses = (given[..., None] * V).sum((2, 3)) / received[..., None]
        return poses, received / a_in.sum((2, 3))[..., None], R


@dataclass(frozen=True)
class PlainSelfAttentionRouting(Windows):
    """Mazzia et al. 2021 with the formulas of `self_attention_routing`."""

    name: ClassVar[str] = "plain-self-attention"

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """The prior [i j]."""
        return {"prior": (children, types)}

    def _procedure(  # type: ignore[override]
        self, V: Tensor, a_in: Tensor, prior: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        total = V.sum((2, 3), keepdim=True)
        c = ((V * total).sum(5) / math.sqrt(V.shape[5])).softmax(4)
        v = squash_exponential(((c + prior.unflatten(0, V.shape[2:4]))[..., None] * V).sum((2, 3)))
        return v, v.norm(dim=3), c


@dataclass(frozen=True)
class PlainInvertedAttentionRouting(Windows):
    """Tsai et al. 2020 with the formulas of `inverted_attention_routing`."""

    name: ClassVar[str] = "plain-inverted-attention"

    iterations: int = 2

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Scale and shift [d] of the layer normalisation."""
        return {"scale": (pose,), "shift": (pose,)}

    def _procedure(  # type: ignore[override]
        self, V: Tensor, a_in: Tensor, scale: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        R = torch.ones_like(V[..., 0]) / V.shape[4]
        for t in range(self.iterations):
            p = layer_norm((R[..., None] * V).sum((2, 3)), (V.shape[5],), scale, shift)
            if t < self.iterations - 1:
                R = ((V * p[:, :, None, None]).sum(5) / math.sqrt(V.shape[5])).softmax(4)
        return p, torch.ones_like(p[..., 0]), R

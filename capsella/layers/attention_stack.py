"""Capsule layers that inverted attention routes all at once (Tsai et al. 2020)."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from capsella.errors import check_argument
from capsella.layers.convolution import CapsuleConv2d, PoseKind
from capsella.routing import InvertedAttentionRouting, RoutingTrace
from capsella.routing.recording import new_trace
from capsella.types import Capsules


class AttentionCapsules(CapsuleConv2d):
    """One layer of an `AttentionStack`: a capsule convolution that makes one round of routing a call.

    Its first weights have the authors' deviation, √(parents / (d · children in the window)), around zero.

    Args:
        types_in, pose_in, types_out, pose_out, kernel, stride, pose: as for `CapsuleConv2d`. d is a matrix's rows.
        routing: of the whole stack.
    """

    def __init__(
        self,
        types_in: int,
        pose_in: int,
        types_out: int,
        pose_out: int,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        *,
        pose: PoseKind = "matrix",
        routing: InvertedAttentionRouting = InvertedAttentionRouting(),
    ) -> None:
        super().__init__(types_in, pose_in, types_out, pose_out, kernel, stride, pose=pose, routing=routing)
        kh, kw, c_in, c_out, q, _ = self.weight.shape
        if not self.weight.is_meta:  # see start_for_relus
            nn.init.normal_(self.weight, std=math.sqrt(c_out / (q * kh * kw * c_in)))

    def forward(
        self, children: Capsules, parents: Capsules | None = None, trace: RoutingTrace | None = None
    ) -> Capsules:
        """One round, from the parents of the round before, or from even couplings; always at least in float32.

        trace: that keeps the round.
        """
        options = cast(InvertedAttentionRouting, self.routing)
        with torch.autocast(children.poses.device.type, enabled=False):
            conv = self.conv_of(children)
            before = None if parents is None else parents.poses.reshape(conv.sizes.n, conv.sizes.c_out, conv.sizes.d)
            routed = options.round(conv, before, **self._parameters_of_routing())
        if trace is not None:
            trace.add(routed.couplings, routed.poses, routed.activations)
        return conv.parents(routed.poses, routed.activations)


class AttentionStack(nn.Sequential):
    """Layers of inverted attention, routed concurrently: in each round every layer makes one.

    The first round goes up the layers with even couplings. In each further one, all layers take their children's and
    their own poses of the round before, as if at once. With `concurrent=False` a layer makes all its rounds before the
    next one begins.

    Shapes: as of its layers one after the other.

    Raises:
        ValueError: no layers, or of different numbers of rounds.
    """

    def __init__(self, layers: Sequence[AttentionCapsules], *, concurrent: bool = True) -> None:
        super().__init__(*layers)
        rounds = {cast(InvertedAttentionRouting, layer.routing).iterations for layer in layers}
        check_argument(len(rounds) == 1, "be those of at least one layer, the same for all", iterations=sorted(rounds))
        (self.rounds,) = rounds
        self.concurrent = concurrent

    def __getitem__(self, index: slice | int) -> "AttentionStack | nn.Module":
        """A layer, or a stack of some."""
        if isinstance(index, slice):
            return AttentionStack(cast(list[AttentionCapsules], list(self)[index]), concurrent=self.concurrent)
        return super().__getitem__(index)

    def forward(self, children: Capsules) -> Capsules:
        """The last layer's capsules after the last round."""
        traces = [new_trace("inverted_attention") for _ in self]
        if not self.concurrent:
            for layer, trace in zip(self, traces, strict=True):
                parents = None
                for _ in range(self.rounds):
                    parents = layer(children, parents, trace)
                children = cast(Capsules, parents)
            return children
        capsules = [children]  # of each level, from the lowest up
        for layer, trace in zip(self, traces, strict=True):
            capsules.append(layer(capsules[-1], None, trace))
        for _ in range(self.rounds - 1):
            levels = zip(self, capsules[:-1], capsules[1:], traces, strict=True)
            capsules = [children, *(layer(below, own, trace) for layer, below, own, trace in levels)]
        return capsules[-1]

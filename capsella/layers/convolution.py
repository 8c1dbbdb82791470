"""Routed capsule layers: convolutions, dense layers, concurrently routed layers, and those of cluster routing."""

import math
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import ArgumentError, check_argument, check_minimum
from capsella.layers.norms import NormaliseCapsules, ParentNorm
from capsella.routing import (
    DynamicRouting,
    Geometry,
    InvertedAttentionRouting,
    LogisticRouting,
    Routing,
    RoutingInputs,
    RoutingTrace,
)
from capsella.routing.backends import choose_backend
from capsella.routing.cluster import BACKENDS, cluster_routing
from capsella.routing.functional import checkpointed_in_chunks
from capsella.routing.recording import new_trace, record_normalised
from capsella.types import CapsuleLogits, Capsules, at_least_float32, check_children

PoseKind = Literal["vector", "matrix"]
# Standard deviation of capsule weights in the code of [S]. Added to the identity, it makes the parents differ.
WEIGHT_SD = 0.1


class CapsuleConv2d(nn.Module):
    """A convolution of capsules: the children in a window vote for the parents at its site, routing weighs the votes.

    Every child type at every window position has its own weight W [pose_in pose_out] for every parent type; all windows
    share these weights. With `tied=True`, all positions in a window share them, too: one W per pair of types.

    With `pose="matrix"`, a pose is an n×n matrix M, stored row by row, and its vote is M·W with W [n n] (Hinton et al.
    2018).

    Shapes: Capsules(poses [b h w types_in pose_in], activations [b h w types_in])
    → Capsules(poses [b h' w' types_out pose_out], activations [b h' w' types_out]).

    Args:
        types_in: capsule types of the layer below.
        pose_in: pose elements of each child.
        types_out: capsule types of this layer.
        pose_out: pose elements of each parent.
        kernel: rows and columns of the window; one number for a square.
        stride: rows and columns between windows; one number for both.
        tied: share W over the positions in the window.
        pose: "vector" or "matrix"; matrix poses have pose_in = pose_out = n².
        vote_offset: [h w pose_out], added to the votes of all children at a grid position: see `coordinate_addition`.
        weight_sd: standard deviation of the initial weights. Their mean is the identity for matrix poses, and for
            square weights of a routing that compares poses; otherwise zero.
        routing: the routing method with its options.
        norm: "batch" normalises parents by type, as in `NormaliseCapsules`; their activations are the logistic function
            of the normalised log-odds. Only for a `LogisticRouting`.
    """

    vote_offset: Tensor | None

    def __init__(
        self,
        types_in: int,
        pose_in: int,
        types_out: int,
        pose_out: int,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        *,
        tied: bool = False,
        pose: PoseKind = "vector",
        vote_offset: Float[Tensor, "h w pose_out"] | None = None,
        weight_sd: float = WEIGHT_SD,
        routing: Routing = DynamicRouting(),
        norm: ParentNorm | None = None,
    ) -> None:
        super().__init__()
        check_argument(isinstance(routing, Routing), "be a Routing, e.g. EMRouting()", routing=routing)
        holds = norm is None or (norm == "batch" and isinstance(routing, LogisticRouting))
        check_argument(holds, "be None, or 'batch' for a routing whose activations have log-odds", norm=norm)
        check_minimum(1, types_in=types_in, pose_in=pose_in, types_out=types_out, pose_out=pose_out)
        check_argument(weight_sd > 0, "be above 0", weight_sd=weight_sd)
        check_argument(pose in ("vector", "matrix"), "be 'vector' or 'matrix'", pose=pose)
        self.geometry = Geometry(_pair(kernel), _pair(stride), tied, matrix=pose == "matrix")
        self.routing = routing
        shape = self.geometry.weight_shape(types_in, pose_in, types_out, pose_out)
        self.weight = nn.Parameter(_initial_weight(shape, weight_sd, pose, routing))
        # Not saved with the weights: it follows from the geometry.
        self.register_buffer("vote_offset", vote_offset, persistent=False)
        children = math.prod(self.geometry.kernel) * types_in
        self.routing_parameters = nn.ParameterDict(routing.init_parameters(types_out, pose_out, children, pose_in))
        self.norm = None if norm is None else NormaliseCapsules(types_out)

    def forward(self, children: Capsules) -> Capsules:
        """Route the children of every window, at least in float32, because routing sums thousands of small votes."""
        if self.norm is not None:
            return self.route_logits(children).capsules()
        with torch.autocast(children.poses.device.type, enabled=False):
            return self.routing.route_windows(self.routing_inputs(children), **self._float_parameters())

    def route_logits(self, children: Capsules) -> CapsuleLogits:
        """Route as `forward` does, but return log-odds in place of activations.

        Raises:
            ArgumentError: the routing's activations have no log-odds.
        """
        routing = self.routing
        if not isinstance(routing, LogisticRouting):
            raise ArgumentError("routing", "be one whose activations have log-odds", routing.name)
        with torch.autocast(children.poses.device.type, enabled=False):
            routed = routing.route_window_logits(self.routing_inputs(children), **self._float_parameters())
            if self.norm is None:
                return routed
            normalised: CapsuleLogits = self.norm(routed)
            record_normalised(normalised.log_odds.sigmoid())
            return normalised

    def routing_inputs(self, children: Capsules) -> RoutingInputs:
        """Return these children with the layer's weight and geometry, in the layer's dtype, at least float32.

        Raises:
            ValueError: children with other numbers of types or pose elements.
        """
        weight, (_, _, types, _, q, _) = at_least_float32(self.weight), self.weight.shape
        pose = q * q if self.geometry.matrix else q
        check_children(children, types, pose)
        poses, activations = (part.to(weight.dtype) for part in children)
        offset = None if self.vote_offset is None else self.vote_offset.to(weight.dtype)
        return RoutingInputs(poses, activations, weight, self.geometry, offset)

    def _float_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of the routing, at least in float32, whatever the layer's dtype."""
        return {name: at_least_float32(parameter) for name, parameter in self.routing_parameters.items()}


class DenseCapsules(CapsuleConv2d):
    """A capsule convolution whose window is the whole `grid` of children: one parent of each type, h' = w' = 1.

    Untied, every child has its own weight for every parent (DigitCaps of Sabour et al. 2017: 6×6×32 children, 8-D → 10
    parents, 16-D). Tied, all positions share them (class capsules of Hinton et al. 2018 and Forslöv 2018).
    """

    def __init__(
        self, grid: tuple[int, int], types_in: int, pose_in: int, types_out: int, pose_out: int, **options: Any
    ) -> None:
        """Take the keyword options of `CapsuleConv2d`; there is no stride."""
        super().__init__(types_in, pose_in, types_out, pose_out, grid, **options)

    def routing_inputs(self, children: Capsules) -> RoutingInputs:
        """See `CapsuleConv2d`.

        Raises:
            ValueError: children on another grid; a larger one has several windows, so several parents per type.
        """
        grid, came = self.geometry.kernel, tuple(children.poses.shape[1:3])
        if came != grid:
            raise ValueError(f"children: must have the layer's grid of {grid[0]}×{grid[1]}, got {came[0]}×{came[1]}")
        return super().routing_inputs(children)


class MeanCapsules(DenseCapsules):
    """Dense capsules without weights: their pose is the mean of their children's poses, weighed by the routing.

    They are the class capsules of self-routing, whose couplings and activations come from the children's poses. Weights
    for votes would get no gradient from the loss, and the authors' network has none.

    Shapes: as `DenseCapsules`, with pose_out = pose_in.

    Args:
        grid: rows and columns of the children.
        types_in: capsule types of the layer below.
        pose: pose elements of children and parents.
        types_out: capsule types of this layer.
        routing: a routing that distinguishes parents by something other than votes, which are the same for all.
    """

    def __init__(self, grid: tuple[int, int], types_in: int, pose: int, types_out: int, *, routing: Routing) -> None:
        super().__init__(grid, types_in, pose, types_out, pose, tied=True, routing=routing)
        del self.weight
        # Not saved with the weights, because it never changes. torch.eye would import PyTorch's compiler.
        unit = torch.zeros(pose, pose).fill_diagonal_(1)
        # Cloned, because an expanded tensor cannot hold the running average of weights over training steps.
        weight = unit.expand(1, 1, types_in, types_out, pose, pose).clone()
        self.register_buffer("weight", weight, persistent=False)


class AttentionCapsules(CapsuleConv2d):
    """A layer of an `AttentionStack`: a capsule convolution that runs one round of routing per call.

    The initial weights have mean zero and, as in the authors' code, a standard deviation of √(parents / (d · children
    in the window)), where d is the number of a matrix pose's rows.

    Args:
        types_in, pose_in, types_out, pose_out, kernel, stride: as for `CapsuleConv2d`; poses are matrices.
        routing: the routing of the whole stack.
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
        routing: InvertedAttentionRouting = InvertedAttentionRouting(),
    ) -> None:
        super().__init__(types_in, pose_in, types_out, pose_out, kernel, stride, pose="matrix", routing=routing)
        kh, kw, c_in, c_out, q, _ = self.weight.shape
        if not self.weight.is_meta:  # see he_init_
            nn.init.normal_(self.weight, std=math.sqrt(c_out / (q * kh * kw * c_in)))

    def forward(
        self, children: Capsules, parents: Capsules | None = None, trace: RoutingTrace | None = None
    ) -> Capsules:
        """Run one round, from the parents of the previous round or from uniform couplings; at least in float32.

        The round is added to `trace`.
        """
        options = cast(InvertedAttentionRouting, self.routing)
        with torch.autocast(children.poses.device.type, enabled=False):
            inputs = self.routing_inputs(children)
            shape = inputs.shape
            before = None if parents is None else parents.poses.reshape(shape.n, shape.c_out, shape.d)
            routed = options.round(inputs, before, **self._float_parameters())
        if trace is not None:
            trace.add(routed.couplings, routed.poses, routed.activations)
        return inputs.parents(routed.poses, routed.activations)


class AttentionStack(nn.Sequential):
    """Layers of inverted attention, routed concurrently: every round updates all layers.

    The first round goes up the layers with uniform couplings. In each further round, all layers read their children's
    and their own poses from the previous round. With `concurrent=False`, a layer runs all its rounds before the next
    layer begins.

    Shapes: those of its layers one after the other.

    Raises:
        ValueError: no layers, or layers with different numbers of rounds.
    """

    def __init__(self, layers: Sequence[AttentionCapsules], *, concurrent: bool = True) -> None:
        super().__init__(*layers)
        rounds = {cast(InvertedAttentionRouting, layer.routing).iterations for layer in layers}
        check_argument(len(rounds) == 1, "be those of at least one layer, the same for all", iterations=sorted(rounds))
        (self.rounds,) = rounds
        self.concurrent = concurrent

    def __getitem__(self, index: slice | int) -> "AttentionStack | nn.Module":
        """Return one layer, or for a slice a stack of layers."""
        if isinstance(index, slice):
            return AttentionStack(cast(list[AttentionCapsules], list(self)[index]), concurrent=self.concurrent)
        return super().__getitem__(index)

    def forward(self, children: Capsules) -> Capsules:
        """Return the last layer's capsules after the last round."""
        traces = [new_trace("inverted_attention") for _ in self]
        if not self.concurrent:
            for layer, trace in zip(self, traces, strict=True):
                parents = None
                for _ in range(self.rounds):
                    parents = layer(children, parents, trace)
                children = cast(Capsules, parents)
            return children
        capsules = [children]  # of every layer, from the children up
        for layer, trace in zip(self, traces, strict=True):
            capsules.append(layer(capsules[-1], None, trace))
        for _ in range(self.rounds - 1):
            levels = zip(self, capsules[:-1], capsules[1:], traces, strict=True)
            capsules = [children, *(layer(below, here, trace) for layer, below, here, trace in levels)]
        return capsules[-1]


class PixelCapsules(nn.Module):
    """Images as capsules, for a capsule layer to read: `types` capsules per pixel, all with its channels as their pose.

    Shapes: [b channels h w] → Capsules(poses [b h w types channels], activations [b h w types], all 1).
    """

    def __init__(self, types: int) -> None:
        super().__init__()
        check_minimum(1, types=types)
        self.types = types

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Return views of the images; nothing is copied."""
        poses = images.permute(0, 2, 3, 1).unsqueeze(3).expand(-1, -1, -1, self.types, -1)
        return Capsules(poses, torch.ones_like(poses[..., 0]))


class ClusterCapsules(nn.Module):
    """A capsule layer of cluster routing: votes by convolution, `cluster_routing`, and layer normalisation.

    A 3×3 convolution of each child type's pose elements, over the grid padded with zeros, makes that type's votes at a
    site. The layer normalisation is over all elements and sites of a parent type; scale and shift are shared by the
    types. There are no activations: all are 1. Children compete for a parent, element by element, so there are no
    couplings to record.

    Shapes: Capsules(poses [b h w types_in pose_in], activations [b h w types_in])
    → Capsules(poses [b h' w' types_out pose_out], activations [b h' w' types_out]), h' = ⌈h/stride⌉, w' = ⌈w/stride⌉;
    with `whole`, poses [b 1 1 types_out pose_out·h'·w'].

    Args:
        types_in: capsule types of the layer below.
        pose_in: pose elements of each child.
        types_out: capsule types of this layer.
        pose_out: pose elements of each parent, at a site.
        votes: number of votes of a child type for a parent type at a site, at least 2.
        grid: rows and columns h'×w' of this layer's sites.
        stride: rows and columns between windows.
        whole: join all sites of a type into one capsule, e.g. for classes.
        backend: backend of `cluster_routing`; "eager" for second derivatives.

    Raises:
        ValueError: a size below 1, votes below 2, an unknown backend.
    """

    def __init__(
        self,
        types_in: int,
        pose_in: int,
        types_out: int,
        pose_out: int,
        votes: int,
        grid: tuple[int, int],
        *,
        stride: int = 1,
        whole: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_minimum(1, types_in=types_in, pose_in=pose_in, types_out=types_out, pose_out=pose_out, stride=stride)
        check_minimum(2, votes=votes)
        choose_backend(backend, BACKENDS, auto="auto")
        self.types_in, self.pose_in, self.types_out, self.pose_out = types_in, pose_in, types_out, pose_out
        self.votes = votes
        self.whole, self.backend = whole, backend
        self.conv = nn.Conv2d(
            types_in * pose_in,
            types_in * votes * types_out * pose_out,
            3,
            stride,
            padding=1,
            groups=types_in,
        )
        self.norm = nn.LayerNorm((pose_out, *grid))

    def forward(self, children: Capsules) -> Capsules:
        """Make, route and normalise the votes; after the convolution at least in float32."""
        votes_of_a_parent = self.types_in * self.votes
        return checkpointed_in_chunks(
            self._route, children, votes_of_a_parent * self.types_out * self.norm.weight.numel()
        )

    def _route(self, children: Capsules) -> Capsules:
        votes = self.cast_votes(children)
        with torch.autocast(votes.device.type, enabled=False):
            poses = cluster_routing(votes.flatten(4), backend=self.backend).poses.unflatten(2, votes.shape[4:])
            poses = cast(Tensor, self.norm(poses.to(self.norm.weight.dtype)))
        poses = poses.flatten(2)[:, None, None] if self.whole else poses.permute(0, 3, 4, 1, 2)
        return Capsules(poses, torch.ones_like(poses[..., 0]))

    def cast_votes(self, children: Capsules) -> Float[Tensor, "b g i j d rows columns"]:
        """Return the votes of each child type's cluster [g], for every pose element [d] and site.

        Raises:
            ValueError: children of other types or pose elements.
        """
        check_children(children, self.types_in, self.pose_in)
        # Contiguous, so that the votes are contiguous too; otherwise the kernels would copy them.
        poses = children.poses.permute(0, 3, 4, 1, 2).flatten(1, 2).contiguous()
        maps: Tensor = self.conv(poses.to(self.conv.weight.dtype))  # [b (i g j d) h' w']
        votes = maps.unflatten(1, (self.types_in, self.votes, self.types_out, self.pose_out))
        return votes.transpose(1, 2)


def _initial_weight(shape: tuple[int, ...], sd: float, pose: PoseKind, routing: Routing) -> Tensor:
    weight = torch.empty(shape)
    if not weight.is_meta:  # see he_init_
        weight.normal_(std=sd)
    if pose == "matrix" or (routing.compares_poses and shape[-2] == shape[-1]):
        weight.diagonal(dim1=-2, dim2=-1).add_(1)
    return weight


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value

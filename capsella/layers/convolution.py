"""Routed capsule layers: one capsule convolution, and its dense and position-tied forms."""

import math
import operator
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import ArgumentError, check_argument, check_minimum
from capsella.layers.norms import NormaliseCapsules, ParentNorm
from capsella.routing import CapsuleConv, DynamicRouting, Geometry, LogisticRouting, Routing
from capsella.routing.recording import record_normalised
from capsella.types import Capsules, ScoredCapsules, at_least_float32, check_children

PoseKind = Literal["vector", "matrix"]
# The authors' code of [S] draws capsule weights with this standard deviation; near the identity, parents then differ.
WEIGHT_SD = 0.1


class CapsuleConv2d(nn.Module):
    """A convolution of capsules: the children in a window vote for the parents at its site, routing decides.

    Every child type at every window position has its own weight W [pose_in pose_out] for every parent type; the same
    W serve all windows. With `tied=True` one W per pair of types also serves all positions in the window.

    With `pose="matrix"` a pose is an n×n matrix M, row by row, its vote M·W, and W [n n] (Hinton et al. 2018).

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
        weight_sd: standard deviation of the first weights, around zero, or around the identity where votes start as
            their children's poses.
        routing: the routing method with its options.
        norm: "batch" for parents normalised by type, as in `NormaliseCapsules`; their activations are the logistic
            function of what becomes of their log-odds. Only for a routing that has log-odds: a `LogisticRouting`.
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
        check_argument(isinstance(routing, Routing), "be a Routing, as EMRouting()", routing=routing)
        _check_norm(norm, routing)
        check_minimum(1, types_in=types_in, pose_in=pose_in, types_out=types_out, pose_out=pose_out)
        check_argument(weight_sd > 0, "be above 0", weight_sd=weight_sd)
        check_argument(pose in ("vector", "matrix"), "be 'vector' or 'matrix'", pose=pose)
        self.geometry = Geometry(_pair("kernel", kernel), _pair("stride", stride), tied, matrix=pose == "matrix")
        self.routing = routing
        shape = self.geometry.weight_shape(types_in, pose_in, types_out, pose_out)
        self.weight = nn.Parameter(_initial_weight(shape, weight_sd, pose, routing))
        # Not a part of the saved weights: the geometry gives it.
        self.register_buffer("vote_offset", vote_offset, persistent=False)
        children = math.prod(self.geometry.kernel) * types_in
        self.routing_parameters = nn.ParameterDict(routing.first_parameters(types_out, pose_out, children, pose_in))
        self.norm = None if norm is None else NormaliseCapsules(types_out)

    def forward(self, children: Capsules) -> Capsules:
        """Route the children of every window; always at least in float32, since it sums thousands of small votes."""
        if self.norm is not None:
            return self.score(children).capsules()
        with torch.autocast(children.poses.device.type, enabled=False):
            return self.routing.capsule_conv(self.conv_of(children), **self._parameters_of_routing())

    def score(self, children: Capsules) -> ScoredCapsules:
        """As `forward`, with log-odds in place of activations.

        Raises:
            ValueError: a routing whose activations have none.
        """
        routing = self.routing
        if not isinstance(routing, LogisticRouting):
            raise ArgumentError("routing", "be one whose activations are of log-odds", routing.name)
        with torch.autocast(children.poses.device.type, enabled=False):
            scored = routing.score_conv(self.conv_of(children), **self._parameters_of_routing())
            if self.norm is None:
                return scored
            normalised: ScoredCapsules = self.norm(scored)
            record_normalised(normalised.log_odds.sigmoid())
            return normalised

    def conv_of(self, children: Capsules) -> CapsuleConv:
        """The capsule convolution of these children, in the layer's type, with its weight and geometry.

        In float32 where the layer's type is of half precision.

        Raises:
            ValueError: children of other types or pose elements; a `vote_offset` without numbers.
        """
        weight, (_, _, types, _, q, _) = at_least_float32(self.weight), self.weight.shape
        pose = q * q if self.geometry.matrix else q
        check_children(children, types, pose)
        if self.vote_offset is not None and self.vote_offset.is_meta and not weight.is_meta:
            raise ValueError(
                "vote_offset: must not be on the meta device; no file of weights holds it: make the layer on another"
            )
        poses, activations = (part.to(weight.dtype) for part in children)
        offset = None if self.vote_offset is None else self.vote_offset.to(weight.dtype)
        return CapsuleConv(poses, activations, weight, self.geometry, offset)

    def _parameters_of_routing(self) -> dict[str, Tensor]:
        """At least in float32, as all that is routed, also where the layer was made another type."""
        return {name: at_least_float32(parameter) for name, parameter in self.routing_parameters.items()}


class DenseCapsules(CapsuleConv2d):
    """A capsule convolution whose window is the whole `grid` of children: one parent of each type, h' = w' = 1.

    Untied, every child has its own weight for every parent (DigitCaps of Sabour et al. 2017: 6×6×32 children, 8-D → 10
    parents, 16-D). Tied, all positions share them (class capsules of Hinton et al. 2018 and Forslöv 2018).
    """

    def __init__(
        self,
        grid: tuple[int, int],
        types_in: int,
        pose_in: int,
        types_out: int,
        pose_out: int,
        *,
        tied: bool = False,
        pose: PoseKind = "vector",
        vote_offset: Float[Tensor, "h w pose_out"] | None = None,
        weight_sd: float = WEIGHT_SD,
        routing: Routing = DynamicRouting(),
        norm: ParentNorm | None = None,
    ) -> None:
        super().__init__(
            types_in,
            pose_in,
            types_out,
            pose_out,
            grid,
            tied=tied,
            pose=pose,
            vote_offset=vote_offset,
            weight_sd=weight_sd,
            routing=routing,
            norm=norm,
        )

    def conv_of(self, children: Capsules) -> CapsuleConv:
        """As in `CapsuleConv2d`.

        Raises:
            ValueError: children of another grid; a larger one would have several windows, and several parents a type.
        """
        grid, came = self.geometry.kernel, tuple(children.poses.shape[1:3])
        if came != grid:
            raise ValueError(f"children: must have the layer's grid of {grid[0]}×{grid[1]}, got {came[0]}×{came[1]}")
        return super().conv_of(children)


def _check_norm(norm: str | None, routing: Routing) -> None:
    if norm is None:
        return
    if norm != "batch":
        raise ArgumentError("norm", "be 'batch' or None", norm)
    if not isinstance(routing, LogisticRouting):
        raise ValueError(
            f"norm: must be None for routing {routing.name!r}, which has no log-odds to normalise; got {norm!r}"
        )


def _initial_weight(shape: tuple[int, ...], sd: float, pose: PoseKind, routing: Routing) -> Tensor:
    weight = torch.empty(shape)
    if not weight.is_meta:  # see start_for_relus
        weight.normal_(std=sd)
    if pose == "matrix" or (routing.compares_poses and shape[-2] == shape[-1]):
        weight.diagonal(dim1=-2, dim2=-1).add_(1)
    return weight


def _pair(name: str, value: int | tuple[int, int]) -> tuple[int, int]:
    pair = value if isinstance(value, Sequence) else (value, value)
    check_argument(len(pair) == 2, "be one number, or two for rows and columns", **{name: value})
    rows, columns = pair
    return operator.index(rows), operator.index(columns)

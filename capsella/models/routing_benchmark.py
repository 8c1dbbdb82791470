"""The networks of our routing benchmark: they differ only in their routing, or have none."""

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, Literal

import torch
from torch import nn

from capsella.errors import ArgumentError, check_minimum
from capsella.layers import (
    CapsuleConv2d,
    ClusterCapsules,
    DenseCapsules,
    LayerNormPrimaryCapsules,
    LogActivations,
    MatrixPrimaryCapsules,
    MeanCapsules,
    NormalisedPrimaryCapsules,
    NormalisePoses,
    PoseScores,
    PrepareImages,
    PrimaryCapsules,
    he_init_,
)
from capsella.layers.norms import ParentNorm
from capsella.models.base import ImageClassifier, count_parameters, grid_after, register_variant
from capsella.models.classifiers import CapsuleClassifier, ConvolutionalClassifier
from capsella.models.hinton2018 import SMALLNORB
from capsella.routing import DynamicRouting, Routing

PARAMETERS = 128_000  # of every network; the last convolution is narrower if a routing learns parameters
# Pose elements; types of the primary capsules and of the capsule convolution; its (kernel, stride).
POSE, TYPES, KERNEL = 16, (8, 16), (3, 2)
STRIDES = (2, 1, 2)  # of the three 3×3 convolutions, of 32, 64 and `width` channels
CLUSTER_TYPES, CLUSTER_POSE, CLUSTER_VOTES = 4, 6, 4
# Weights are scaled so that a parent's sum of votes is at first this times the mean of its children. Their directions
# differ, so that its length is about 1.
FIRST_LENGTH = 4.0
Head = Literal["capsnet", "cluster", "pooling", "cnn"]


def _network(
    head: Head,
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 1,
    classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = DynamicRouting(iterations=3),
    parameters: int = PARAMETERS,
    width: int | None = None,
    crop: int | None = None,
    standardise: bool = True,
    brightness: float = 0.0,
    contrast: float = 0.0,
) -> ImageClassifier:
    """Build a network of the benchmark: three convolutions and a head.

    Args:
        image_size: (height, width) after the crop, at least 9×9; with cluster routing or average pooling, at least 1×1.
        routing: routing of both routed layers.
        parameters: approximate number of parameters of the whole network, to within a few per cent.
        width: channels of the last convolution; None chooses the width that comes nearest to `parameters`.
        crop, standardise, brightness, contrast: as for `hinton2018_matrix_capsnet`.

    Raises:
        ArgumentError: an image too small, or fewer parameters than the narrowest network has.
    """
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    after = {"pooling": [], "cluster": [(1, 2)]}.get(head, [KERNEL])
    grid = grid_after(prepare.size, [*((1, stride) for stride in STRIDES), *after])

    def build(width: int) -> ImageClassifier:
        backbone = nn.Sequential(prepare, *_convolutions(channels, width))
        if head == "capsnet":
            return _capsnet(backbone, width, grid, routing, len(classes))
        if head == "cluster":
            return _cluster(backbone, width, grid, len(classes))
        layers: list[nn.Module]
        if head == "pooling":
            layers = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, len(classes))]
        else:
            layers = [nn.Conv2d(width, width, *KERNEL, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            layers += [nn.Flatten(), nn.Linear(width * grid[0] * grid[1], len(classes))]
        return ConvolutionalClassifier(nn.Sequential(*backbone, *layers))

    return _with_parameters(build, parameters, width)


HEADS: dict[Head, str] = {
    "capsnet": "Three convolutions, primary capsules, a 3×3 capsule convolution, tied class capsules.",
    "cluster": "The convolutions of `benchmark_capsnet` with cluster routing, whose votes are convolutions.",
    "pooling": "The convolutions of `benchmark_capsnet`, average pooling, and a linear layer.",
    "cnn": "The convolutions of `benchmark_capsnet`, one more in place of capsules, and a linear layer on all maps.",
}
for _head, _summary in HEADS.items():
    _lacks = () if _head == "capsnet" else ("routing",)
    register_variant(f"benchmark_{_head}", _summary, _network, _head, without=_lacks)


def _capsnet(
    backbone: nn.Module, width: int, grid: tuple[int, int], routing: Routing, classes: int
) -> CapsuleClassifier:
    """Add 8 types of primary capsules, a capsule convolution of 16 types, and class capsules, all with 4×4 poses.

    The layers around a routing depend on the kind of its activations, as in its paper. Lengths: primary capsules are
    squashed. Log-odds: every layer is batch-normalised, and log-odds of the classes are the logits. Shares: poses are
    normalised, and class capsules have no votes. None: a linear unit shared by all classes reads the class poses.
    """
    kind, primary = routing.activation_kind, _primary(width, routing.activation_kind)
    norm: ParentNorm | None = "batch" if kind == "log-odds" else None
    layers: list[nn.Module] = [
        CapsuleConv2d(TYPES[0], POSE, TYPES[1], POSE, *KERNEL, pose="matrix", routing=routing, norm=norm)
    ]
    if kind == "shares":
        layers.append(NormalisePoses(TYPES[1], POSE))  # nothing else bounds them
        layers.append(MeanCapsules(grid, TYPES[1], POSE, classes, routing=routing))
    else:
        options: dict[str, Any] = {"tied": True, "pose": "matrix", "routing": routing, "norm": norm}
        layers.append(DenseCapsules(grid, TYPES[1], POSE, classes, POSE, **options))
    poses = None if routing.has_activations else PoseScores(POSE, bias=False)
    model = CapsuleClassifier(
        backbone=backbone,
        primary=primary,
        capsule_layers=nn.Sequential(*layers),
        logits=kind == "log-odds",
        scores=LogActivations() if kind == "shares" else poses,
    )
    he_init_(model.backbone)
    if kind == "lengths":
        _scale_votes(model)
    return model


def _cluster(backbone: nn.Module, width: int, grid: tuple[int, int], classes: int) -> CapsuleClassifier:
    """Add cluster routing; for an equal number of parameters, 4 types of 6 elements cast 4 votes for each parent."""
    types, pose, votes = CLUSTER_TYPES, CLUSTER_POSE, CLUSTER_VOTES
    model = CapsuleClassifier(
        backbone=backbone,
        primary=LayerNormPrimaryCapsules(width, types, pose),
        capsule_layers=nn.Sequential(
            ClusterCapsules(types, pose, types, pose, votes, grid, stride=2),
            ClusterCapsules(types, pose, classes, pose, votes, grid, whole=True),
        ),
        scores=PoseScores(pose * grid[0] * grid[1], bias=False),
    )
    he_init_(model.backbone)
    return model


def _convolutions(channels: int, width: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for out, stride in zip((32, 64, width), STRIDES, strict=True):
        layers += [nn.Conv2d(channels, out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        channels = out
    return layers


def _primary(width: int, kind: str) -> nn.Module:
    if kind == "lengths":
        return PrimaryCapsules(width, TYPES[0], POSE, kernel=1, stride=1)
    if kind == "log-odds":
        return MatrixPrimaryCapsules(width, TYPES[0], POSE, norm="batch")
    if kind == "shares":
        return NormalisedPrimaryCapsules(width, TYPES[0], POSE, kernel=1)
    return LayerNormPrimaryCapsules(width, TYPES[0], POSE)


def _scale_votes(model: CapsuleClassifier) -> None:
    """Scale initial weights so that, with uniform couplings, votes sum to `FIRST_LENGTH` times the mean child.

    The plain sum over a hundred children is so long that the squash saturates, and self-attention would not learn.
    """
    for layer in model.capsule_layers:
        if isinstance(layer, CapsuleConv2d) and not layer.weight.is_meta:
            children = prod(layer.geometry.kernel) * layer.weight.shape[2]
            layer.weight.detach().mul_(FIRST_LENGTH * layer.weight.shape[3] / children)


def _with_parameters(build: Callable[[int], ImageClassifier], parameters: int, width: int | None) -> ImageClassifier:
    """Build the network of this width; without one, of the width that comes nearest to `parameters`. Save the width.

    Raises:
        ArgumentError: even the narrowest network has over 5 % more parameters.
    """
    check_minimum(1, parameters=parameters, width=width)
    if width is None:
        with torch.random.fork_rng(devices=[]):  # networks that are only counted leave the random state as it is
            count = cache(lambda width: count_parameters(build(width)))
            high = 8
            while count(high) < parameters:
                high *= 2
            low = bisect_left(range(1, high), parameters, key=count) + 1  # the narrowest with at least as many
            width = min(max(1, low - 1), low, key=lambda near: abs(count(near) - parameters))
            if count(width) > 1.05 * parameters:
                rule = f"be at least {count(width):,} for these images"
                raise ArgumentError("parameters", rule, parameters, shown=f"{parameters:,}")
    model = build(width)
    model.resolved_options = {"width": width}
    return model

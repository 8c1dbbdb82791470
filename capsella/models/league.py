"""Networks that differ in their routing alone, or have none: ours, for a league of routings."""

from collections.abc import Callable
from math import prod
from typing import TypeVar

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
    start_for_relus,
)
from capsella.layers.norms import ParentNorm
from capsella.models.base import ImageClassifier, count_parameters, register_model
from capsella.models.classifiers import CapsuleClassifier, ConvolutionalClassifier
from capsella.models.matrix_capsnet import SMALLNORB
from capsella.models.shapes import grid_after
from capsella.routing import DynamicRouting, Routing

PARAMETERS = 128_000
"""Of every network, whatever its routing, images and classes: the width of the stem makes up the difference."""
POSE, TYPES, KERNEL = 16, (8, 16), (3, 2)
"""Elements of a pose, types of primary capsules and of the layer between, whose kernel and stride follow."""
STRIDES = (2, 1, 2)
"""Of the stem's 3×3 convolutions, of 32, 64 and `width` channels."""
CLUSTER_TYPES, CLUSTER_POSE, CLUSTER_VOTES = 4, 6, 4
FIRST = 4.0
"""How long the sum of a parent's votes is at first, in mean children: their directions differ, so it is about 1."""
Model = TypeVar("Model", bound=ImageClassifier)


@register_model
def league_capsnet(
    *, image_size: tuple[int, int] = (32, 32), channels: int = 1, classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = DynamicRouting(iterations=3), parameters: int = PARAMETERS, width: int | None = None,
    crop: int | None = None, standardise: bool = True, brightness: float = 0.0, contrast: float = 0.0,
) -> CapsuleClassifier:  # fmt: skip
    """Three convolutions, 8 types of primary capsules, 16 types by a 3×3 capsule convolution, tied class capsules.

    Poses are 4×4 matrices. By its kind of activations, a routing has the layers around it that its own paper has:
    lengths are of squashed primary capsules; log-odds are normalised by batch in every layer, and are the logits;
    shares come of normalised poses, and class capsules without votes; without activations, a linear unit shared by all
    classes reads their poses. About 128,000 parameters: `width` makes up for what a routing learns.

    Args:
        image_size: (height, width), at least 9×9 (after the crop).
        channels: of the images.
        classes: their names.
        routing: of both routed layers.
        parameters: of the whole network, nearly.
        width: channels of the last convolution; None for the one with which the network has `parameters`.
        crop, standardise, brightness, contrast: as for `hinton2018_matrix_capsnet`.

    Raises:
        ValueError: an image too small, or fewer parameters than the narrowest network has.
    """
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    grid = grid_after(prepare.size, [*((1, stride) for stride in STRIDES), KERNEL])

    def build(width: int) -> CapsuleClassifier:
        model = CapsuleClassifier(
            backbone=nn.Sequential(prepare, *_stem(channels, width)), primary=_primary(width, routing),
            capsule_layers=nn.Sequential(*_between(routing), _class_capsules(grid, len(classes), routing)),
            decoder=None,
            logits=routing.activation_kind == "log-odds",
            scores=_scores(routing),
            image_size=image_size, channels=channels, classes=classes,
        )  # fmt: skip
        _start(model, routing)
        return model

    return _of_parameters(build, parameters, width)


@register_model
def league_cluster(
    *, image_size: tuple[int, int] = (32, 32), channels: int = 1, classes: tuple[str, ...] = SMALLNORB,
    parameters: int = PARAMETERS, width: int | None = None,
    crop: int | None = None, standardise: bool = True, brightness: float = 0.0, contrast: float = 0.0,
) -> CapsuleClassifier:  # fmt: skip
    """The stem of `league_capsnet` with cluster routing, whose votes come of convolutions.

    Its geometry is not the others': at as many parameters, 4 types of 6 elements cast 4 votes for each parent. Class
    capsules are read off as in its own network.

    Args as for `league_capsnet`, and

    Args:
        image_size: (height, width), at least 1×1.

    Raises:
        ValueError: as for `league_capsnet`.
    """
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    grid = grid_after(prepare.size, [(1, stride) for stride in (*STRIDES, 2)])
    types, pose, votes = CLUSTER_TYPES, CLUSTER_POSE, CLUSTER_VOTES

    def build(width: int) -> CapsuleClassifier:
        model = CapsuleClassifier(
            backbone=nn.Sequential(prepare, *_stem(channels, width)),
            primary=LayerNormPrimaryCapsules(width, types, pose),
            capsule_layers=nn.Sequential(
                ClusterCapsules(types, pose, types, pose, votes, grid, stride=2),
                ClusterCapsules(types, pose, len(classes), pose, votes, grid, whole=True),
            ),
            decoder=None,
            scores=PoseScores(pose * grid[0] * grid[1], bias=False),
            image_size=image_size,
            channels=channels,
            classes=classes,
        )
        start_for_relus(model.backbone)
        return model

    return _of_parameters(build, parameters, width)


@register_model
def league_pooling(
    *, image_size: tuple[int, int] = (32, 32), channels: int = 1, classes: tuple[str, ...] = SMALLNORB,
    parameters: int = PARAMETERS, width: int | None = None,
    crop: int | None = None, standardise: bool = True, brightness: float = 0.0, contrast: float = 0.0,
) -> ConvolutionalClassifier:  # fmt: skip
    """The stem of `league_capsnet`, its mean maps, and a linear layer.

    Args as for `league_capsnet`, and

    Args:
        image_size: (height, width), at least 1×1.

    Raises:
        ValueError: as for `league_capsnet`.
    """
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    grid_after(prepare.size, [])

    def build(width: int) -> ConvolutionalClassifier:
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, len(classes))
        network = nn.Sequential(prepare, *_stem(channels, width), *head)
        return ConvolutionalClassifier(network, image_size=image_size, channels=channels, classes=classes)

    return _of_parameters(build, parameters, width)


@register_model
def league_cnn(
    *, image_size: tuple[int, int] = (32, 32), channels: int = 1, classes: tuple[str, ...] = SMALLNORB,
    parameters: int = PARAMETERS, width: int | None = None,
    crop: int | None = None, standardise: bool = True, brightness: float = 0.0, contrast: float = 0.0,
) -> ConvolutionalClassifier:  # fmt: skip
    """The stem of `league_capsnet` with a convolution where its capsules have one, and a linear layer on all maps.

    Args as for `league_capsnet`.

    Raises:
        ValueError: as for `league_capsnet`.
    """
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    rows, columns = grid_after(prepare.size, [*((1, stride) for stride in STRIDES), KERNEL])

    def build(width: int) -> ConvolutionalClassifier:
        convolution = nn.Conv2d(width, width, *KERNEL, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        head = nn.Flatten(), nn.Linear(width * rows * columns, len(classes))
        network = nn.Sequential(prepare, *_stem(channels, width), *convolution, *head)
        return ConvolutionalClassifier(network, image_size=image_size, channels=channels, classes=classes)

    return _of_parameters(build, parameters, width)


def _stem(channels: int, width: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for out, stride in zip((32, 64, width), STRIDES, strict=True):
        layers += [nn.Conv2d(channels, out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        channels = out
    return layers


def _primary(width: int, routing: Routing) -> nn.Module:
    if routing.activation_kind == "lengths":
        return PrimaryCapsules(width, TYPES[0], POSE, kernel=1, stride=1)
    if routing.activation_kind == "log-odds":
        return MatrixPrimaryCapsules(width, TYPES[0], POSE, norm="batch")
    if routing.activation_kind == "shares":
        return NormalisedPrimaryCapsules(width, TYPES[0], POSE, kernel=1)
    return LayerNormPrimaryCapsules(width, TYPES[0], POSE)


def _between(routing: Routing) -> list[nn.Module]:
    """The capsule convolution, and a normalisation of its poses where nothing else holds them."""
    norm = _norm(routing)
    layer = CapsuleConv2d(TYPES[0], POSE, TYPES[1], POSE, *KERNEL, pose="matrix", routing=routing, norm=norm)
    return [layer, NormalisePoses(TYPES[1], POSE)] if routing.activation_kind == "shares" else [layer]


def _start(model: CapsuleClassifier, routing: Routing) -> None:
    """The stem's first weights, and the capsules' where activations are lengths.

    There even couplings are to sum up to `FIRST` times the mean of the children: the plain sum over a hundred is so
    long that a squash has no slope, and self-attention would not learn.
    """
    start_for_relus(model.backbone)
    if routing.activation_kind != "lengths":
        return
    for layer in model.capsule_layers:
        if isinstance(layer, CapsuleConv2d) and not layer.weight.is_meta:
            children = prod(layer.geometry.kernel) * layer.weight.shape[2]
            layer.weight.detach().mul_(FIRST * layer.weight.shape[3] / children)


def _norm(routing: Routing) -> ParentNorm | None:
    return "batch" if routing.activation_kind == "log-odds" else None


def _class_capsules(grid: tuple[int, int], classes: int, routing: Routing) -> DenseCapsules:
    if routing.activation_kind == "shares":
        return MeanCapsules(grid, TYPES[1], POSE, classes, routing=routing)
    norm = _norm(routing)
    return DenseCapsules(grid, TYPES[1], POSE, classes, POSE, tied=True, pose="matrix", routing=routing, norm=norm)


def _scores(routing: Routing) -> nn.Module | None:
    if routing.activation_kind == "shares":
        return LogActivations()
    return None if routing.has_activations else PoseScores(POSE, bias=False)


def _of_parameters(build: Callable[[int], Model], parameters: int, width: int | None) -> Model:
    """The network of this width, or of the one that comes nearest to `parameters`; it is saved with its width.

    Raises:
        ValueError: the narrowest one has 5 % more.
    """
    check_minimum(1, parameters=parameters, width=width)
    if width is None:
        with torch.random.fork_rng(devices=[]):  # the weights of those that are not taken draw no numbers
            high = 8
            while count_parameters(build(high)) < parameters:
                high *= 2
            low = 1
            while low < high:  # the narrowest with as many, or more
                middle = (low + high) // 2
                low, high = (low, middle) if count_parameters(build(middle)) >= parameters else (middle + 1, high)
            near = {one: count_parameters(build(one)) for one in (max(1, low - 1), low)}
        width = min(near, key=lambda one: abs(near[one] - parameters))
        if near[width] > 1.05 * parameters:
            raise ArgumentError(
                "parameters", f"be at least {near[width]:,} for these images", parameters, shown=f"{parameters:,}"
            )
    model = build(width)
    model.settled = {"width": width}
    return model

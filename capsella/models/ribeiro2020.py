"""The network of Ribeiro, Leontidis, Kollias 2020, "Capsule Routing via Variational Bayes" (arXiv 1905.11455)."""

import math
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.layers import (
    CapsuleConv2d,
    DenseCapsules,
    DenseDecoder,
    MatrixPrimaryCapsules,
    PrepareImages,
    coordinate_addition,
)
from capsella.layers.norms import ParentNorm
from capsella.models.base import grid_after, register_model
from capsella.models.classifiers import CapsuleClassifier
from capsella.models.hinton2018 import SMALLNORB
from capsella.routing import Routing, VariationalRouting

POSE = 16
LARGEST_COORDINATE = 0.01  # as in the authors' code; the coordinates of `hinton2018_matrix_capsnet` go up to 1


@register_model
def ribeiro2020_capsnet(
    *,
    image_size: tuple[int, int] = (32, 32),
    channels: int = 1,
    classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = VariationalRouting(bias=False),
    norm: ParentNorm | None = "batch",
    coordinate_addition: bool = True,
    crop: int | None = None,
    standardise: bool = True,
    brightness: float = 0.0,
    contrast: float = 0.0,
    reconstruction: bool = False,
) -> CapsuleClassifier:
    """Matrix capsules, A = 64 channels, B = 8, C = D = 16 types: 68,640 parameters at two channels, 5 classes.

    The authors' code has 68,714, because it also learns β_u and β_a per parent type, which batch normalisation cancels.
    Its votes are V_bc = (Σ_a M_ab) W_bc, element by element; here they are matrix products, as in the paper.

    Args:
        image_size: (height, width), at least 17×17 (after the crop); the paper's is 32×32, cut from 48×48.
        channels: channels of the images; 2 for both cameras of smallNORB, as in the paper.
        routing: routing of all three routed layers.
        norm: "batch" normalises the capsules of every layer by type, as the paper does; None for a routing without
            log-odds, e.g. dynamic routing.
        coordinate_addition: add the position of each child to its votes for the classes.
        crop: crop a square of this many pixels, at random in training and at the centre otherwise; the paper's is 32.
        standardise: bring each image to zero mean and unit variance first, as the paper does.
        brightness, contrast: as for `hinton2018_matrix_capsnet`; the paper has none.
        reconstruction: add the decoder of Sabour et al. 2017 on the class poses; the paper has none.

    Raises:
        ValueError: an image too small for the kernels, a decoder with a crop, a norm with a routing without log-odds.
    """
    prepare = PrepareImages(image_size, crop, standardise, brightness, contrast)
    grid = grid_after(prepare.size, [(5, 2), (1, 1), (3, 2), (3, 1)])
    model = CapsuleClassifier(
        backbone=nn.Sequential(prepare, nn.Conv2d(channels, 64, 5, 2, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        primary=MatrixPrimaryCapsules(64, 8, POSE, norm=norm),
        capsule_layers=_capsule_layers(grid, len(classes), routing, norm, coordinate_addition),
        decoder=DenseDecoder(len(classes), POSE, (channels, *prepare.drawn_size())) if reconstruction else None,
    )
    _start(model)
    return model


def _capsule_layers(
    grid: tuple[int, int], classes: int, routing: Routing, norm: ParentNorm | None, coordinates: bool
) -> nn.Sequential:
    offset = _coordinates(grid) if coordinates else None
    return nn.Sequential(
        CapsuleConv2d(8, POSE, 16, POSE, 3, 2, pose="matrix", routing=routing, norm=norm),
        CapsuleConv2d(16, POSE, 16, POSE, 3, 1, pose="matrix", routing=routing, norm=norm),
        DenseCapsules(
            grid, 16, POSE, classes, POSE, tied=True, pose="matrix", vote_offset=offset, routing=routing, norm=norm
        ),
    )


def _coordinates(grid: tuple[int, int]) -> Float[Tensor, "h w d"]:
    rows, columns = (LARGEST_COORDINATE * torch.arange(1, size + 1) / size for size in grid)
    return coordinate_addition(torch.cartesian_prod(rows, columns).unflatten(0, grid), POSE)


def _start(model: CapsuleClassifier) -> None:
    """Initialise weights as the authors do: He's for the convolution, Glorot's for the capsules."""
    backbone, primary = cast(nn.Sequential, model.backbone), cast(MatrixPrimaryCapsules, model.primary)
    convolution = cast(nn.Conv2d, backbone[1])
    if convolution.weight.is_meta:
        return
    nn.init.kaiming_uniform_(convolution.weight)
    for part in primary.conv.weight.detach().split([primary.types * primary.pose, primary.types]):
        nn.init.xavier_uniform_(part)
    for layer in cast(list[CapsuleConv2d], list(model.capsule_layers)):
        kh, kw, c_in, c_out, *_ = layer.weight.shape
        bound = math.sqrt(6 / (kh * kw * POSE * (c_in + c_out)))
        nn.init.uniform_(layer.weight, -bound, bound)

"""The smallNORB network of Heinsen 2019, "An Algorithm for Routing Capsules in All Domains" (arXiv 1911.00792)."""

from dataclasses import replace
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn

from capsella.layers import CapsuleConv2d, DenseCapsules
from capsella.layers.images import CoordinateChannels
from capsella.models.base import grid_after, register_model
from capsella.models.classifiers import CapsuleClassifier
from capsella.models.hinton2018 import SMALLNORB
from capsella.routing import HeinsenRouting, LogisticRouting, Routing
from capsella.types import CapsuleLogits, Capsules, at_least_float32

POSE, WIDTH, PARTS = 16, 64, 64
STRIDES = (1, 2, 1, 2, 1, 2)


@register_model
def heinsen2019_capsnet(
    *,
    image_size: tuple[int, int] = (96, 96),
    channels: int = 1,
    classes: tuple[str, ...] = SMALLNORB,
    routing: Routing = HeinsenRouting(),
) -> CapsuleClassifier:
    """Convolutions and 64 types of 4×4 part capsules at every position, routed to 64 parts, and these to classes.

    The network has 271,688 parameters for two channels and 5 classes (paper: 272 K), at any image size because all
    children of the first routing share their weights. The class capsules' scores are logits for a cross-entropy. All β
    are initially zero, as in the authors' code, so the first step changes only them.

    Args:
        image_size: (height, width), at least 29×29; the paper's is 96×96.
        channels: channels of the images; 2 for both cameras of smallNORB, as in the paper.
        routing: routing of both routed layers; in the first one, children share Heinsen routing's parameters.

    Raises:
        ArgumentError: an image too small for the convolutions.
    """
    rows, columns = grid_after(image_size, [(3, stride) for stride in STRIDES])
    shared = replace(routing, shared=True) if isinstance(routing, HeinsenRouting) else routing
    model = CapsuleClassifier(
        backbone=_backbone(image_size, channels),
        primary=PartCapsules(WIDTH, PARTS, POSE, (rows, columns)),
        capsule_layers=nn.Sequential(
            DenseCapsules((rows * columns, PARTS), 1, POSE, PARTS, POSE, tied=True, pose="matrix", routing=shared),
            DenseCapsules((1, 1), PARTS, POSE, len(classes), POSE, pose="matrix", routing=routing),
        ),
        logits=isinstance(routing, LogisticRouting),
    )
    _start(model)
    return model


class PartCapsules(nn.Module):
    """Primary capsules: a pose and a score per type and position, by batch normalisation and 1×1 convolutions.

    All capsules form one grid with a row per position and a column per type, so that a tied layer on it shares one
    weight among all of them.

    Shapes: [b channels h w] → Capsules(poses [b h·w types 1 pose], activations [b h·w types 1]).

    Args:
        channels: channels of the feature maps.
        types, pose: capsule types, and elements of a pose.
        grid: (h, w), rows and columns of positions.
    """

    def __init__(self, channels: int, types: int, pose: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.types, self.pose, self.grid = types, pose, grid
        self.scores = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, types, 1))
        self.poses = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, types * pose, 1))

    def forward(self, features: Float[Tensor, "b channels h w"]) -> Capsules:
        """Compute capsules from feature maps."""
        scores = at_least_float32(self.scores(features)).flatten(2).transpose(1, 2)  # [b positions types]
        poses = at_least_float32(self.poses(features)).flatten(2).transpose(1, 2).unflatten(2, (self.types, self.pose))
        return CapsuleLogits(poses.unsqueeze(3), scores.unsqueeze(3)).capsules()


def _backbone(image_size: tuple[int, int], channels: int) -> nn.Sequential:
    layers: list[nn.Module] = [CoordinateChannels(image_size)]
    width = channels + 2
    for stride in STRIDES:
        layers += [nn.BatchNorm2d(width), nn.Conv2d(width, WIDTH, 3, stride), nn.SiLU()]
        width = WIDTH
    return nn.Sequential(*layers)


def _start(model: CapsuleClassifier) -> None:
    """Initialise weights as the authors do: He's for the convolutions, standard deviation 1/4 for the capsules."""
    for layer in (*cast(nn.Sequential, model.backbone), *model.capsule_layers):
        if isinstance(layer, nn.Conv2d) and not layer.weight.is_meta:
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(cast(Tensor, layer.bias))
        if isinstance(layer, CapsuleConv2d) and not layer.weight.is_meta:
            nn.init.normal_(layer.weight, std=1 / 4)

"""Two heads for a backbone: class capsules, and a linear layer as their baseline."""

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from capsella.errors import check_minimum
from capsella.layers import DenseCapsules, DenseDecoder, PrimaryCapsules, he_init_
from capsella.models.backbones.backbone import Backbone, BackboneDescription, find_backbone
from capsella.models.base import ImageClassifier, register_model
from capsella.models.classifiers import CapsuleClassifier, ConvolutionalClassifier
from capsella.routing import DynamicRouting, Routing

FRESH = "he2016_resnet10"  # the default backbone has fresh weights, so that the networks can be created without a file
POSE, CLASS_POSE = 8, 16
Model = TypeVar("Model", bound=ImageClassifier)


@register_model
def backbone_capsules(
    *,
    image_size: tuple[int, int] = (224, 224),
    channels: int = 3,
    classes: tuple[str, ...] = tuple("0123456789"),
    backbone: str | Mapping[str, Any] = FRESH,
    fine_tune: bool = False,
    types: int = 16,
    routing: Routing = DynamicRouting(iterations=3),
    tied: bool = True,
    class_weight_sd: float | None = None,
    reconstruction: bool = False,
) -> CapsuleClassifier:
    """Class capsules on the feature maps of a pretrained backbone.

    The maps are batch-normalised. A 1×1 convolution makes `types` primary capsules of 8 elements at each position,
    which are routed to one capsule of 16 elements per class.

    Args:
        image_size: (height, width), at least 1×1.
        channels: channels of the images, 1 for grey, 3 for RGB; grey is repeated for a backbone of RGB images.
        backbone: `efficientnet_lite0` (ImageNet weights), a name on the Hugging Face hub (OWNER/NAME), a folder with a
            backbone of `transformers`, a run, or a registered network with fresh weights.
        fine_tune: train the backbone too; fresh weights are always trained.
        types: types of primary capsules.
        routing: routing of the class capsules.
        tied: share one weight per type and class among all positions, instead of one per position.
        class_weight_sd: standard deviation of the class capsules' initial weights; None chooses it so that class
            capsules are at first about half as long as possible.
        reconstruction: add a decoder.
    """
    check_minimum(1, types=types)
    layer = _backbone(backbone, fine_tune, image_size, channels)
    width, rows, columns = layer.description.maps
    capsules = _class_capsules((rows, columns), types, len(classes), routing, tied, class_weight_sd)
    decoder = DenseDecoder(len(classes), CLASS_POSE, (channels, *image_size)) if reconstruction else None
    model = CapsuleClassifier(
        backbone=nn.Sequential(layer, nn.BatchNorm2d(width)),
        primary=PrimaryCapsules(width, types, POSE, kernel=1, stride=1),
        capsule_layers=nn.Sequential(capsules),
        decoder=decoder,
    )
    return _with_description(model, layer)


@register_model
def backbone_linear(
    *,
    image_size: tuple[int, int] = (224, 224),
    channels: int = 3,
    classes: tuple[str, ...] = tuple("0123456789"),
    backbone: str | Mapping[str, Any] = FRESH,
    fine_tune: bool = False,
    dropout: float = 0.0,
) -> ConvolutionalClassifier:
    """Linear layer on the average-pooled feature maps of a pretrained backbone.

    The maps are batch-normalised as for `backbone_capsules`, so that the two networks differ only in the head. On a
    frozen backbone, the head can be fitted as a logistic regression (`OptimizerOptions.method`).

    Args:
        image_size: (height, width), at least 1×1.
        channels, classes, backbone, fine_tune: as for `backbone_capsules`.
        dropout: probability of zeroing a map's mean before the linear layer.
    """
    layer = _backbone(backbone, fine_tune, image_size, channels)
    width = layer.description.maps[0]
    linear = nn.Linear(width, len(classes))
    he_init_(linear)
    head = (nn.BatchNorm2d(width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), linear)
    model = ConvolutionalClassifier(nn.Sequential(layer, *head), initialized=True)
    return _with_description(model, layer)


def _backbone(
    backbone: str | Mapping[str, Any],
    fine_tune: bool,
    image_size: tuple[int, int],
    channels: int,
) -> Backbone:
    """Find a backbone by its name, or build it from the description in a saved network."""
    if isinstance(backbone, Mapping):
        description = BackboneDescription.from_dict(backbone)
        network = description.build()
    else:
        description, network = find_backbone(str(backbone), image_size, channels)
    return Backbone(description, network, image_size, channels, fine_tune)


def _with_description(model: Model, backbone: Backbone) -> Model:
    """Save the backbone's description in place of its name."""
    model.resolved_options = {"backbone": backbone.description.to_dict()}
    return model


def _class_capsules(
    grid: tuple[int, int], types: int, classes: int, routing: Routing, tied: bool, sd: float | None
) -> DenseCapsules:
    """Return class capsules; without `sd`, their initial lengths are in the range where the squash has a slope.

    After normalised maps, children are about 0.7 long, and couplings are initially uniform. With tied weights, votes of
    a type at neighbouring positions agree, so their sum grows with their number, otherwise with its square root.
    """
    if sd is None:
        positions = grid[0] * grid[1]
        together = positions / 2 if tied else positions**0.5
        sd = float(classes / (together * types**0.5 * CLASS_POSE**0.5 * 0.7))
    return DenseCapsules(grid, types, POSE, classes, CLASS_POSE, tied=tied, routing=routing, weight_sd=sd)

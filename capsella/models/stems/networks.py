"""Two heads on the same stem: class capsules, and the linear layer that they must beat to be worth it."""

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from capsella.errors import check_minimum
from capsella.layers import DenseCapsules, DenseDecoder, PrimaryCapsules, start_for_relus
from capsella.models.base import ImageClassifier, register_model
from capsella.models.classifiers import CapsuleClassifier, ConvolutionalClassifier
from capsella.models.stems.description import StemDescription
from capsella.models.stems.find import find_stem
from capsella.models.stems.stem import Stem
from capsella.routing import DynamicRouting, Routing

FRESH = "he2016_resnet10"
"""The default stem: a registered network whose weights are fresh, so that a model by its name alone needs no file."""
POSE, CLASS_POSE = 8, 16
Model = TypeVar("Model", bound=ImageClassifier)


@register_model
def stem_capsules(
    *, image_size: tuple[int, int] = (224, 224), channels: int = 3, classes: tuple[str, ...] = tuple("0123456789"),
    stem: str | Mapping[str, Any] = FRESH, freeze: bool = True, stage: int | None = None, positions: int = 4,
    types: int = 16, routing: Routing = DynamicRouting(iterations=3), tied: bool = True,
    class_weight_sd: float | None = None, reconstruction: bool = False,
) -> CapsuleClassifier:  # fmt: skip
    """Class capsules on the feature maps of a network that was trained before.

    The maps are batch normalised; a 1×1 convolution makes `types` primary capsules of 8 elements at each position, and
    they are routed to one capsule of 16 elements a class.

    Args:
        image_size: (height, width), at least 1×1.
        channels: of the image, 1 for grey, 3 for RGB; grey is repeated for a stem of colours.
        classes: their names.
        stem: a name on the Hugging Face hub (OWNER/NAME), a folder with a backbone of `transformers`, a run, or a
            registered network, whose weights are fresh.
        freeze: the stem's weights stay as they are; a stem of fresh weights always learns.
        stage: of a backbone, from 1; None: the last if its map has `positions` rows and columns, or else the last with
            a stride of at most 16.
        positions: images are enlarged until the stem's map has at least so many rows and columns.
        types: of primary capsules.
        routing: of the class capsules.
        tied: one weight a type and class, shared over positions; otherwise each position has its own.
        class_weight_sd: of the class capsules' first weights; None: such that they start about half as long as can be.
        reconstruction: with a decoder.
    """
    check_minimum(1, types=types)
    layer = _stem(stem, freeze, stage, positions, image_size, channels)
    width, rows, columns = layer.description.maps
    capsules = _class_capsules((rows, columns), types, len(classes), routing, tied, class_weight_sd)
    decoder = DenseDecoder(len(classes), CLASS_POSE, (channels, *image_size)) if reconstruction else None
    model = CapsuleClassifier(
        backbone=nn.Sequential(layer, nn.BatchNorm2d(width)),
        primary=PrimaryCapsules(width, types, POSE, kernel=1, stride=1),
        capsule_layers=nn.Sequential(capsules),
        decoder=decoder, image_size=image_size, channels=channels, classes=classes,
    )  # fmt: skip
    return _settled(model, layer)


@register_model
def stem_linear(
    *,
    image_size: tuple[int, int] = (224, 224),
    channels: int = 3,
    classes: tuple[str, ...] = tuple("0123456789"),
    stem: str | Mapping[str, Any] = FRESH,
    freeze: bool = True,
    stage: int | None = None,
    positions: int = 4,
    dropout: float = 0.0,
) -> ConvolutionalClassifier:
    """A linear layer on the mean feature maps of a network that was trained before.

    The maps are batch normalised as for `stem_capsules`, so that the two differ in nothing but the head.

    Args:
        image_size: (height, width), at least 1×1.
        channels, classes, stem, freeze, stage, positions: as for `stem_capsules`.
        dropout: probability of zeroing a map's mean before the linear layer.
    """
    layer = _stem(stem, freeze, stage, positions, image_size, channels)
    width = layer.description.maps[0]
    linear = nn.Linear(width, len(classes))
    start_for_relus(linear)
    network = nn.Sequential(
        layer, nn.BatchNorm2d(width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), linear
    )
    return _settled(
        ConvolutionalClassifier(network, image_size=image_size, channels=channels, classes=classes, started=True),
        layer,
    )


def _stem(
    stem: str | Mapping[str, Any],
    freeze: bool,
    stage: int | None,
    positions: int,
    image_size: tuple[int, int],
    channels: int,
) -> Stem:
    """From its name, or from the description in a saved model, whose weights are read after it is made."""
    if isinstance(stem, Mapping):
        description = StemDescription.from_dict(stem)
        return Stem(description, description.build(), image_size, channels, freeze)
    description, network = find_stem(str(stem), image_size, channels, stage, positions)
    return Stem(description, network, image_size, channels, freeze)


def _settled(model: Model, stem: Stem) -> Model:
    """With the stem's description in place of its name among the options that are saved."""
    model.settled = {"stem": stem.description.to_dict()}
    return model


def _class_capsules(
    grid: tuple[int, int], types: int, classes: int, routing: Routing, tied: bool, sd: float | None
) -> DenseCapsules:
    """`sd`: None such that they are neither as short nor as long as can be at first, where the squash has no slope.

    Children are about 0.7 long behind normalised maps, and routed evenly. With tied weights the votes of a type at
    neighbouring positions agree, so that their sum grows with their number; otherwise with its root.
    """
    if sd is None:
        positions = grid[0] * grid[1]
        together = positions / 2 if tied else positions**0.5
        sd = float(classes / (together * types**0.5 * CLASS_POSE**0.5 * 0.7))
    return DenseCapsules(grid, types, POSE, classes, CLASS_POSE, tied=tied, routing=routing, weight_sd=sd)

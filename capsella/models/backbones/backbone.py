"""A pretrained network as a layer from images to feature maps, and two heads for it: capsules, and a linear layer.

The network comes from a folder, a run, the hub, or the registry.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsella.errors import ArgumentError, CapsellaError, check_argument, check_minimum
from capsella.layers import CropImages, DenseCapsules, DenseDecoder, EnlargeImages, PrimaryCapsules, he_init_
from capsella.models.backbones import efficientnet, hub
from capsella.models.base import MOST_PIXELS, ImageClassifier, create_model, grid_after, list_models, register_model
from capsella.models.classifiers import CapsuleClassifier, ConvolutionalClassifier
from capsella.routing import DynamicRouting, Routing

Kind = Literal["backbone", "network", "efficientnet_lite0"]
# A registered network is created as a fresh backbone for the larger size if the images have at least that, otherwise
# for the smaller one. Its last layers are not used, and the layers before them take any size.
FRESH_SIZES = 32, 64
# Images are enlarged until the maps have at least this many rows and columns.
POSITIONS = 4
LARGEST = 1024  # images are enlarged to at most this many pixels on the shorter side
FRESH = "he2016_resnet10"  # the default backbone has fresh weights, so that the networks can be created without a file
POSE, CLASS_POSE = 8, 16
Model = TypeVar("Model", bound=ImageClassifier)


@dataclass(frozen=True)
class BackboneDescription:
    """A backbone without its weights; model.json stores it, so that a saved network needs neither hub nor folder.

    Attributes:
        kind: a backbone of `transformers`, a registered network, or EfficientNet-Lite0.
        config: for `transformers`, the configuration; for a registered network, its name and options; empty for
            EfficientNet-Lite0.
        learned: True if its initial weights were pretrained.
        channels: channels of its images.
        mean, std: normalisation of each channel of images in [0, 1], if any.
        size: (height, width) to which images are enlarged.
        maps: (channels, rows, columns) of its output.

    Raises:
        ArgumentError: an invalid field.
    """

    kind: Kind
    config: Mapping[str, Any]
    learned: bool
    channels: int
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    size: tuple[int, int]
    maps: tuple[int, int, int]

    def __post_init__(self) -> None:
        check_argument(self.kind in get_args(Kind), f"be {' or '.join(get_args(Kind))}", kind=self.kind)
        check_argument(min(*self.size, *self.maps) >= 1, "be at least 1", size=self.size, maps=self.maps)
        is_small = self.size[0] * self.size[1] <= MOST_PIXELS
        check_argument(is_small, f"have at most {MOST_PIXELS:,} pixels", size=self.size)
        for name, values in {"mean": self.mean, "std": self.std}.items():
            if values is not None:
                check_argument(len(values) == self.channels, f"have {self.channels} numbers", **{name: values})

    def build(self) -> nn.Module:
        """Build the backbone with fresh weights.

        Raises:
            ValueError: a configuration that cannot be built.
            CapsellaError: `transformers` is needed and not installed.
        """
        if self.kind == "backbone":
            return hub.build(self.config)
        if self.kind == "efficientnet_lite0":
            return efficientnet.EfficientNetLite0()
        check_argument("backbone" not in self.config, "not have a backbone itself", backbone=self.config.get("name"))
        return _layers_of(create_model(**self.config))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the description that `to_dict` wrote.

        Raises:
            ValueError: a field is missing, unknown or invalid.
        """
        try:
            tuples = ("mean", "std", "size", "maps")
            fields: dict[str, Any] = {k: tuple(v) if k in tuples and v is not None else v for k, v in values.items()}
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"backbone: must be described as capsella writes it: {error}") from error


class Backbone(nn.Module):
    """A layer from images to the feature maps of a pretrained network.

    Grey images are repeated for a backbone of RGB images. Images are enlarged to the description's size, and normalised
    if the description has a mean.

    Shapes: [b channels height width] in [0, 1] → [b *description.maps].

    Args:
        description: description of the network.
        network: network with its weights.
        image_size, channels: size and channels of the images.
        fine_tune: train the network. Otherwise its weights and running statistics are frozen, unless they are fresh.

    Raises:
        ArgumentError: images with channels that the network cannot take.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self,
        description: BackboneDescription,
        network: nn.Module,
        image_size: tuple[int, int],
        channels: int,
        fine_tune: bool,
    ) -> None:
        super().__init__()
        fits = channels == description.channels or (channels, description.channels) == (1, 3)
        repeated = ", or 1 (repeated)" if description.channels == 3 else ""
        check_argument(fits, f"be {description.channels}{repeated} for this backbone", channels=channels)
        self.description = description
        self.is_frozen = description.learned and not fine_tune
        self.enlarge = EnlargeImages(image_size, min(description.size))
        fits = self.enlarge.size == description.size
        check_argument(fits, f"be {self.enlarge.size} for these images", size=description.size)
        self.network = network  # after `enlarge`, because modules are visited in this order
        for name in ("mean", "std"):
            values = getattr(description, name)
            tensor = None if values is None else torch.tensor(values)[:, None, None]
            self.register_buffer(name, tensor, persistent=False)  # the description saves them
        if self.is_frozen:
            network.requires_grad_(False)
            network.eval()

    def train(self, mode: bool = True) -> Self:
        """Set the mode as for any module; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.is_frozen:
            self.network.eval()
        return self

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b maps rows columns"]:
        """Prepare the images and compute the maps."""
        images = self.enlarge(images.expand(-1, self.description.channels, -1, -1))
        if self.mean is not None and self.std is not None:
            images = (images - self.mean) / self.std
        maps: Tensor = self.network(images)
        return maps


def find_backbone(backbone: str, image_size: tuple[int, int], channels: int) -> tuple[BackboneDescription, nn.Module]:
    """Find a backbone for images of this size.

    Args:
        backbone: a folder with a backbone of `transformers`, a run, a registered network, a name on the hub,
            `efficientnet_lite0`, or a .pth file with its weights.
        image_size, channels: size and channels of the images.

    Returns:
        The backbone's description, and its network with weights; on the meta device, without weights.

    Raises:
        ValueError: `backbone` is invalid, or the channels do not fit.
        CapsellaError: the backbone is missing, damaged, or of an unknown family.
    """
    grid_after(image_size, [])
    description, load = _find(backbone, image_size, channels)
    size, maps = _geometry(description, load, image_size)
    description = replace(description, size=size, maps=maps)
    on_meta_device = torch.get_default_device().type == "meta"
    return description, description.build() if on_meta_device else load()


def _find(
    backbone: str, image_size: tuple[int, int], channels: int
) -> tuple[BackboneDescription, Callable[[], nn.Module]]:
    """Return a description without the size and the maps, and a function that returns the network with its weights."""
    unknown = image_size, (1, 1, 1)
    if backbone == efficientnet.NAME or backbone.endswith(".pth"):
        file = efficientnet.weights_file() if backbone == efficientnet.NAME else Path(backbone)
        means = efficientnet.MEAN, efficientnet.STD
        return BackboneDescription("efficientnet_lite0", {}, True, 3, *means, *unknown), partial(
            efficientnet.load, file
        )
    is_run = backbone and (Path(backbone) / "model.json").exists()
    if not is_run and ((backbone and Path(backbone).is_dir()) or _may_be_on_hub(backbone)):
        config = hub.read_config(backbone)
        channels = config["num_channels"]
        mean, std = hub.normalisation(backbone, channels)
        load = partial(hub.load, backbone, config)
        return BackboneDescription("backbone", config, True, channels, mean, std, *unknown), load
    if not is_run and backbone not in list_models():
        rule = "be efficientnet_lite0, a name on the Hugging Face hub, a folder with a backbone, a run, or a network"
        raise ArgumentError("backbone", rule, backbone, "give one as backbone=RUN")
    with torch.device("cpu"):
        if is_run:
            model = ImageClassifier.from_pretrained(backbone)
        else:
            size = FRESH_SIZES[min(image_size) >= FRESH_SIZES[1]]
            model = create_model(backbone, image_size=size, channels=channels, classes=2)
    if (inner := next((module for module in model.modules() if isinstance(module, Backbone)), None)) is not None:
        # The run has a backbone itself, which is used, with the run's weights.
        return replace(inner.description, learned=True), lambda: inner.network
    config = json.loads(json.dumps({"name": model.name, **model.options}))
    description = BackboneDescription("network", config, bool(is_run), model.channels, None, None, *unknown)
    return description, lambda: _layers_of(model)


def _layers_of(model: ImageClassifier) -> nn.Module:
    """Return the layers of a network from images to feature maps.

    Raises:
        ValueError: the layers crop images, or have no weights.
        CapsellaError: the network has no such layers.
    """
    layers = model.feature_layers()
    crops = any(isinstance(module, CropImages) for module in layers.modules())
    check_argument(not crops, "be a network that takes whole images, without a crop", backbone=model.name)
    has_weights = next(layers.parameters(), None) is not None
    check_argument(has_weights, "be a network with weights before its capsules", backbone=model.name)
    return layers


def _may_be_on_hub(backbone: str) -> bool:
    """Return True for OWNER/NAME if there is no folder OWNER; in a folder of runs, a missing NAME is a typing error."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", backbone) is not None and not Path(backbone).parent.is_dir()


def _geometry(
    description: BackboneDescription, load: Callable[[], nn.Module], image_size: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """Return the size to which images are enlarged, and the shape of the maps."""
    if description.kind == "efficientnet_lite0":
        height, width = EnlargeImages(image_size, max(efficientnet.LEAST_SIZE, 32 * POSITIONS - 31)).size
        return (height, width), (efficientnet.WIDTH, -(-height // 32), -(-width // 32))
    # A network of capsella exists anyway; on the meta device, PyTorch would import its compiler, which takes seconds.
    is_ours = description.kind == "network"
    with torch.device("cpu" if is_ours else "meta"), torch.no_grad():
        network = load() if is_ours else description.build()
        was_training = [module for module in network.modules() if module.training]
        network.eval()
        side = min(image_size)
        while side <= LARGEST or side == min(image_size):
            size, why = EnlargeImages(image_size, side).size, ""
            try:
                width, rows, columns = network(torch.zeros(1, description.channels, *size)).shape[1:]
            except (RuntimeError, ValueError) as error:  # too small for a kernel
                width, rows, columns, why = 0, 0, 0, f": {error}"
            if min(rows, columns) >= POSITIONS:
                break
            side = max(side + 1, -(-side * POSITIONS // (min(rows, columns) + 1)))
        else:
            raise CapsellaError(
                f"backbone: its maps must have {POSITIONS}×{POSITIONS} positions, but have {rows}×{columns} even for "
                f"images enlarged to {LARGEST} pixels{why}"
            )
    for module in was_training:
        module.training = True
    return size, (width, rows, columns)


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
        reconstruction: add a decoder.
    """
    check_minimum(1, types=types)
    layer = _backbone(backbone, fine_tune, image_size, channels)
    width, rows, columns = layer.description.maps
    capsules = _class_capsules((rows, columns), types, len(classes), routing, tied)
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


def _class_capsules(grid: tuple[int, int], types: int, classes: int, routing: Routing, tied: bool) -> DenseCapsules:
    """Return class capsules whose initial lengths are in the range where the squash has a slope.

    After normalised maps, children are about 0.7 long, and couplings are initially uniform. With tied weights, votes of
    a type at neighbouring positions agree, so their sum grows with their number, otherwise with its square root.
    """
    positions = grid[0] * grid[1]
    together = positions / 2 if tied else positions**0.5
    sd = float(classes / (together * types**0.5 * CLASS_POSE**0.5 * 0.7))
    return DenseCapsules(grid, types, POSE, classes, CLASS_POSE, tied=tied, routing=routing, weight_sd=sd)

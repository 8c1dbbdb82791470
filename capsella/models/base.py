"""What every model is, and how one is made by its registered name, as in timm."""

import fnmatch
import inspect
import operator
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsella.errors import ArgumentError, CapsellaError, check_argument, check_minimum, unknown_name
from capsella.image_options import CellCut
from capsella.models.saving import load_model, load_weights, save_model
from capsella.routing import Routing, routing_from_dict
from capsella.routing.base import check_saved
from capsella.types import Capsules, Output
from capsella.uncertainty import (
    Calibration,
    OODDetector,
    read_calibration,
    read_detector,
    write_calibration,
    write_detector,
)

MOST_CLASSES, MOST_PIXELS = 1_000_000, 80_000_000  # a slip of the pen, or of a file, must not take all memory


class ImageClassifier(nn.Module, ABC):
    """A classifier of [b channels height width] images in [0, 1]. Made by `create_model`, which sets name and options.

    classes: names of the classes. image_size: (height, width). channels: 1 or 3 as a rule.
    name, options: what `create_model` was called with, all defaults filled in.
    calibration: for calibrated probabilities; None until `capsella.training.calibrate_model` fits it.
    ood_detector: detects out-of-distribution images; None until `capsella.training.fit_ood_detector` fits it.
    """

    name: str
    options: dict[str, Any]
    value_range: tuple[float, float] | None = None
    """The values (low, high) that were 0 and 1 in training images of more than 8 bits a channel; None: there were none.
    What such a file holds must be brought to [0, 1] by it; files of 8 bits are divided by 255."""
    cut: CellCut | None = None
    """How stained cells were cut out of the training images, and must be of others; None: they were not."""
    calibration: Calibration | None = None
    ood_detector: OODDetector | None = None
    settled: Mapping[str, Any] = {}
    """Options as they are saved, where that is not as they were given: see `StemDescription`."""

    def __init__(self, image_size: tuple[int, int], channels: int, classes: tuple[str, ...]) -> None:
        super().__init__()
        self.image_size, self.channels, self.classes = image_size, channels, classes

    @abstractmethod
    def forward(self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b *k"] | None = None) -> Output:
        """Classify; the decoder, if any, reconstructs from the class in `labels`, or from the predicted one.

        Labels [b 2], of images that overlay two, give a reconstruction from the capsule of each [b 2 c h w].
        """

    @property
    def has_decoder(self) -> bool:
        """Whether `decode` works."""
        return False

    def encode(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """The class capsules of images: poses [b 1 1 classes d], activations [b 1 1 classes].

        Raises:
            CapsellaError: the model has no capsules.
        """
        raise CapsellaError(f"{self.name} has no capsules to encode into; it is a CNN")

    def decode(self, capsules: Capsules, target: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        """Images from the pose of each image's `target` class alone.

        Raises:
            CapsellaError: the model has no decoder.
        """
        raise CapsellaError(
            f"{self.name} has no decoder; create it with reconstruction=True if it is a capsule network"
        )

    def feature_layers(self) -> nn.Module:
        """The layers from images [b c h w] to feature maps [b maps rows columns], which another network may take over.

        Raises:
            CapsellaError: the model has no such part.
        """
        raise CapsellaError(f"{self.name} has no layers that make feature maps alone: it cannot be a stem")

    def last_layer(self) -> nn.Module:
        """The layer that the answers come from: class capsules, or a linear layer.

        Raises:
            CapsellaError: the model has no such part.
        """
        raise CapsellaError(f"{self.name} has no last layer of its own")

    def check_images(self, images: Tensor) -> None:
        """Images fit the model.

        Raises:
            ValueError: not [b channels height width] of this model's channels and size.
        """
        expected = (self.channels, *self.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            rule = f"have shape [b c h w] = [b, {', '.join(map(str, expected))}]"
            raise ArgumentError("images", rule, tuple(images.shape))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write model.safetensors and model.json to `folder`; `from_pretrained` reads them back.

        `calibration` is written to calibration.json and `ood_detector` to ood_detector.safetensors,
        unless the weights have changed since.

        Raises:
            ValueError: a layer's routing is not registered, so that the file could not be read back.
        """
        for layer in self.modules():
            if isinstance(routing := getattr(layer, "routing", None), Routing):
                check_saved(routing)
        save_model(self, Path(folder), self.name, self.options, self.value_range, self.cut)
        write_calibration(self, self.calibration, Path(folder))
        write_detector(self, self.ood_detector, Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """The model that `save_pretrained` wrote; whatever the files say, no more memory is taken than it needs.

        Raises:
            CapsellaError: a file is missing or damaged, the weights are not those of the model described, or the model
                is of another class.
        """
        model = load_model(Path(folder), create_model)
        if not isinstance(model, cls):
            raise CapsellaError(f"{folder} holds a {type(model).__name__}, not a {cls.__name__}")
        model.calibration = read_calibration(model, Path(folder))
        model.ood_detector = read_detector(model, Path(folder))
        return model


ModelFunction = Callable[..., ImageClassifier]
_MODELS: dict[str, ModelFunction] = {}


def register_model(function: ModelFunction) -> ModelFunction:
    """Register a function whose name is the model's and whose body is its hyper-parameters."""
    _MODELS[function.__name__] = function
    return function


def create_model(name: str, *, pretrained: str | Path | None = None, **options: Any) -> ImageClassifier:
    """A new model by its registered name, with fresh weights.

    Args:
        name: one of `list_models()`.
        pretrained: a folder written by `save_pretrained` or by training, to take the weights from.
        options: what this model lets one change; `capsella models NAME` lists it. Usually `image_size` (one number or
            (height, width)), `channels`, `classes` (a number or the names) and, for capsules, `routing` and
            `reconstruction`.

    Raises:
        ValueError: an unknown name or option (suggests the nearest), or an image too small for the kernels.

    >>> create_model("sabour2017_capsnet", classes=3, image_size=20).classes
    ('0', '1', '2')
    """
    function = model_function(name)
    defaults = {key: parameter.default for key, parameter in inspect.signature(function).parameters.items()}
    if unknown := sorted(set(options) - set(defaults)):
        raise unknown_name(f"option of model {name!r}", unknown[0], defaults)
    chosen = {**defaults, **_plain(options)}
    chosen["image_size"] = _image_size(chosen["image_size"])
    chosen["classes"] = _class_names(chosen["classes"])
    check_minimum(1, channels=chosen.get("channels"))
    if isinstance(chosen.get("routing"), dict):
        chosen["routing"] = routing_from_dict(_plain(chosen["routing"]))
    if "routing" in chosen:
        routing = chosen["routing"]
        check_argument(isinstance(routing, Routing), "be a Routing, as EMRouting()", routing=routing)
    model = function(**chosen)
    model.name = name
    options = {key: value.to_dict() if isinstance(value, Routing) else value for key, value in chosen.items()}
    model.options = {**options, **model.settled}
    if pretrained is not None:
        load_weights(model, Path(pretrained) / "model.safetensors")
    return model


def list_models(pattern: str = "*") -> list[str]:
    """Registered names that match a shell pattern, sorted.

    >>> list_models("sabour2017_*")
    ['sabour2017_affnist_cnn', 'sabour2017_capsnet', 'sabour2017_cnn', 'sabour2017_multimnist_cnn']
    """
    return sorted(fnmatch.filter(_MODELS, pattern))


def model_function(name: str) -> ModelFunction:
    """The function registered under `name`.

    Raises:
        ValueError: unknown; suggests the nearest.
    """
    if name not in _MODELS:
        raise unknown_name("model", name, _MODELS, "`capsella models` lists them")
    return _MODELS[name]


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of NumPy as Python's."""
    return {key: value.item() if isinstance(value, np.generic) else value for key, value in options.items()}


def _image_size(size: int | Sequence[int]) -> tuple[int, int]:
    sides = (size, size) if isinstance(size, str) or not isinstance(size, Sequence) else tuple(size)
    whole = [number for side in sides if (number := _whole(side)) is not None]
    check_argument(
        len(sides) == len(whole) == 2, "be a whole number of pixels, or two: (height, width)", image_size=size
    )
    height, width = whole
    if height * width > MOST_PIXELS:
        rule = f"be at most {MOST_PIXELS:,} pixels"
        raise ArgumentError("image_size", rule, (height, width), shown=f"{height}×{width}")
    return height, width


def _class_names(classes: int | Sequence[str]) -> tuple[str, ...]:
    number = _whole(classes)
    named = isinstance(classes, Iterable) and not isinstance(classes, str)
    check_argument(number is not None or named, "be a number or names", classes=classes)
    if number is not None and number > MOST_CLASSES:
        raise ArgumentError("classes", f"be at most {MOST_CLASSES:,}", number, shown=f"{number:,}")
    names = tuple(str(k) for k in range(number)) if number is not None else tuple(cast(Sequence[str], classes))
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise ArgumentError("classes", "be a number or names", wrong[0])
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ArgumentError("classes", "have each name once", twice[0], shown=f"{twice[0]!r} twice")
    if len(names) < 2:
        raise ArgumentError("classes", "be at least 2", len(names))
    return names


def _whole(number: object) -> int | None:
    """A whole number, also of NumPy or as a tensor; None of anything else."""
    if isinstance(number, bool | str):
        return None
    try:
        return operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        return None


def count_parameters(module: nn.Module) -> int:
    """Learned numbers in a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def shipped_parameters(model: ImageClassifier) -> int:
    """Learned numbers of a network without its decoder."""
    decoder = getattr(model, "decoder", None)
    return count_parameters(model) - (0 if decoder is None else count_parameters(decoder))

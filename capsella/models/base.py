"""The base class of all networks, their files model.json and model.safetensors, and their registry."""

import fnmatch
import functools
import inspect
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, cast

import safetensors
import safetensors.torch
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsella.errors import ArgumentError, CapsellaError, check_argument, check_minimum, unknown_name
from capsella.files import write_json, write_whole
from capsella.image_options import CellCut, Fit, Preprocessing, check_fit, check_range
from capsella.routing import Routing, routing_from_dict
from capsella.routing.base import check_saved
from capsella.types import Capsules, Output
from capsella.uncertainty import (
    Calibration,
    OODDetector,
    load_fitted,
    save_fitted,
)

MOST_CLASSES, MOST_PIXELS = 1_000_000, 80_000_000  # so that typing errors and damaged files do not take all memory
MOST_BYTES = 50_000_000  # of model.json: enough for the names of a million classes
WEIGHTS = "model.safetensors"


class ImageClassifier(nn.Module, ABC):
    """A classifier of [b channels height width] images in [0, 1], made by `create_model`, which sets the first five.

    Attributes:
        image_size: (height, width).
        channels: channels of the images, usually 1 or 3.
        name, options: the arguments of `create_model`, with all defaults.
        value_range: the values (low, high) that were scaled to 0 and 1 in training images of more than 8 bits per
            channel; new images of more than 8 bits must be scaled alike. None if all training images had 8 bits; these
            are divided by 255.
        cut: how stained cells were cut out of the training images, and must be cut out of new ones; None if they were
            not.
        fit: how images of other proportions are brought to [height width].
        resolved_options: options that are saved with another value than the given one, e.g. a backbone's description
            instead of its name.
        calibration: for calibrated probabilities; None until `capsella.uncertainty.calibrate_model` fits it.
        ood_detector: detects out-of-distribution images; None until `capsella.uncertainty.fit_ood_detector` fits it.
    """

    name: str
    options: dict[str, Any]
    value_range: tuple[float, float] | None = None
    cut: CellCut | None = None
    fit: Fit = "crop"
    calibration: Calibration | None = None
    ood_detector: OODDetector | None = None
    resolved_options: Mapping[str, Any] = {}

    def __init__(self, image_size: tuple[int, int] = (0, 0), channels: int = 0, classes: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.image_size, self.channels, self.classes = image_size, channels, classes

    @property
    def preprocessing(self) -> Preprocessing:
        """The steps from image files to this network's images, before the division by 255."""
        return Preprocessing(self.image_size, self.channels, self.value_range, self.cut, self.fit)

    @abstractmethod
    def forward(self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b *k"] | None = None) -> Output:
        """Classify images; a decoder reconstructs them from the class in `labels`, or from the predicted class.

        Labels [b 2], for images that overlay two classes, give two reconstructions per image [b 2 c h w].
        """

    @property
    def has_decoder(self) -> bool:
        """True if `decode` works."""
        return False

    def encode(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Return the class capsules of images: poses [b 1 1 classes d], activations [b 1 1 classes].

        Raises:
            CapsellaError: the model has no capsules.
        """
        raise CapsellaError(f"{self.name} has no capsules to encode into; it is a CNN")

    def decode(self, capsules: Capsules, target: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        """Return images decoded from the pose of each image's `target` class alone.

        Raises:
            CapsellaError: the model has no decoder.
        """
        raise CapsellaError(
            f"{self.name} has no decoder; create it with reconstruction=True if it is a capsule network"
        )

    def feature_layers(self) -> nn.Module:
        """Return the layers from images to feature maps [b maps rows columns], which another network may reuse.

        Raises:
            CapsellaError: the model has no such part.
        """
        raise CapsellaError(f"{self.name} has no layers that only compute feature maps: it cannot be a backbone")

    def last_layer(self) -> nn.Module:
        """Return the layer that computes the outputs: class capsules, or a linear layer.

        Raises:
            CapsellaError: the model has no such part.
        """
        raise CapsellaError(f"{self.name} has no last layer of its own")

    def check_images(self, images: Tensor) -> None:
        """Check that images fit the model.

        Raises:
            ArgumentError: the shape is not [b channels height width] with the model's channels and size.
        """
        expected = (self.channels, *self.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            rule = f"have shape [b c h w] = [b, {', '.join(map(str, expected))}]"
            raise ArgumentError("images", rule, tuple(images.shape))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write model.safetensors and model.json to `folder`; `from_pretrained` reads them back.

        `calibration` is written to calibration.json and `ood_detector` to ood_detector.safetensors, unless the weights
        have changed since these were fitted.

        Raises:
            ArgumentError: a layer's routing is not registered, so the model could not be read back.
        """
        for layer in self.modules():
            if isinstance(routing := getattr(layer, "routing", None), Routing):
                check_saved(routing)
        cut = None if self.cut is None else self.cut.to_dict()
        shown = {"value_range": self.value_range, "cut": cut, "fit": self.fit}
        write_json(Path(folder) / "model.json", {"name": self.name, "options": self.options, **shown})
        weights = {key: tensor.contiguous() for key, tensor in self.state_dict().items()}
        # Written as bytes, because files that the library itself writes are readable only by their owner.
        write_whole(Path(folder) / WEIGHTS, lambda path: path.write_bytes(safetensors.torch.save(weights)))
        save_fitted(self, self.calibration, self.ood_detector, Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Load the model that `save_pretrained` wrote.

        Damaged files never take more memory than the weights in them: the described model is first created on the meta
        device, and its tensors are compared with the names and shapes in the weight file.

        Raises:
            CapsellaError: a file is missing or damaged, model.json does not describe the model of these weights, or the
                model is not an instance of this class.
        """
        description, weights = Path(folder) / "model.json", Path(folder) / WEIGHTS
        arguments, preprocessing = _read_description(description)
        try:
            with torch.device("meta"):
                meta_model = create_model(**arguments)
        except (ValueError, TypeError, RuntimeError, OverflowError, AttributeError) as error:
            raise CapsellaError(f"{description} describes no model that can be created: {error}") from error
        _check_weights(meta_model, weights)
        model = create_model(**arguments)
        with _readable(weights):
            model.load_state_dict(safetensors.torch.load_file(weights))
        if not isinstance(model, cls):
            raise CapsellaError(f"{folder} holds a {type(model).__name__}, not a {cls.__name__}")
        for name, value in preprocessing.items():
            setattr(model, name, value)
        model.calibration, model.ood_detector = load_fitted(model, Path(folder))
        return model


def _read_description(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `create_model`, and the attributes of the preprocessing, from model.json."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise CapsellaError(f"{path} is not written by capsella: it has more than {MOST_BYTES:,} bytes")
        description = json.loads(path.read_text(encoding="utf-8"))
        if (value_range := description.get("value_range")) is not None:
            low, high = map(float, value_range)
            check_range(value_range := (low, high))
        check_fit(fit := description["fit"])
        cut = None if description.get("cut") is None else CellCut.from_dict(description["cut"])
        arguments = {"name": description["name"], **description["options"]}
        return arguments, {"value_range": value_range, "cut": cut, "fit": fit}
    except FileNotFoundError as error:
        raise CapsellaError(f"{path} does not exist; is {path.parent} a saved model or a run folder?") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CapsellaError(f"{path} is damaged or not written by capsella: {error!r}") from error


def _check_weights(model: nn.Module, path: Path) -> None:
    """Check that a .safetensors file has the names and shapes of `model`'s tensors; read only its header."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    with _readable(path), safetensors.safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
        shapes = {name: tuple(tensor.get_shape()) for name, tensor in slices.items()}
        kinds = {name: tensor.get_dtype() for name, tensor in slices.items()}
    for name in sorted(expected.keys() | shapes.keys()):
        if expected.get(name) != shapes.get(name):
            raise CapsellaError(
                f"{path} does not hold the weights of this model: size mismatch of {name!r}: "
                f"{shapes.get(name, 'missing')} in the file, {expected.get(name, 'missing')} in the model"
            )
        if not kinds[name].startswith(("F", "BF", "I64")):
            raise CapsellaError(f"{path} does not hold the weights of this model: {name!r} has dtype {kinds[name]}")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn errors of reading a .safetensors file into a `CapsellaError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise CapsellaError(f"{path} does not exist; was the run interrupted before its first checkpoint?") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise CapsellaError(f"{path} is not a readable .safetensors file: {error}") from error


ModelFunction = Callable[..., ImageClassifier]
_MODELS: dict[str, ModelFunction] = {}


def register_model(function: ModelFunction) -> ModelFunction:
    """Register a function that builds a network; its keyword arguments are the network's hyper-parameters."""
    _MODELS[function.__name__] = function
    return function


def register_variant(
    name: str,
    summary: str,
    build: ModelFunction,
    *arguments: object,
    without: Collection[str] = (),
    defaults: Mapping[str, object] = {},
) -> None:
    """Register `build(*arguments, **options)` under a name of its own; options are keyword-only parameters of `build`.

    Args:
        summary: first paragraph of the docstring; the rest is taken from `build`.
        without: options of `build` that this network lacks.
        defaults: default values that differ from `build`'s, also of options in `without`.
    """

    @functools.wraps(build)
    def variant(**options: Any) -> ImageClassifier:
        return build(*arguments, **{**defaults, **options})

    parameters = inspect.signature(build).parameters.values()
    own = [
        option.replace(default=defaults.get(option.name, option.default))
        for option in parameters
        if option.kind == option.KEYWORD_ONLY and option.name not in without
    ]
    variant.__name__ = name
    variant.__doc__ = summary + "\n\n" + (inspect.getdoc(build) or "").partition("\n\n")[2]
    variant.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    register_model(variant)


def create_model(name: str, **options: Any) -> ImageClassifier:
    """Create a registered network with fresh weights.

    Args:
        name: one of `list_models()`.
        options: options of this network; `capsella list models NAME` lists them. Usually `image_size` (one number, or
            height and width), `channels`, `classes` (a number or the names) and, for capsules, `routing` and
            `reconstruction`.

    Raises:
        ArgumentError: an unknown name or option (suggests the nearest), or an image too small for the kernels.

    >>> create_model("sabour2017_capsnet", classes=3, image_size=20).classes
    ('0', '1', '2')
    """
    function = model_function(name)
    defaults = {key: parameter.default for key, parameter in inspect.signature(function).parameters.items()}
    if unknown := sorted(set(options) - set(defaults)):
        raise unknown_name(f"option of model {name!r}", unknown[0], defaults)
    chosen = {**defaults, **options}
    chosen["image_size"] = _image_size(chosen["image_size"])
    chosen["classes"] = _class_names(chosen["classes"])
    check_minimum(1, channels=chosen.get("channels"))
    if isinstance(chosen.get("routing"), dict):
        chosen["routing"] = routing_from_dict(chosen["routing"])
    if "routing" in chosen:
        routing = chosen["routing"]
        check_argument(isinstance(routing, Routing), "be a Routing, e.g. EMRouting()", routing=routing)
    model = function(**chosen)
    model.name, model.image_size, model.classes = name, chosen["image_size"], chosen["classes"]
    model.channels = chosen.get("channels", model.channels)
    options = {key: value.to_dict() if isinstance(value, Routing) else value for key, value in chosen.items()}
    model.options = {**options, **model.resolved_options}
    return model


def list_models(pattern: str = "*") -> list[str]:
    """Return the registered names that match a shell pattern, sorted.

    >>> list_models("sabour2017_*")
    ['sabour2017_affnist_cnn', 'sabour2017_capsnet', 'sabour2017_cnn', 'sabour2017_multimnist_cnn']
    """
    return sorted(fnmatch.filter(_MODELS, pattern))


def model_function(name: str) -> ModelFunction:
    """Return the function registered under `name`.

    Raises:
        ArgumentError: unknown; suggests the nearest.
    """
    if name not in _MODELS:
        raise unknown_name("model", name, _MODELS, "`capsella list models` lists them")
    return _MODELS[name]


def _image_size(size: int | Sequence[int]) -> tuple[int, int]:
    sides = tuple(size) if isinstance(size, Sequence) and not isinstance(size, str) else (size, size)
    holds = len(sides) == 2 and all(isinstance(side, int) and not isinstance(side, bool) for side in sides)
    check_argument(holds, "be a whole number of pixels, or two: (height, width)", image_size=size)
    height, width = cast(tuple[int, int], sides)
    check_argument(height * width <= MOST_PIXELS, f"be at most {MOST_PIXELS:,} pixels", image_size=sides)
    return height, width


def _class_names(classes: int | Sequence[str]) -> tuple[str, ...]:
    if isinstance(classes, int) and not isinstance(classes, bool):
        check_argument(2 <= classes <= MOST_CLASSES, f"be from 2 to {MOST_CLASSES:,}", classes=classes)
        return tuple(map(str, range(classes)))
    holds = isinstance(classes, Iterable) and not isinstance(classes, str)
    check_argument(holds, "be a number or names", classes=classes)
    names = tuple(cast(Sequence[str], classes))
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise ArgumentError("classes", "be a number or names", wrong[0])
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ArgumentError("classes", "have each name once", twice[0])
    check_argument(len(names) >= 2, "be at least 2", classes=len(names))
    return names


def grid_after(image_size: tuple[int, int], convolutions: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return rows and columns after unpadded convolutions, given as (kernel, stride).

    Raises:
        ArgumentError: the image is too small; the error names the smallest size.

    >>> grid_after((28, 28), [(9, 1), (9, 2)])
    (6, 6)
    """
    smallest = 1
    for kernel, stride in reversed(convolutions):
        smallest = (smallest - 1) * stride + kernel
    if min(image_size) < smallest:
        shown = f"{image_size[0]}×{image_size[1]}"
        raise ArgumentError(
            "image_size", f"be at least {smallest}×{smallest} for these kernels", image_size, shown=shown
        )
    rows, columns = image_size
    for kernel, stride in convolutions:
        rows, columns = (rows - kernel) // stride + 1, (columns - kernel) // stride + 1
    return rows, columns


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def shipped_parameters(model: ImageClassifier) -> int:
    """Return the number of parameters of a network without its decoder."""
    decoder = getattr(model, "decoder", None)
    return count_parameters(model) - (0 if decoder is None else count_parameters(decoder))

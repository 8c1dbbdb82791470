"""Models by name, as in timm: `create_model("sabour2017_capsnet", classes=5)`, `list_models("sabour*")`."""

import fnmatch
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from capsella.errors import unknown_name
from capsella.models.base import ImageClassifier, load_weights
from capsella.routing import Routing, routing_from_dict

ModelFunction = Callable[..., ImageClassifier]
MOST_CLASSES, MOST_PIXELS = 1_000_000, 80_000_000  # a slip of the pen, or of a file, must not take all memory
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
    chosen = {**defaults, **options}
    chosen["image_size"] = _image_size(chosen["image_size"])
    chosen["classes"] = _class_names(chosen["classes"])
    if isinstance(chosen.get("routing"), dict):
        chosen["routing"] = routing_from_dict(chosen["routing"])
    model = function(**chosen)
    model.name = name
    model.options = {key: value.to_dict() if isinstance(value, Routing) else value for key, value in chosen.items()}
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
        raise unknown_name("model", name, _MODELS)
    return _MODELS[name]


def _image_size(size: int | Sequence[int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if int(height) * int(width) > MOST_PIXELS:
        raise ValueError(f"image_size: must be at most {MOST_PIXELS:,} pixels, got {height}×{width}")
    return int(height), int(width)


def _class_names(classes: int | Sequence[str]) -> tuple[str, ...]:
    if isinstance(classes, int) and classes > MOST_CLASSES:
        raise ValueError(f"classes: must be at most {MOST_CLASSES:,}, got {classes:,}")
    names = tuple(str(k) for k in range(classes)) if isinstance(classes, int) else tuple(classes)
    if len(names) < 2:
        raise ValueError(f"classes: must be at least 2, got {len(names)}")
    return names

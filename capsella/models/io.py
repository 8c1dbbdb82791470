"""Saved networks: model.json describes the network, model.safetensors holds its weights."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import nn

from capsella.errors import CapsellaError
from capsella.files import write_json, write_whole
from capsella.image_options import CellCut, Fit, Preprocessing, ValueRange, check_fit

_MOST_BYTES = 50_000_000  # of model.json: enough for the names of a million classes
Model = TypeVar("Model", bound=nn.Module)


def save_model(
    model: nn.Module,
    folder: Path,
    name: str,
    options: Mapping[str, Any],
    preprocessing: Preprocessing,
) -> None:
    """Write both files: the weights, and the `name`, `options` and `preprocessing` that create the network again."""
    cut = None if preprocessing.cut is None else preprocessing.cut.to_dict()
    shown = {"value_range": preprocessing.value_range, "cut": cut, "fit": preprocessing.fit}
    write_json(folder / "model.json", {"name": name, "options": options, **shown})
    weights = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    # Written as bytes, because files that the library itself writes are readable only by their owner.
    write_whole(folder / "model.safetensors", lambda path: path.write_bytes(safetensors.torch.save(weights)))


def load_model(folder: Path, create: Callable[..., Model]) -> Model:
    """Load the model that `save_model` wrote; `create(name=…, **options)` makes it.

    Damaged files never take more memory than the weights in them: the described model is first created on the meta
    device, and its tensors are compared with the names and shapes in the weight file.

    Raises:
        CapsellaError: a file is missing or damaged, or the weights are not those of the described model.
    """
    description, (value_range, cut, fit) = _read_description(folder / "model.json")
    try:
        with torch.device("meta"):
            meta_model = create(**description)
    except (ValueError, TypeError, RuntimeError, OverflowError, AttributeError) as error:
        raise CapsellaError(f"{folder / 'model.json'} describes no model that can be created: {error}") from error
    check_weights(meta_model, folder / "model.safetensors")
    model = create(**description)
    load_weights(model, folder / "model.safetensors")
    model.value_range, model.cut, model.fit = value_range, cut, fit  # type: ignore[assignment]
    return model


def on_meta_device() -> bool:
    """Return True while modules are created on the meta device, without memory for their weights."""
    return torch.get_default_device().type == "meta"


def check_weights(model: nn.Module, path: Path) -> None:
    """Check that a .safetensors file has the names and shapes of `model`'s tensors; read only its header.

    Raises:
        CapsellaError: the file is missing, damaged, or holds other tensors than the model's, or unsupported dtypes.
    """
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


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill `model` from a .safetensors file.

    Raises:
        CapsellaError: the file is missing, damaged, or holds other tensors than the model's.
    """
    with _readable(path):
        weights = safetensors.torch.load_file(path)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CapsellaError(f"{path} does not hold the weights of this model: {error}") from error


def _read_description(path: Path) -> tuple[dict[str, Any], tuple[ValueRange | None, CellCut | None, Fit]]:
    """Return the keyword arguments of `create` and (value range, cut, fit), from model.json."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise CapsellaError(f"{path} is not written by capsella: it has more than {_MOST_BYTES:,} bytes")
        description = json.loads(path.read_text(encoding="utf-8"))
        value_range = description.get("value_range")
        if value_range is not None:
            low, high = map(float, value_range)
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError(f"value_range {value_range}")
            value_range = low, high
        cut = description.get("cut")
        check_fit(fit := description.get("fit", "crop"))
        shown = value_range, None if cut is None else CellCut.from_dict(cut), fit
        return {"name": description["name"], **description["options"]}, shown
    except FileNotFoundError as error:
        raise CapsellaError(f"{path} does not exist; is {path.parent} a saved model or a run folder?") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CapsellaError(f"{path} is damaged or not written by capsella: {error!r}") from error


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn errors of reading a .safetensors file into a `CapsellaError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise CapsellaError(f"{path} does not exist; was the run interrupted before its first checkpoint?") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise CapsellaError(f"{path} is not a readable .safetensors file: {error}") from error

"""calibration.json and ood_detector.safetensors: saved beside the weights that they were fitted to."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from capsella.errors import CapsellaError, errors_of, warn_once
from capsella.files import write_json, write_whole
from capsella.uncertainty.calibration import Calibration
from capsella.uncertainty.ood import ClassGaussian, OODDetector, ScoreDistribution

CALIBRATION, DETECTOR = "calibration.json", "ood_detector.safetensors"
_MOST_BYTES = {CALIBRATION: 100_000_000, DETECTOR: 1_000_000_000}  # millions of images; some ten thousand features

Fitted = Calibration | OODDetector
T = TypeVar("T", Calibration, OODDetector)


def weights_digest(model: nn.Module) -> str:
    """Return the SHA-256 of a model's weights and their names."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def is_fitted_to(model: nn.Module, fitted: Fitted) -> bool:
    """Return True if a model has the weights that something was fitted to, or if that is unknown."""
    return fitted.weights in (None, weights_digest(model))


def write_calibration(model: nn.Module, calibration: Calibration | None, folder: Path) -> None:
    """Write calibration.json; delete an old one if there is none, or with a warning if it is of other weights."""
    path = folder / CALIBRATION
    if (weights := _weights_to_write(model, calibration, path)) is not None and calibration is not None:
        write_json(path, {**calibration.to_dict(), "weights": weights})


def read_calibration(model: nn.Module, folder: Path) -> Calibration | None:
    """Read calibration.json; None if there is none, or with a warning if it is of other weights."""
    path = folder / CALIBRATION
    if not path.exists():
        return None
    with _damage(path):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except RecursionError as error:
            raise CapsellaError("it is nested too deeply") from error
        calibration = Calibration.from_dict(values)
    return _if_current(model, calibration, path)


def write_detector(model: nn.Module, detector: OODDetector | None, folder: Path) -> None:
    """Write ood_detector.safetensors; delete an old one if there is none, or if it is of other weights."""
    path = folder / DETECTOR
    weights = _weights_to_write(model, detector, path)
    if detector is None or weights is None:
        return
    tensors = {"largest": detector.largest}
    tensors |= {f"distribution.{name}": scores.values for name, scores in detector.distributions.items()}
    for name, gaussian in detector.gaussians.items():
        tensors |= {f"means.{name}": gaussian.means, f"whitening.{name}": gaussian.whitening}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_whole(path, lambda part: part.write_bytes(safetensors.torch.save(tensors, {"weights": weights})))


def read_detector(model: nn.Module, folder: Path) -> OODDetector | None:
    """Read ood_detector.safetensors; None if there is none, or with a warning if it is of other weights."""
    path = folder / DETECTOR
    if not path.exists():
        return None
    with _damage(path):
        detector = _read_detector(path)
    return _if_current(model, detector, path)


def _read_detector(path: Path) -> OODDetector:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 (no dict)
    except (safetensors.SafetensorError, OSError) as error:
        raise CapsellaError(str(error)) from error
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        parts.setdefault(kind, {})[name] = tensor
    try:
        whitening = parts.get("whitening", {})
        gaussians = {name: ClassGaussian(means, whitening[name]) for name, means in parts.get("means", {}).items()}
        distributions = {name: ScoreDistribution(values) for name, values in parts["distribution"].items()}
        return OODDetector(gaussians, distributions, parts["largest"][""], metadata.get("weights"))
    except KeyError as error:
        raise CapsellaError(f"it lacks {error}") from error


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    hint = (
        f"{path} is damaged or not written by capsella; delete it, and `capsella evaluate --calibrate` writes it again"
    )
    with errors_of(hint):
        if path.stat().st_size > _MOST_BYTES[path.name]:
            raise CapsellaError(f"it has more than {_MOST_BYTES[path.name]:,} bytes")
        yield


def _weights_to_write(model: nn.Module, fitted: Fitted | None, path: Path) -> str | None:
    """Return the digest of the weights that `fitted` is of; None, and delete `path`, if there is nothing to save."""
    if fitted is not None:
        if is_fitted_to(model, fitted):
            return weights_digest(model)
        warn_once(str(path), f"the weights have changed since the fit: saved without {path.name}")
    path.unlink(missing_ok=True)
    return None


def _if_current(model: nn.Module, fitted: T, path: Path) -> T | None:
    if fitted.weights == weights_digest(model):
        return fitted
    warn_once(
        str(path), f"{path} was fitted to other weights and is not used; `capsella evaluate --calibrate` fits it again"
    )
    return None

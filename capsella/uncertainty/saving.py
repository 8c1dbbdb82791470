"""Save and load calibration.json and ood_detector.safetensors beside the weights that they were fitted to."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from capsella.errors import CapsellaError, errors_of, warn_once
from capsella.files import read_json, write_json, write_whole
from capsella.uncertainty.calibration import Calibration
from capsella.uncertainty.ood import ClassGaussian, OODDetector, ScoreDistribution

CALIBRATION, DETECTOR = "calibration.json", "ood_detector.safetensors"
_MOST_BYTES = {CALIBRATION: 100_000_000, DETECTOR: 1_000_000_000}  # millions of images; some ten thousand features
T = TypeVar("T", Calibration, OODDetector)


def weights_digest(model: nn.Module) -> str:
    """Return the SHA-256 of a model's weights and their names."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def is_fitted_to(model: nn.Module, fitted: Calibration | OODDetector) -> bool:
    """Return True if `fitted` was fitted to the model's weights, or if that is unknown."""
    return fitted.weights in (None, weights_digest(model))


def save_fitted(model: nn.Module, calibration: Calibration | None, detector: OODDetector | None, folder: Path) -> None:
    """Write calibration.json and ood_detector.safetensors.

    If there is nothing to write, an old file is deleted; so it is, with a warning, if the fit was to other weights.
    """
    for name, fitted in ((CALIBRATION, calibration), (DETECTOR, detector)):
        path = folder / name
        if fitted is None or not is_fitted_to(model, fitted):
            path.unlink(missing_ok=True)
            if fitted is not None:
                warn_once(str(path), f"the weights have changed since the fit: saved without {name}")
        elif isinstance(fitted, Calibration):
            write_json(path, {**fitted.to_dict(), "weights": weights_digest(model)})
        else:
            _write_detector(fitted, weights_digest(model), path)


def load_fitted(model: nn.Module, folder: Path) -> tuple[Calibration | None, OODDetector | None]:
    """Read both files; return None for a missing one and, with a warning, for one fitted to other weights.

    Raises:
        CapsellaError: a file is damaged.
    """
    calibration, detector = _read(folder / CALIBRATION, _read_calibration), _read(folder / DETECTOR, _read_detector)
    for name, fitted in ((CALIBRATION, calibration), (DETECTOR, detector)):
        if fitted is not None and fitted.weights != weights_digest(model):
            again = "`capsella evaluate --calibrate` fits it again"
            warn_once(str(folder / name), f"{folder / name} was fitted to other weights and is not used; {again}")
            calibration, detector = (None, detector) if name == CALIBRATION else (calibration, None)
    return calibration, detector


def _read(path: Path, read: Callable[[Path], T]) -> T | None:
    if not path.exists():
        return None
    hint = f"{path} is damaged or not written by capsella; delete it, and `capsella evaluate --calibrate` fits it again"
    with errors_of(hint):
        if path.stat().st_size > _MOST_BYTES[path.name]:
            raise CapsellaError(f"it has more than {_MOST_BYTES[path.name]:,} bytes")
        return read(path)


def _read_calibration(path: Path) -> Calibration:
    return Calibration.from_dict(read_json(path))


def _write_detector(detector: OODDetector, weights: str, path: Path) -> None:
    tensors = {"largest": detector.largest}
    tensors |= {f"distribution.{name}": scores.values for name, scores in detector.distributions.items()}
    for name, gaussian in detector.gaussians.items():
        tensors |= {f"means.{name}": gaussian.means, f"whitening.{name}": gaussian.whitening}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_whole(path, lambda part: part.write_bytes(safetensors.torch.save(tensors, {"weights": weights})))


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

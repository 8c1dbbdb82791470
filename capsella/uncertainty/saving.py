"""Save and load calibration.json and ood_detector.safetensors beside the weights that they were fitted to."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from capsella.errors import CapsellaError, errors_of, warn_once
from capsella.files import read_json, write_json, write_whole
from capsella.uncertainty.calibration import Calibration
from capsella.uncertainty.ood import ClassGaussian, OODDetector

CALIBRATION, DETECTOR = "calibration.json", "ood_detector.safetensors"


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
            write_json(path, {**asdict(fitted), "weights": weights_digest(model)})
        else:
            _write_detector(fitted, weights_digest(model), path)


def load_fitted(model: nn.Module, folder: Path) -> tuple[Calibration | None, OODDetector | None]:
    """Read both files; return None for a missing one and, with a warning, for one fitted to other weights.

    Raises:
        CapsellaError: a file is damaged.
    """
    return _load(model, folder / CALIBRATION), _load(model, folder / DETECTOR)


def _load(model: nn.Module, path: Path) -> Any:
    if not path.exists():
        return None
    with errors_of(f"{path} is damaged or not written by capsella; delete it to use the network without it"):
        fitted = Calibration.from_dict(read_json(path)) if path.name == CALIBRATION else _read_detector(path)
    if fitted.weights == weights_digest(model):
        return fitted
    warn_once(str(path), f"{path} was fitted to other weights and is not used")
    return None


def _write_detector(detector: OODDetector, weights: str, path: Path) -> None:
    tensors = {"largest": detector.largest}
    tensors |= {} if detector.shifted is None else {"shifted": detector.shifted}
    tensors |= {f"distribution.{name}": values for name, values in detector.distributions.items()}
    for name, gaussian in detector.gaussians.items():
        tensors |= {f"means.{name}": gaussian.means, f"whitening.{name}": gaussian.whitening}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_whole(path, lambda part: part.write_bytes(safetensors.torch.save(tensors, {"weights": weights})))


def _read_detector(path: Path) -> OODDetector:
    parts: dict[str, dict[str, Tensor]] = {"means": {}, "shifted": {}}
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            weights = (file.metadata() or {}).get("weights")
            for key in file.keys():  # noqa: SIM118 (no dict)
                kind, _, name = key.partition(".")
                parts.setdefault(kind, {})[name] = file.get_tensor(key).float()
        gaussians = {name: ClassGaussian(means, parts["whitening"][name]) for name, means in parts["means"].items()}
        return OODDetector(gaussians, parts["distribution"], parts["largest"][""], weights, parts["shifted"].get(""))
    except (safetensors.SafetensorError, OSError, KeyError) as error:
        raise CapsellaError(repr(error)) from error

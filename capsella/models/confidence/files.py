"""calibration.json: a model's confidence, beside the weights that it was fitted to."""

import hashlib
import json
from pathlib import Path

from torch import nn

from capsella.errors import CapsellaError, errors_of, warn_once
from capsella.files import write_json
from capsella.models.confidence.fitted import Confidence
from capsella.models.novelty.fitted import Novelty
from capsella.models.saving import hash_weights

FILE = "calibration.json"
_MOST_BYTES = 100_000_000  # millions of validation images


def write_confidence(model: nn.Module, confidence: Confidence | None, folder: Path) -> None:
    """Write calibration.json; remove an older one where `confidence` is None, or of other weights (with a warning)."""
    path = folder / FILE
    weights = weights_of(model, confidence, path)
    if confidence is not None and weights is not None:
        write_json(path, {**confidence.to_dict(), "weights": weights})


def weights_of(model: nn.Module, fitted: Confidence | Novelty | None, path: Path) -> str | None:
    """The digest of the weights that `fitted` is of; None, and no file at `path`, where there is nothing to be kept.

    Warns where the weights have changed since.
    """
    if fitted is not None:
        if is_of(model, fitted):
            return weights_digest(model)
        warn_once(str(path), f"the weights have changed since it was fitted: saved without {path.name}")
    path.unlink(missing_ok=True)
    return None


def is_of(model: nn.Module, fitted: Confidence | Novelty) -> bool:
    """Whether a model has the weights that something was fitted for; true where that is not known."""
    return fitted.weights in (None, weights_digest(model))


def read_confidence(model: nn.Module, folder: Path) -> Confidence | None:
    """What calibration.json holds; None where there is none, or with a warning where it is of other weights.

    Raises:
        CapsellaError: damaged.
    """
    path = folder / FILE
    if not path.exists():
        return None
    with errors_of(f"{path} is damaged or not written by capsella"):
        if path.stat().st_size > _MOST_BYTES:
            raise CapsellaError(f"it has more than {_MOST_BYTES:,} bytes")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except RecursionError as error:
            raise CapsellaError("it is nested too deeply") from error
        confidence = Confidence.from_dict(values)
    if confidence.weights != weights_digest(model):
        warn_once(str(path), f"{path} was fitted to other weights, so it is not used; capsella calibrate fits it anew")
        return None
    return confidence


def weights_digest(model: nn.Module) -> str:
    """SHA-256 of a model's weights, with their names."""
    digest = hashlib.sha256()
    hash_weights(model, digest)
    return digest.hexdigest()

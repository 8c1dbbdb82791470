"""calibration.json: a model's confidence, beside the weights that it was fitted to."""

import json
from pathlib import Path

from torch import nn

from capsella.errors import CapsellaError, errors_of
from capsella.files import write_json
from capsella.models.confidence.fitted import Confidence
from capsella.models.fitted import if_current, weights_to_write

FILE = "calibration.json"
_MOST_BYTES = 100_000_000  # millions of validation images


def write_confidence(model: nn.Module, confidence: Confidence | None, folder: Path) -> None:
    """Write calibration.json; remove an older one where `confidence` is None, or of other weights (with a warning)."""
    path = folder / FILE
    weights = weights_to_write(model, confidence, path)
    if confidence is not None and weights is not None:
        write_json(path, {**confidence.to_dict(), "weights": weights})


def read_confidence(model: nn.Module, folder: Path) -> Confidence | None:
    """What calibration.json holds; None where there is none, or with a warning where it is of other weights.

    Raises:
        CapsellaError: damaged.
    """
    path = folder / FILE
    if not path.exists():
        return None
    with errors_of(f"{path} is damaged or not written by capsella; delete it, and `capsella calibrate` writes it anew"):
        if path.stat().st_size > _MOST_BYTES:
            raise CapsellaError(f"it has more than {_MOST_BYTES:,} bytes")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except RecursionError as error:
            raise CapsellaError("it is nested too deeply") from error
        confidence = Confidence.from_dict(values)
    return if_current(model, confidence, path)

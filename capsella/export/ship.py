"""From a trained network to a checked file: no export without a parity check, no file that did not pass it."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from capsella.data.batching import evenly
from capsella.data.images import ImageSet
from capsella.data.split.sets import Splits, single_images
from capsella.errors import ArgumentError, unknown_name
from capsella.export.onnx_files import load_onnx, write_onnx
from capsella.export.parity import (
    TOLERANCES,
    Activations,
    Parity,
    Precision,
    Reconstructions,
    Tolerance,
    check_parity,
    compare,
    usual_tolerance,
)
from capsella.export.pt2_files import load_pt2, write_pt2
from capsella.export.reduced import write_float16, write_int8
from capsella.files import write_json, write_whole
from capsella.models import ImageClassifier

Format = Literal["onnx", "pt2"]
FORMATS = ("onnx", "pt2")
CALIBRATION_IMAGES = 256


class CheckedOn(NamedTuple):
    """Images that a file is calibrated and compared on, where they are no splits of a training."""

    train: ImageSet
    test: ImageSet


@dataclass(frozen=True)
class Exported:
    """A file, what it says of itself, and how it compares with PyTorch."""

    path: Path
    description: dict[str, Any]
    parity: Parity

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "file": self.path.name,
            "bytes": self.path.stat().st_size,
            "description": self.description,
            "parity": self.parity.to_dict(),
        }


def export_model(
    model: ImageClassifier,
    images: Splits | CheckedOn,
    path: str | Path,
    *,
    format: Format = "onnx",
    precision: Precision = "float32",
    reconstruction: bool = False,
    tolerance: Tolerance | None = None,
    facts: dict[str, Any] | None = None,
) -> Exported:
    """Write a trained network to a file and compare the file with the network on every test image.

    Args:
        images: those `model` was trained on: int8 calibrates on training images, parity is taken on test images.
        path: the file, written only if it passes; PATH.json beside it gets description and parity.
        format: "onnx", or "pt2" for `torch.export` with the native kernels.
        precision: "float32"; of ONNX also "float16" and "int8".
        reconstruction: with the decoder. tolerance: what may differ; default: `usual_tolerance`.
        facts: more entries for the description.

    Raises:
        ValueError: an unknown format or precision, or one that the format has not.
        CapsellaError: the parity check fails; an extra is not installed.
    """
    _check(format, precision)
    path = Path(path)
    train, test = (single_images(part, "exports") for part in (images.train, images.test))
    result: list[tuple[dict[str, Any], Parity]] = []

    def write(temporary: Path) -> None:
        description = _written(model, temporary, train, format, precision, reconstruction, facts)
        run, drawn = _read_back(temporary, format, reconstruction)
        check_parity(parity := compare(model, run, test, tolerance or usual_tolerance(model, precision), drawn=drawn))
        result.append((description, parity))

    write_whole(path, write)
    exported = Exported(path, *result[0])
    write_json(path.with_name(f"{path.name}.json"), exported.to_dict())
    return exported


def _written(
    model: ImageClassifier,
    path: Path,
    train: ImageSet,
    format: Format,
    precision: Precision,
    reconstruction: bool,
    facts: dict[str, Any] | None,
) -> dict[str, Any]:
    """The file; returns its description."""
    if format == "pt2":
        return write_pt2(model, path, reconstruction=reconstruction, facts=facts)
    return write_onnx_as(precision, model, path, train, reconstruction, facts)


def _read_back(path: Path, format: Format, reconstruction: bool) -> tuple[Activations, Reconstructions | None]:
    """What the file answers, by each of its outputs."""
    if format == "pt2":
        return load_pt2(path)[0], load_pt2(path, 1)[0] if reconstruction else None
    return load_onnx(path), load_onnx(path, output="reconstruction") if reconstruction else None


def _check(format: str, precision: str) -> None:
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if precision not in TOLERANCES:
        raise unknown_name("precision", precision, TOLERANCES)
    if format == "pt2" and precision != "float32":
        raise ArgumentError("precision", "be 'float32' for the format 'pt2'", precision)


def write_onnx_as(
    precision: Precision,
    model: ImageClassifier,
    path: str | Path,
    train: ImageSet,
    reconstruction: bool = False,
    facts: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """An ONNX file in any precision, unchecked; int8 calibrates on `train`. Raises as `export_model`."""
    if precision == "float32":
        return write_onnx(model, path, reconstruction=reconstruction, facts=facts)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "float32.onnx")
        description = write_onnx(model, source, reconstruction=reconstruction, facts=facts)
        if precision == "float16":
            return write_float16(source, path, description)
        chosen = train.subset(evenly(len(train), CALIBRATION_IMAGES))
        return write_int8(source, path, chosen, description)

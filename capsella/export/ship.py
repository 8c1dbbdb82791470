"""Export a trained network to a file that passed a parity check."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from capsella.data.batching import evenly
from capsella.data.images import ImageSet
from capsella.data.splits import Splits, single_images
from capsella.errors import ArgumentError, unknown_name
from capsella.export.onnx_files import load_onnx, write_int8, write_onnx
from capsella.export.parity import (
    TOLERANCES,
    Activations,
    Parity,
    Precision,
    Reconstructions,
    Tolerance,
    check_parity,
    compare,
    default_tolerance,
)
from capsella.export.pt2_files import load_pt2, write_pt2
from capsella.files import write_json, write_whole
from capsella.models import ImageClassifier

Format = Literal["onnx", "pt2"]
FORMATS = ("onnx", "pt2")
CALIBRATION_IMAGES = 256


class CheckedOn(NamedTuple):
    """Images to calibrate and compare a file on, other than the splits of a training."""

    train: ImageSet
    test: ImageSet


@dataclass(frozen=True)
class Exported:
    """A file, its description, and its comparison with PyTorch."""

    path: Path
    description: dict[str, Any]
    parity: Parity

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
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
        images: images that `model` was trained on. int8 calibrates on training images, test images are compared.
        path: the file, written only if it passes; PATH.json beside it gets description and parity.
        format: "onnx", or "pt2" for `torch.export` with the native kernels.
        precision: "float32", or "int8" for ONNX.
        reconstruction: include the decoder.
        tolerance: limits of differences; default: `default_tolerance`.
        facts: more entries for the description.

    Raises:
        ArgumentError: an unknown format or precision, or one that the format lacks.
        CapsellaError: the parity check fails; an extra is not installed.
    """
    _check(format, precision)
    path = Path(path)
    train, test = (single_images(part, "exports") for part in (images.train, images.test))
    result: list[tuple[dict[str, Any], Parity]] = []

    def write(temporary: Path) -> None:
        description = _written(model, temporary, train, format, precision, reconstruction, facts)
        run, drawn = _read_back(temporary, format, reconstruction)
        check_parity(parity := compare(model, run, test, tolerance or default_tolerance(model, precision), drawn=drawn))
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
    """Write the file, and return its description."""
    if format == "pt2":
        return write_pt2(model, path, reconstruction=reconstruction, facts=facts)
    if precision == "float32":
        return write_onnx(model, path, reconstruction=reconstruction, facts=facts)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "float32.onnx")
        description = write_onnx(model, source, reconstruction=reconstruction, facts=facts)
        return write_int8(source, path, train.subset(evenly(len(train), CALIBRATION_IMAGES)), description)


def _read_back(path: Path, format: Format, reconstruction: bool) -> tuple[Activations, Reconstructions | None]:
    """Load each output of the file."""
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

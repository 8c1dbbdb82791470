"""Export a trained network to a folder for other programs, checked against PyTorch before it is kept.

model.onnx or model.pt2 returns activations, calibrated probabilities and the OOD score. model.json describes it.
predict.py and framing.py, beside an ONNX file, classify image files without PyTorch and capsella. The other files are
those of `ImageClassifier.save_pretrained`, by which capsella opens the folder.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from capsella.data import framing
from capsella.data.batching import evenly
from capsella.data.images import ImageSet
from capsella.data.reading import decode
from capsella.data.splits import Splits, single_images
from capsella.errors import ArgumentError, CapsellaError, check_argument, unknown_name
from capsella.export.graph import Output, fitted_outputs
from capsella.export.odd_files import write_odd_files
from capsella.export.onnx_files import load_onnx, write_int8, write_onnx
from capsella.export.parity import (
    TOLERANCES,
    Activations,
    Others,
    Parity,
    Precision,
    Tolerance,
    check_parity,
    compare,
    default_tolerance,
)
from capsella.export.pt2_files import load_pt2, write_pt2
from capsella.files import read_json, write_json, write_text
from capsella.models import ImageClassifier

Format = Literal["onnx", "pt2"]
FORMATS = ("onnx", "pt2")
CALIBRATION_IMAGES = 256
TIMED = 20  # images on which predict.py is timed
PREDICT, FRAMING = Path(__file__).with_name("predict.py"), Path(framing.__file__)


class ExportImages(NamedTuple):
    """Images to calibrate and compare an exported file on, in place of the splits of a run."""

    train: ImageSet
    test: ImageSet


@dataclass(frozen=True)
class FileCheck:
    """The result of comparing the predict.py of an exported folder with capsella.

    files: number of image files that both read equally, including those of `write_odd_files`. milliseconds: median time
    to read and classify an image file on one core.
    """

    files: int
    milliseconds: float


@dataclass(frozen=True)
class Exported:
    """An exported folder, the description in its model.json, and its comparison with PyTorch.

    files: the check of predict.py; None if the folder has none.
    """

    path: Path
    description: dict[str, Any]
    parity: Parity
    files: FileCheck | None


def export_model(
    model: ImageClassifier,
    images: Splits | ExportImages,
    folder: str | Path,
    *,
    format: Format = "onnx",
    precision: Precision = "float32",
    reconstruction: bool = False,
    tolerance: Tolerance | None = None,
    files: Sequence[Path] = (),
    facts: dict[str, Any] | None = None,
) -> Exported:
    """Write a trained network to a folder, and compare it with the network on every test image.

    Args:
        model: a trained network.
        images: splits that `model` was trained with. int8 calibrates on training images; test images are compared.
        folder: the folder; written only if the comparison passes.
        format: "onnx", or "pt2" for `torch.export` with the native kernels.
        precision: "float32", or "int8" for ONNX.
        reconstruction: include the decoder.
        tolerance: limits of differences; default: `default_tolerance`.
        files: image files of the test images; predict.py must read them as capsella does.
        facts: more entries for the description.

    Raises:
        ArgumentError: an unknown format or precision, or one that the format lacks; `folder` holds a run.
        CapsellaError: the check fails; an extra is not installed.
    """
    _check(format, precision)
    folder = Path(folder)
    check_argument(not (folder / "config.json").exists(), "be a folder of its own, without a run", out=str(folder))
    train, test = (single_images(part, "exports") for part in (images.train, images.test))
    outputs = fitted_outputs(model)
    if precision == "int8":  # the detector's matrices would be quantised, too
        outputs = tuple(name for name in outputs if name != "ood_score")
    outputs = (*outputs, "reconstruction") if reconstruction else outputs
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as temporary:
        part = Path(temporary)
        description = _written(model, part / f"model.{format}", train, format, precision, outputs, facts)
        run, others = _read_back(part / f"model.{format}", format, outputs)
        check_parity(parity := compare(model, run, test, tolerance or default_tolerance(model, precision), 64, others))
        model.save_pretrained(part)
        values = {**read_json(part / "model.json"), **description, "parity": parity.to_dict()}
        write_json(part / "model.json", values)
        check = None
        if format == "onnx" and model.cut is None and model.channels in (1, 3):
            program = PREDICT.read_text(encoding="utf-8").replace("from capsella.data.framing", "from framing")
            write_text(part / PREDICT.name, program)
            shutil.copyfile(FRAMING, part / FRAMING.name)
            check = _check_files(model, part, test, files)
        folder.mkdir(exist_ok=True)
        for file in part.iterdir():
            os.replace(file, folder / file.name)
    return Exported(folder, description, parity, check)


def _written(
    model: ImageClassifier,
    path: Path,
    train: ImageSet,
    format: Format,
    precision: Precision,
    outputs: Sequence[Output],
    facts: dict[str, Any] | None,
) -> dict[str, Any]:
    """Write the file, and return its description."""
    if format == "pt2":
        return write_pt2(model, path, outputs=outputs, facts=facts)
    if precision == "float32":
        return write_onnx(model, path, outputs=outputs, facts=facts)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "float32.onnx")
        description = write_onnx(model, source, outputs=outputs, facts=facts)
        return write_int8(source, path, train.subset(evenly(len(train), CALIBRATION_IMAGES)), description)


def _read_back(path: Path, format: Format, outputs: Sequence[Output]) -> tuple[Activations, Others]:
    """Load each output of the file."""
    if format == "pt2":
        loaded = {name: load_pt2(path, name)[0] for name in outputs}
    else:
        loaded = {name: load_onnx(path, output=name) for name in outputs}
    return loaded.pop("activations"), loaded


def _check_files(model: ImageClassifier, folder: Path, test: ImageSet, files: Sequence[Path]) -> FileCheck:
    """Check that predict.py reads image files as capsella does, and time it.

    Raises:
        CapsellaError: predict.py reads a file differently.
    """
    from capsella.export import predict

    about = read_json(folder / "model.json")

    def ours(file: Path) -> np.ndarray:
        pixels, loss = decode(file, str(file), model.preprocessing)
        loss.check(model.value_range)
        return pixels.numpy()

    with tempfile.TemporaryDirectory() as temporary:
        brightest = 65535 if model.value_range is None else int(model.value_range[1])
        odd = write_odd_files(Path(temporary, "odd"), brightest)
        for file in (*files, *odd):
            expected, found = _attempt(ours, file), _attempt(lambda path: predict.read_image(path, about), file)
            are_equal = expected is found if expected is None or found is None else np.array_equal(expected, found)
            if not are_equal:
                raise CapsellaError(f"{PREDICT.name} reads {file.name} differently from capsella")
        network = predict.Network(folder, threads=1)
        timed, seconds = list(files[:TIMED]) or _saved(test, Path(temporary)), []
        for file in timed:
            began = time.perf_counter()
            network.predict(file)
            seconds.append(time.perf_counter() - began)
    return FileCheck(len(files) + len(odd), 1000 * median(seconds))


def _attempt(read: Callable[[Path], np.ndarray], file: Path) -> np.ndarray | None:
    try:
        return read(file)
    except Exception:  # decoders raise errors of every kind; both must refuse the file
        return None


def _saved(images: ImageSet, folder: Path) -> list[Path]:
    """Save a few images as PNG files."""
    files = [folder / f"{k}.png" for k in range(min(TIMED, len(images)))]
    for file, pixels in zip(files, images.images, strict=False):
        Image.fromarray(pixels.permute(1, 2, 0).squeeze(2).numpy()).save(file)
    return files


def _check(format: str, precision: str) -> None:
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if precision not in TOLERANCES:
        raise unknown_name("precision", precision, TOLERANCES)
    if format == "pt2" and precision != "float32":
        raise ArgumentError("precision", "be 'float32' for the format 'pt2'", precision)

"""Export a trained network to a folder for other programs, checked against PyTorch before it is kept.

model.onnx or model.pt2 returns activations, calibrated probabilities and the OOD score. model.json describes it.
predict.py and image_file.py, beside an ONNX file, classify image files without PyTorch and capsella. The others are
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

from capsella.data import FolderData, image_file
from capsella.data.batching import evenly
from capsella.data.images import ImageSet
from capsella.data.reading import decode
from capsella.data.splits import single_images
from capsella.errors import CapsellaError, check_argument
from capsella.evaluation.domain import ADAPTED, adapted_images
from capsella.export.graph import Output, fitted_outputs
from capsella.export.onnx_files import load_onnx, write_int8, write_onnx
from capsella.export.parity import Parity, Precision, Tolerance, check_parity, compare, default_tolerance
from capsella.export.pt2_files import load_pt2, write_pt2
from capsella.files import read_json, write_json, write_text
from capsella.models import ImageClassifier
from capsella.training import Run, RunFolder, load_splits

Format = Literal["onnx", "pt2"]
UNTESTED = "checked on validation images; their errors are no test errors"
CALIBRATION_IMAGES = 256
TIMED = 20  # images on which predict.py is timed
PREDICT, IMAGE_FILE = Path(__file__).with_name("predict.py"), Path(image_file.__file__)


class ExportImages(NamedTuple):
    """Images to calibrate int8 on, images to compare on, and image files that predict.py must read as capsella does."""

    train: ImageSet
    test: ImageSet
    files: Sequence[Path] = ()


class FileCheck(NamedTuple):
    """The result of comparing the predict.py of an exported folder with capsella.

    files: number of image files that both read equally. milliseconds: median time to read and classify one on one core.
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


def export_run(
    run: Run,
    out: Path | None = None,
    *,
    format: Format = "onnx",
    precision: Precision = "float32",
    difference: float | None = None,
    flips: float | None = None,
    say: Callable[[str], object] = lambda note: None,
) -> Exported:
    """Write the network of a run to a folder, checked on its test images or on those that it was adapted to.

    A run that was not tested, such as the final one of a comparison with folds, is checked on its validation images.

    Args:
        run: a trained run.
        out: the folder; by default export, export-int8 or export-pt2 in the run's folder.
        format, precision: as for `export_model`.
        difference, flips: limits of the parity check; by default `default_tolerance`.
        say: called with each note.

    Raises:
        ArgumentError, CapsellaError: as `export_model`; the images are not available.
    """
    default = default_tolerance(run.model, precision)
    tolerance = Tolerance(
        default.difference if difference is None else difference,
        default.flips if flips is None else flips,
        default.probability if difference is None else max(default.probability, difference),
    )
    kind = f"-{format}" if format != "onnx" else "" if precision == "float32" else f"-{precision}"
    facts = {"recipe": run.name}
    if run.adapted is None:
        splits = load_splits(run)
        # A comparison trains its last network also on the test images, but for one, and does not test it.
        held = splits.test
        if not RunFolder(run.folder).is_tested:
            held = splits.validation
            say(UNTESTED)
            facts["images"] = UNTESTED
        train, test = (single_images(part, "exports") for part in (splits.train, held))
        data = run.recipe.data
        files = [data.path / name for name in test.files or ()] if isinstance(data, FolderData) else []
        images = ExportImages(train, test, files)
    else:
        images = ExportImages(*adapted_images(run, run.adapted))
        say(ADAPTED)
        domain = f"{run.adapted['laboratory']}, without those of the adaptation"
        facts |= {"images": domain, "probabilities": ADAPTED}
    return export_model(
        run.model,
        images,
        out or run.folder / f"export{kind}",
        format=format,
        precision=precision,
        tolerance=tolerance,
        facts=facts,
    )


def export_model(
    model: ImageClassifier,
    images: ExportImages,
    folder: str | Path,
    *,
    format: Format = "onnx",
    precision: Precision = "float32",
    tolerance: Tolerance | None = None,
    facts: dict[str, Any] | None = None,
) -> Exported:
    """Write a trained network to a folder, and compare it with the network on every test image.

    Args:
        model: a trained network.
        images: `model` was trained without the test images.
        folder: the folder; written only if the comparison passes.
        format: "onnx", or "pt2" for `torch.export` with the native kernels.
        precision: "float32", or "int8" for ONNX.
        tolerance: limits of differences; default: `default_tolerance`.
        facts: more entries for the description.

    Raises:
        ArgumentError: a precision that the format lacks; `folder` has other files.
        CapsellaError: the check fails; an extra is not installed.
    """
    is_possible = format == "onnx" or precision == "float32"
    check_argument(is_possible, "be 'float32' for the format 'pt2'", precision=precision)
    folder = Path(folder)
    is_export = (folder / "model.json").exists() and not (folder / "config.json").exists()  # a run has both
    is_free = not folder.exists() or not any(folder.iterdir())
    check_argument(is_free or is_export, "be a new folder, or that of an earlier export", out=str(folder))
    outputs = fitted_outputs(model)
    if precision == "int8":  # the detector's matrices would be quantised, too
        outputs = tuple(name for name in outputs if name != "ood_score")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as temporary:
        part = Path(temporary)
        path = part / f"model.{format}"
        if format == "pt2":
            description = write_pt2(model, path, outputs=outputs, facts=facts)
            exported = {name: load_pt2(path, name)[0] for name in outputs}
        else:
            description = _write_onnx(model, path, images.train, precision, outputs, facts)
            exported = {name: load_onnx(path, output=name) for name in outputs}
        parity = compare(model, exported, images.test, tolerance or default_tolerance(model, precision))
        check_parity(parity)
        model.save_pretrained(part)
        values = {**read_json(part / "model.json"), **description, "parity": parity.to_dict()}
        write_json(part / "model.json", values)
        check = None
        if format == "onnx" and model.cut is None and model.channels in (1, 3):
            program = PREDICT.read_text(encoding="utf-8").replace("from capsella.data.image_file", "from image_file")
            write_text(part / PREDICT.name, program)
            shutil.copyfile(IMAGE_FILE, part / IMAGE_FILE.name)
            check = _check_files(model, part, images)
        folder.mkdir(exist_ok=True)
        for file in part.iterdir():
            os.replace(file, folder / file.name)
    return Exported(folder, description, parity, check)


def _write_onnx(
    model: ImageClassifier,
    path: Path,
    train: ImageSet,
    precision: Precision,
    outputs: Sequence[Output],
    facts: dict[str, Any] | None,
) -> dict[str, Any]:
    if precision == "float32":
        return write_onnx(model, path, outputs=outputs, facts=facts)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "float32.onnx")
        description = write_onnx(model, source, outputs=outputs, facts=facts)
        return write_int8(source, path, train.subset(evenly(len(train), CALIBRATION_IMAGES)), description)


def _check_files(model: ImageClassifier, folder: Path, images: ExportImages) -> FileCheck:
    """Check that predict.py reads the image files, or without files a few test images, as capsella does; and time it.

    Raises:
        CapsellaError: predict.py reads a file differently.
    """
    from capsella.export import predict

    about = read_json(folder / "model.json")

    def read(file: Path) -> np.ndarray:
        pixels, loss = decode(file, str(file), model.preprocessing)
        loss.check(model.value_range)
        return pixels.numpy()

    network, seconds = predict.Network(folder, threads=1), []
    with tempfile.TemporaryDirectory() as temporary:
        files = list(images.files)
        if not files:
            for number, pixels in enumerate(images.test.images[:TIMED]):
                files.append(Path(temporary, f"{number}.png"))
                Image.fromarray(pixels.permute(1, 2, 0).squeeze(2).numpy()).save(files[-1])
        for file in files:
            ours, theirs = _attempt(read, file), _attempt(lambda path: predict.read_image(path, about), file)
            if not (ours is theirs if ours is None or theirs is None else np.array_equal(ours, theirs)):
                raise CapsellaError(f"{PREDICT.name} reads {file.name} differently from capsella")
        for file in files[:TIMED]:
            began = time.perf_counter()
            network.predict(file)
            seconds.append(time.perf_counter() - began)
    return FileCheck(len(files), 1000 * median(seconds))


def _attempt(read: Callable[[Path], np.ndarray], file: Path) -> np.ndarray | None:
    try:
        return read(file)
    except Exception:  # decoders raise errors of every kind; both must refuse the file
        return None

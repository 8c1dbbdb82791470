"""`capsella export`."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from capsella.cli.laboratory import ADAPTED, adapted_images
from capsella.cli.runs import open_run
from capsella.data import Splits, load_data
from capsella.errors import CapsellaError
from capsella.export import CheckedOn, Format, Precision, Tolerance, export_model, usual_tolerance
from capsella.training import Run, load_splits


@dataclass(frozen=True)
class Export:
    """Write a run's network as a file for other programs.

    The file must agree with PyTorch on every test image, or it is not written.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    format: Format = "onnx"
    """The kind of file. onnx: for ONNX Runtime and others. pt2: for torch.export, with the native kernels."""
    precision: Precision = "float32"
    """Precision of convolutions and dense layers; routing stays float32. Training images calibrate int8."""
    reconstruction: bool = False
    """Include the decoder; its images are a second output, reconstruction."""
    out: Path | None = None
    """The file; default: RECIPE.onnx, RECIPE-int8.onnx or RECIPE.pt2 in the run's folder."""
    tolerance: float | None = None
    """Largest difference allowed of any activation; default: 1e-4 for float32, 1e-2 for float16 and for votes
    in bfloat16, 0.1 for int8."""
    flips: float | None = None
    """Per cent of test images that may get another class; default: 0 for float32, 0.5 for float16, 1 for int8."""
    json: bool = False
    """Print JSON instead of text; FILE.json beside the file holds the same."""


def run(arguments: list[str]) -> None:
    """Export, check and print."""
    options = tyro.cli(Export, args=arguments, prog="capsella export")
    trained = open_run(options.run)
    usual = usual_tolerance(trained.model, options.precision)
    tolerance = Tolerance(
        usual.difference if options.tolerance is None else options.tolerance,
        usual.flips if options.flips is None else options.flips,
    )
    reduced = "" if options.precision == "float32" else f"-{options.precision}"
    images, facts = _images(trained) if trained.adapted is None else _adapted_on(trained, trained.adapted)
    exported = export_model(
        trained.model,
        images,
        options.out or options.run / f"{trained.name}{reduced}.{options.format}",
        format=options.format,
        precision=options.precision,
        reconstruction=options.reconstruction,
        tolerance=tolerance,
        facts={"recipe": trained.name, **facts},
    )
    if options.json:
        print(json.dumps(exported.to_dict(), indent=2))
        return
    about = exported.description
    engine = f"opset {about['opset']}" if about["format"] == "onnx" else f"routing: {about['routing']}"
    size = exported.path.stat().st_size / 2**20
    print(f"{about['model']}, {about['format']}, {about['precision']}, {engine}, {size:.1f} MiB")
    print(f"parity with PyTorch: {exported.parity}")
    if missing := about.get("not_in_this_file"):
        print(f"not in the file: {' and '.join(missing)}; capsella predict has them")
    print(f"written to {exported.path}, and its description to {exported.path.name}.json")


def _images(trained: Run) -> tuple[Splits, dict[str, str]]:
    """Those of the training, or what lies in their place now: parity holds on any; and what is to be said of them."""
    try:
        return load_splits(trained, skip_broken=True), {}
    except CapsellaError as error:
        try:
            images = load_data(replace(trained.recipe.data, skip_broken=True))
        except CapsellaError:
            raise error from None  # which says where they were
        print(f"note: the errors below say nothing of new images: {error}", file=sys.stderr)
        return images, {"images": "others than those of the training: the errors say nothing of new images"}


def _adapted_on(trained: Run, adapted: Mapping[str, Any]) -> tuple[CheckedOn, dict[str, str]]:
    """Those of the laboratory that the network is for: parity elsewhere says little of it."""
    place = adapted["laboratory"]
    try:
        images = CheckedOn(*adapted_images(trained, adapted))
    except CapsellaError as error:
        raise CapsellaError(
            f"{trained.folder} was adapted to {place}, and its file is checked on these images: {error}"
        ) from error
    print(f"note: {ADAPTED}", file=sys.stderr)
    return images, {"images": f"{place}, without those of the adaptation", "probabilities": ADAPTED}

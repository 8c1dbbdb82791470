"""`capsella export`."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from capsella.cli.flags import parse, positional
from capsella.cli.screen import note
from capsella.errors import CapsellaError, pluralize

if TYPE_CHECKING:
    from capsella.data import Splits
    from capsella.export import CheckedOn
    from capsella.training import Run


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a trained network to a folder that runs without PyTorch and capsella.

    model.onnx returns activations, calibrated probabilities and the score of
    the OOD check. predict.py classifies image files with it. The folder is
    written only if both agree with capsella on every test image.
    """

    run: Annotated[Path, *positional("RUN", "A run, or a comparison's folder.")]
    format: Literal["onnx", "pt2"] = "onnx"
    """onnx: for ONNX Runtime and others. pt2: for torch.export, with the native kernels."""
    quantize: Literal["float32", "int8"] = "float32"
    """Numbers of convolutions and dense layers; routing stays float32. Training images calibrate int8."""
    reconstruction: bool = False
    """Include the decoder; its images are one more output, reconstruction."""
    out: Path | None = None
    """The folder. Default: export, export-int8 or export-pt2 in the run's folder."""
    tolerance: float | None = None
    """Largest difference allowed in any activation, and, unless in int8, probability. Default: 1e-4 for float32, 1e-2
    with votes in bfloat16, 0.1 for int8."""
    flips: float | None = None
    """Percentage of test images that may get another class. Default: 0 for float32, 0.5 with votes in bfloat16, 1
    for int8."""
    json: bool = False
    """Print JSON instead of text."""


def run(arguments: list[str]) -> None:
    """Export, check and print."""
    options = parse(Export, arguments, "export")

    from capsella.data import FolderData
    from capsella.export import Tolerance, default_tolerance, export_model
    from capsella.training.trained import open_run

    run = open_run(options.run)
    default = default_tolerance(run.model, options.quantize)
    tolerance = Tolerance(
        default.difference if options.tolerance is None else options.tolerance,
        default.flips if options.flips is None else options.flips,
        default.probability if options.tolerance is None else max(default.probability, options.tolerance),
    )
    kind = "" if options.quantize == "float32" else f"-{options.quantize}"
    kind = kind if options.format == "onnx" else f"-{options.format}"
    images, facts = _images(run)
    data, names = run.recipe.data, images.test.files or ()
    files = [data.path / name for name in names] if isinstance(data, FolderData) and run.adapted is None else []
    exported = export_model(
        run.model,
        images,
        options.out or run.folder / f"export{kind}",
        format=options.format,
        precision=options.quantize,
        reconstruction=options.reconstruction,
        tolerance=tolerance,
        files=files,
        facts={"recipe": run.name, **facts},
    )
    about, check = exported.description, exported.files
    if options.json:
        files_check = None if check is None else asdict(check)
        print(json.dumps({**about, "parity": exported.parity.to_dict(), "files": files_check}, indent=2))
        return
    engine = f"opset {about['opset']}" if about["format"] == "onnx" else f"routing: {about['routing']}"
    size = (exported.path / f"model.{options.format}").stat().st_size / 2**20
    print(f"{about['model']}, {about['format']}, {about['precision']}, {engine}, {size:.1f} MiB")
    print(f"outputs: {', '.join(about['outputs'])}")
    print(f"parity with PyTorch: {exported.parity}")
    if check is not None:
        print(f"predict.py reads {pluralize(check.files, 'file')} as capsella does, and takes "
              f"{check.milliseconds:.1f} ms for an image on one core")  # fmt: skip
    elif options.format == "onnx":
        note("no predict.py: it cannot crop cells or read pairs; capsella predict takes this folder")
    print(f"written to {exported.path}")


def _images(run: "Run") -> "tuple[Splits | CheckedOn, dict[str, str]]":
    """Return the images to check on, and a note about them for the description."""
    from capsella.data import load_data
    from capsella.evaluation.domain import ADAPTED, adapted_images
    from capsella.export import CheckedOn
    from capsella.training import load_splits

    if run.adapted is not None:
        domain = run.adapted["laboratory"]
        try:
            images = CheckedOn(*adapted_images(run, run.adapted))
        except CapsellaError as error:
            raise CapsellaError(
                f"{run.folder} was adapted to {domain}, whose images check the file: {error}"
            ) from error
        note(ADAPTED)
        return images, {"images": f"{domain}, without those of the adaptation", "probabilities": ADAPTED}
    try:
        return load_splits(run, skip_broken=True), {}
    except CapsellaError as error:  # parity can be checked on any images
        try:
            splits = load_data(replace(run.recipe.data, skip_broken=True))
        except CapsellaError:
            raise error from None  # which says where they were
        note(f"the errors below say nothing about new images: {error}")
        return splits, {"images": "not those of the training: the errors say nothing about new images"}

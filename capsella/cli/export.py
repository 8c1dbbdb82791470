"""`capsella export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from capsella.cli.flags import parse, positional
from capsella.cli.screen import note
from capsella.errors import pluralize


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a trained network to a folder that runs without PyTorch and capsella.

    model.onnx returns activations, calibrated probabilities and the score of
    the OOD check. predict.py classifies image files with it. The folder is
    written only if both agree with capsella on test or validation images.
    """

    run: Annotated[Path, *positional("RUN", "A run, or a comparison's folder.")]
    format: Literal["onnx", "pt2"] = "onnx"
    """onnx: for ONNX Runtime and other programs. pt2: for PyTorch, with native kernels."""
    quantize: Literal["float32", "int8"] = "float32"
    """Number format of convolutions and dense layers; routing stays float32. Training images calibrate int8."""
    out: Path | None = None
    """The folder. Default: export, export-int8 or export-pt2 in the run's folder."""
    tolerance: float | None = None
    """Largest difference allowed in any activation and, except in int8, probability. Default: 1e-4 for float32, 1e-2
    with bfloat16 votes, 0.1 for int8."""
    flips: float | None = None
    """Percentage of the compared images that may get another class. Default: 0 for float32, 0.5 with bfloat16 votes, 1
    for int8."""


def run(arguments: list[str]) -> None:
    """Export, check and print."""
    options = parse(Export, arguments, "export")

    from capsella.export import export_run
    from capsella.training.trained import open_run

    exported = export_run(
        open_run(options.run, final=True),
        options.out,
        format=options.format,
        precision=options.quantize,
        difference=options.tolerance,
        flips=options.flips,
        say=note,
    )
    about, check = exported.description, exported.files
    engine = f"opset {about['opset']}" if about["format"] == "onnx" else f"routing: {about['routing']}"
    size = (exported.path / f"model.{options.format}").stat().st_size / 2**20
    print(f"{about['model']}, {about['format']}, {about['precision']}, {engine}, {size:.1f} MiB")
    print(f"outputs: {', '.join(about['outputs'])}")
    print(f"parity with PyTorch: {exported.parity}")
    if check is not None:
        files = pluralize(check.files, "file")
        print(f"predict.py reads {files} as capsella does; it takes {check.milliseconds:.1f} ms per image on one core")
    elif options.format == "onnx":
        note("no predict.py: it cannot crop cells or read pairs; capsella predict takes this folder")
    print(f"written to {exported.path}")

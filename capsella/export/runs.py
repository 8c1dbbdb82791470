"""Export a run, checked on its own test images or on those of the domain that it was adapted to."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from capsella.data import FolderData, Splits, load_data
from capsella.errors import CapsellaError
from capsella.evaluation.domain import ADAPTED, adapted_images
from capsella.export.parity import Precision, Tolerance, default_tolerance
from capsella.export.ship import Exported, ExportImages, Format, export_model
from capsella.training import Run, load_splits


def export_run(
    run: Run,
    out: Path | None = None,
    *,
    format: Format = "onnx",
    precision: Precision = "float32",
    reconstruction: bool = False,
    difference: float | None = None,
    flips: float | None = None,
    say: Callable[[str], object] = lambda note: None,
) -> Exported:
    """Write the network of a run to a folder, checked on the run's test images; see `export_model`.

    Args:
        run: a trained run.
        out: the folder; by default export, export-int8 or export-pt2 in the run's folder.
        format, precision, reconstruction: as for `export_model`.
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
    images, facts = _images(run, say)
    data, names = run.recipe.data, images.test.files or ()
    files = [data.path / name for name in names] if isinstance(data, FolderData) and run.adapted is None else []
    return export_model(
        run.model,
        images,
        out or run.folder / f"export{kind}",
        format=format,
        precision=precision,
        reconstruction=reconstruction,
        tolerance=tolerance,
        files=files,
        facts={"recipe": run.name, **facts},
    )


def _images(run: Run, say: Callable[[str], object]) -> tuple[Splits | ExportImages, dict[str, str]]:
    """Return the images to check on, and entries about them for the description."""
    if run.adapted is not None:
        domain = run.adapted["laboratory"]
        try:
            images = ExportImages(*adapted_images(run, run.adapted))
        except CapsellaError as error:
            raise CapsellaError(
                f"{run.folder} was adapted to {domain}, on whose images the file is checked: {error}"
            ) from error
        say(ADAPTED)
        return images, {"images": f"{domain}, without those of the adaptation", "probabilities": ADAPTED}
    try:
        return load_splits(run, skip_broken=True), {}
    except CapsellaError as error:  # parity can be checked on any images
        try:
            splits = load_data(replace(run.recipe.data, skip_broken=True))
        except CapsellaError:
            raise error from None  # the first error names the missing images
        say(f"the error rates below do not hold for new images: {error}")
        return splits, {"images": "not those of the training: the error rates do not hold for new images"}

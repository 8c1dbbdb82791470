"""`capsella predict`."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from capsella.cli.laboratory import ADAPTED
from capsella.cli.runs import open_run
from capsella.cli.screen import console
from capsella.errors import ArgumentError, check_argument, pluralize
from capsella.evaluation import UncertaintyColumns, passed_over, predict_on_cluster, predict_table, set_scale
from capsella.image_options import CellCut, check_range
from capsella.models import ImageClassifier
from capsella.ray_cluster import Place, joined
from capsella.report.prose import column_notes, prediction_lines
from capsella.training import load_run
from capsella.uncertainty import FALSE_POSITIVE_RATE


@dataclass(frozen=True)
class Predict:
    """Classify images into a table with one row per file.

    The probability is calibrated on validation images; activations are raw.

    in_distribution is false for images unlike the training images.

    error is filled for files that cannot be read.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    paths: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATHS…")]
    """Image files, folders, or .txt files with a path per line. With --on: files, folders, or URLs of them, as
    s3://BUCKET/FOLDER."""
    out: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    """The table: a .csv or .jsonl file, or a .parquet folder; default: CSV to standard output. With --on: a folder or
    its URL, for Parquet files."""
    resume: bool = False
    """Add the files that the table lacks."""
    overwrite: bool = False
    """Replace an existing table."""
    coverage: float | None = None
    """Add the column prediction_set, a list of classes. For this proportion of images, e.g. 0.95, it contains the true
    class: on average over all classes, for images like the validation images."""
    unsure_below: float | None = None
    """Add the column unsure: true if the probability is below this, e.g. 0.9. `capsella evaluate RUN --reject` shows
    what each threshold costs."""
    ood_false_positive_rate: float = FALSE_POSITIVE_RATE
    """False-positive rate of the OOD check. 0 turns it off."""
    workers: int | None = None
    """Processes that decode images; 0 decodes in this one. Default: one less than there are cores, at most 8; 0 for
    fewer than 500 images. Not with --on."""
    batch_size: int = 64
    """Images at a time."""
    cell_radius: float | None = None
    """For a network that crops stained cells: the radius of a typical nucleus in pixels of the files; default: the
    median of 100 of them, which must be of one microscope."""
    range: tuple[float, float] | None = None
    """The values that are black and white in files of more than 8 bits per channel; default: as in training."""
    place: Annotated[Place, tyro.conf.arg(name="")] = Place()

    def __post_init__(self) -> None:
        check_argument(all(self.paths or ("",)), "name at least one image or folder, and none empty", paths=self.paths)
        check_range(self.range)
        if self.out is None and (self.resume or self.overwrite or self.place.on):
            raise ArgumentError("out", "be given with --resume, --overwrite and --on", None)
        if self.place.on is not None:
            check_argument(not self.place.gpus, "be left out: predict uses cores", gpus=self.place.gpus)
            check_argument(self.workers is None, "not come with --on: Ray has the workers", workers=self.workers)
            check_argument(not self.overwrite, "not come with --on: name a new folder", overwrite=self.overwrite)


def run(arguments: list[str]) -> None:
    """Predict and write."""
    options = tyro.cli(Predict, args=arguments, prog="capsella predict")
    began, errors = time.monotonic(), console(stderr=True)
    trained = open_run(options.run)
    model, is_paired = trained.model, trained.recipe.data.is_paired
    model.value_range = options.range or model.value_range
    if options.place.on is not None and model.cut is not None and options.cell_radius is None:
        raise ArgumentError("cell_radius", "be given with --on, for a network that crops cells", None)
    local = [] if options.place.on else list(map(Path, options.paths))
    notes = [note for note in (set_scale(model, local, options.cell_radius), *passed_over(local)) if note]
    if trained.adapted is not None and (options.coverage is not None or options.unsure_below is not None):
        notes.append(ADAPTED)
    rate = options.ood_false_positive_rate or None
    columns = UncertaintyColumns(model.calibration, options.coverage, options.unsure_below, model.ood_detector, rate)
    work: dict[str, Any] = {"batch_size": options.batch_size, "resume": options.resume, "columns": columns}
    work["classes"] = 2 if is_paired else 1
    if options.place.on is not None and options.out is not None:
        load = partial(_load, options.run, model.value_range, model.cut)
        with joined(options.place):
            summary = predict_on_cluster(load, options.paths, options.out.rstrip("/"), **work)
    else:
        out = None if options.out is None else Path(options.out)
        work |= {"workers": options.workers, "overwrite": options.overwrite, "console": errors}
        summary = predict_table(model, local, out, **work)
    lines = prediction_lines(summary, columns)
    if options.out is not None:
        rows, seconds = pluralize(summary.rows, "row"), time.monotonic() - began
        lines.insert(0, f"{rows} in {options.out} after {seconds:.0f} s")
    lines += [f"note: {note}" for note in (notes if is_paired else [*notes, *column_notes(columns)])]
    errors.print(*lines, sep="\n", soft_wrap=True, markup=False)


def _load(run: Path, value_range: tuple[float, float] | None, cut: CellCut | None) -> ImageClassifier:
    model = load_run(run).model
    model.value_range, model.cut = value_range, cut
    return model

"""`capsella predict`."""

import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsella.cli.flags import Group, parse, positional
from capsella.cli.screen import console, note
from capsella.errors import ArgumentError, CapsellaError, check_argument, check_minimum, pluralize
from capsella.image_options import CellCut, check_range
from capsella.ray_cluster import ClusterOptions, ray_session

if TYPE_CHECKING:
    from capsella.evaluation import PredictOptions
    from capsella.models import ImageClassifier


@dataclass(frozen=True, kw_only=True)
class PredictCommon:
    """Classify images into a table with one row per file.

    The probability is calibrated on validation images; activations are raw.
    in_distribution is false for images unlike the training images. error is
    filled for files that cannot be read.
    """

    run: Annotated[Path, *positional("RUN", "A run, a comparison's folder, or an exported folder.")]
    paths: Annotated[tuple[str, ...], *positional("IMAGES…", "Images, folders, or .txt files with a path per line.")]
    out: str | None = None
    """The table: a .csv or .jsonl file, or a .parquet folder. Default: CSV to standard output. With --on: a folder, or
    its URL, for Parquet files."""
    resume: bool = False
    """Add the files that the table lacks."""
    overwrite: bool = False
    """Replace an existing table."""
    coverage: float | None = None
    """Add the column prediction_set, a list of classes. For this proportion of images, e.g. 0.95, it contains the true
    class: on average over all classes, for images like the validation images."""
    unsure_below: float | None = None
    """Add the column unsure: true if the probability is below this, e.g. 0.9 (see capsella evaluate --selective)."""
    ood_false_positive_rate: float = 0.05
    """False-positive rate of the OOD check. 0 turns it off."""
    label_next: int | None = None
    """Write instead the images whose labels would help capsella adapt most, this many: uncertain ones that differ from
    each other. --out is a .csv file with the columns file, class, probability."""
    range: tuple[float, float] | None = None
    """Values that become black and white in files with more than 8 bits. Default: as in training."""


@dataclass(frozen=True, kw_only=True)
class Predict(PredictCommon):
    """All flags."""

    workers: int | None = None
    """Threads that decode images; 0 decodes in the main one. Default: one less than there are cores, at most 8. Not
    with --on."""
    batch_size: int = 64
    """Images per batch."""
    cell_radius: float | None = None
    """For a network that crops stained cells: radius of a typical nucleus in pixels of the files. Default: the median
    of 100 of them, which must be of one microscope; of 20 or more, the stain is measured, too."""
    cluster: Annotated[ClusterOptions, Group] = ClusterOptions()

    def __post_init__(self) -> None:
        check_argument(all(self.paths or ("",)), "name at least one image or folder, and none empty", paths=self.paths)
        check_range(self.range)
        check_minimum(1, batch_size=self.batch_size)
        if self.out is None and (self.resume or self.overwrite or self.cluster.on):
            raise ArgumentError("out", "be given with --resume, --overwrite and --on", None)
        if self.label_next is not None:
            is_file = self.out is not None and self.out.endswith(".csv") and not self.resume and self.cluster.on is None
            is_alone = is_file and self.coverage is None and self.unsure_below is None
            rule = "come with --out FILE.csv, without --resume, --on, --coverage and --unsure-below"
            check_argument(is_alone, rule, label_next=self.label_next)
        if self.cluster.on is not None:
            check_argument(not self.cluster.gpus, "be left out: predict uses cores", gpus=self.cluster.gpus)
            check_argument(self.workers is None, "not come with --on: Ray has the workers", workers=self.workers)
            check_argument(not self.overwrite, "not come with --on: name a new folder", overwrite=self.overwrite)


def run(arguments: list[str]) -> None:
    """Predict and write."""
    options, began = parse(Predict, arguments, "predict"), time.monotonic()

    from capsella.evaluation import (
        PredictOptions,
        passed_over,
        predict_on_cluster,
        predict_table,
        set_scale,
    )
    from capsella.evaluation.domain import ADAPTED
    from capsella.report.prose import column_notes, prediction_lines
    from capsella.training.trained import open_network

    model, run = open_network(options.run, final=True)
    model.value_range = options.range or model.value_range
    if options.cluster.on is not None and model.cut is not None and options.cell_radius is None:
        raise ArgumentError("cell_radius", "be given with --on, for a network that crops cells", None)
    local = [] if options.cluster.on else list(map(Path, options.paths))
    notes = [line for line in (set_scale(model, local, options.cell_radius), *passed_over(local)) if line]
    if run is not None and run.adapted is not None and (options.coverage or options.unsure_below):
        notes.append(ADAPTED)
    is_paired = run is not None and run.recipe.data.is_paired
    most_outside = {} if options.range is None else {"most_outside": 1.0}
    how = PredictOptions(
        batch_size=options.batch_size,
        workers=options.workers,
        classes=2 if is_paired else 1,
        coverage=options.coverage,
        unsure_below=options.unsure_below,
        false_positive_rate=options.ood_false_positive_rate or None,
        **most_outside,
    )
    if options.label_next is not None and options.out is not None:
        check_argument(not is_paired, "be left out: the run's images are pairs", label_next=options.label_next)
        _list_to_label(model, local, options.label_next, Path(options.out), how, options.overwrite)
        note(*notes)
        return
    if options.cluster.on is not None and options.out is not None:
        load = partial(_load, options.run, model.value_range, model.cut)
        with ray_session(options.cluster):
            summary = predict_on_cluster(load, options.paths, options.out.rstrip("/"), how, resume=options.resume)
    else:
        out = None if options.out is None else Path(options.out)
        again = {"resume": options.resume, "overwrite": options.overwrite}
        summary = predict_table(model, local, out, how, **again, progress=True)
    lines = prediction_lines(summary, model, how)
    if options.out is not None:
        rows, seconds = pluralize(summary.rows, "row"), time.monotonic() - began
        lines.insert(0, f"{rows} in {options.out} after {seconds:.0f} s")
    console(stderr=True).print(*lines, sep="\n", end="\n" if lines else "", soft_wrap=True, markup=False)
    note(*notes, *(() if is_paired else column_notes(model, how)))


def _list_to_label(
    model: "ImageClassifier", paths: list[Path], number: int, out: Path, how: "PredictOptions", overwrite: bool
) -> None:
    from capsella.evaluation.labelling import choose_to_label, write_candidates

    if out.exists() and not overwrite:
        raise CapsellaError(f"{out} exists: --overwrite replaces it")
    chosen, unreadable = choose_to_label(model, paths, number, how, progress=True)
    write_candidates(out, chosen)
    print(f"{pluralize(number, 'image')} to label first: {out}", file=sys.stderr)
    if unreadable:
        example = f"{unreadable[0].file}: {unreadable[0].reason}"
        print(f"{pluralize(len(unreadable), 'file')} could not be read, e.g. {example}", file=sys.stderr)


def _load(run: Path, value_range: tuple[float, float] | None, cut: CellCut | None) -> "ImageClassifier":
    from capsella.training.trained import open_network

    model, _ = open_network(run, final=True)
    model.value_range, model.cut = value_range, cut
    return model

"""`capsella predict`."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from capsella.cli.laboratory import ADAPTED
from capsella.cli.runs import open_run
from capsella.cli.screen import console
from capsella.errors import ArgumentError, check_argument, pluralize
from capsella.evaluation import (
    PART_SIZE,
    Broken,
    Certainty,
    Prediction,
    passed_over,
    predict_files,
    predict_shards,
    predict_table,
    print_table,
    set_scale,
)
from capsella.image_options import CellCut, check_range
from capsella.models import ImageClassifier
from capsella.models.novelty.fitted import REFUSE
from capsella.ray_cluster import Place, joined
from capsella.training import load_run


@dataclass(frozen=True)
class Predict:
    """Classify images into a table: file, class, probability, activations, known.

    The probability is calibrated on validation images; activations are raw.

    known is false for images unlike the training images; why_unknown says why.

    With --out, images that cannot be read are listed in OUT.broken.csv.

    With --resume, an interrupted call goes on where it stopped.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    paths: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATHS…")]
    """Image files, folders to look for images in, or .txt files with a path a line. With --on also URLs of them, as
    s3://BUCKET/FOLDER, and .parquet files with a column `path` or `bytes`."""
    out: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    """The table: a .csv, .jsonl or .parquet file; default: CSV to standard output. With --on a folder, or the URL of
    one, for a .parquet file a part."""
    resume: bool = False
    """Go on with a table that an earlier call left unfinished; begin it if there is none."""
    overwrite: bool = False
    """Replace a table that exists."""
    coverage: float | None = None
    """Add the column prediction_set, a list of classes. For this share of images, as 0.95, it holds the true class: on
    average over all classes, and of images like the validation images."""
    unsure_below: float | None = None
    """Add the column unsure: true where the probability is below this, as 0.9. capsella evaluate RUN --reject shows
    what each threshold costs."""
    refuse: float = REFUSE
    """The share of images like the training images that may be called not known; 0 leaves both columns empty."""
    workers: int | None = None
    """Processes that decode images; 0 decodes in this one. Default: one less than there are cores, at most 8; 0 for
    fewer than 500 images, and without --out. Not with --on."""
    batch_size: int = 64
    """Images at a time."""
    cell_radius: float | None = None
    """Of stained cells that a network cuts out: the radius of a usual nucleus in pixels of the files; default: the
    median of 100 of them, which must be of one microscope."""
    range: tuple[float, float] | None = None
    """The values that are black and white in files of more than 8 bits a channel; default: as the model was trained."""
    skip_broken: bool = False
    """Without --out: leave out images that cannot be read, and list them at the end. With --out they always are."""
    part: int | None = None
    """With --on: images a part; default: 10,000."""
    place: Annotated[Place, tyro.conf.arg(name="")] = Place()


def run(arguments: list[str]) -> None:
    """Predict and write."""
    options = tyro.cli(Predict, args=arguments, prog="capsella predict")
    if not all(options.paths or ("",)):
        raise ArgumentError("paths", "name at least one image or folder, and none may be empty", options.paths)
    if options.out is None and (options.resume or options.overwrite):
        raise ValueError("resume, overwrite: must come with --out; standard output is neither resumed nor replaced")
    _check_place(options)
    began = time.monotonic()
    check_range(options.range)
    trained = open_run(options.run)
    trained.model.value_range = options.range or trained.model.value_range
    if trained.model.cut is not None and options.place.on is not None and options.cell_radius is None:
        raise ValueError("cell_radius: must be given with --on, for a network that cuts cells out")
    note = set_scale(trained.model, map(Path, options.paths), options.cell_radius)
    notes = [] if note is None else [note]
    if trained.adapted is not None and (options.coverage is not None or options.unsure_below is not None):
        notes = [*notes, ADAPTED]
    paired = trained.recipe.data.is_paired
    classes = 2 if paired else 1
    model, refuse = trained.model, options.refuse or None
    certainty = Certainty(model.confidence, options.coverage, options.unsure_below, model.novelty, refuse)
    if options.place.on is not None:
        _to_shards(options, trained.model, classes, certainty, began)
    elif options.out is None:
        _to_standard_output(options, trained.model, classes, certainty)
    else:
        _to_table(options, trained.model, classes, Path(options.out), certainty, began)
    if options.place.on is None:
        notes = [*notes, *passed_over(map(Path, options.paths))]
    for note in notes if paired else [*notes, *certainty.notes()]:
        console(stderr=True).print(f"note: {note}", soft_wrap=True, markup=False)


def _check_place(options: Predict) -> None:
    """A cluster has parts, and reads images in its own way."""
    if options.place.on is None:
        check_argument(options.part is None, "come with --on", part=options.part)
        return
    check_argument(not options.place.gpus, "be left out: predict computes on cores", gpus=options.place.gpus)
    if options.workers is not None or options.skip_broken:
        raise ValueError("workers, skip_broken: must not come with --on: Ray has the workers, and every image a row")


def _to_standard_output(options: Predict, model: ImageClassifier, classes: int, certainty: Certainty) -> None:
    broken: list[Broken] | None = [] if options.skip_broken else None
    workers = options.workers or 0
    predictions = predict_files(
        model,
        map(Path, options.paths),
        batch_size=options.batch_size,
        workers=workers,
        broken=broken,
        classes=classes,
        novelty=certainty.watched,
    )
    unknown = 0

    def counting() -> Iterator[Prediction]:
        nonlocal unknown
        for prediction in predictions:
            unknown += certainty.refuses(prediction)
            yield prediction

    try:
        rows = print_table(counting(), model.classes, certainty)
    finally:  # also where none could be read
        _list_broken(broken or [])
    if certainty.watched is not None:
        console(stderr=True).print(_unknown(unknown, rows), soft_wrap=True, markup=False)


def _list_broken(broken: Sequence[Broken]) -> None:
    if broken:
        lines = [f"{_printable(str(entry.file))}: {_printable(entry.reason)}" for entry in broken]
        heading = f"left out {pluralize(len(broken), 'broken image')}:"
        console(stderr=True).print(heading, *lines, sep="\n  ", soft_wrap=True, markup=False)


def _to_table(
    options: Predict, model: ImageClassifier, classes: int, out: Path, certainty: Certainty, began: float
) -> None:
    errors = console(stderr=True)
    written = predict_table(
        model,
        map(Path, options.paths),
        out,
        batch_size=options.batch_size,
        workers=options.workers,
        resume=options.resume,
        overwrite=options.overwrite,
        classes=classes,
        certainty=certainty,
        console=errors,
    )
    seconds = time.monotonic() - began
    lines = [f"{pluralize(written.rows, 'prediction')} written to {out} in {seconds:.0f} s"]
    if options.unsure_below is not None:
        lines.append(f"{written.unsure:,} of them unsure: the probability is below {options.unsure_below:g}")
    if written.unknown is not None:
        lines.append(_unknown(written.unknown, written.rows))
    if written.broken_table:
        lines.append(f"{pluralize(written.broken, 'broken image')} listed in {written.broken_table}")
    errors.print(*lines, sep="\n", soft_wrap=True, markup=False)


def _to_shards(options: Predict, model: ImageClassifier, classes: int, certainty: Certainty, began: float) -> None:
    out = options.out
    if out is None or Path(out).suffix in (".csv", ".jsonl", ".parquet"):
        raise ArgumentError("out", "be a folder with --on", out)
    errors = console(stderr=True)
    with joined(options.place):
        written = predict_shards(
            partial(_loaded, options.run, model.value_range, model.cut),
            options.paths,
            out.rstrip("/"),
            size=PART_SIZE if options.part is None else options.part,
            batch_size=options.batch_size,
            resume=options.resume,
            overwrite=options.overwrite,
            classes=classes,
            certainty=certainty,
            console=errors,
        )
    files, seconds = pluralize(written.shards, "file"), time.monotonic() - began
    lines = [f"{pluralize(written.rows, 'row')} written to {files} in {out} in {seconds:.0f} s"]
    lines += [f"{written.broken:,} of them of images that could not be read"] if written.broken else []
    lines += [] if options.unsure_below is None else [f"{written.unsure:,} of them unsure"]
    lines += [] if certainty.watched is None else [_unknown(written.unknown, written.rows)]
    errors.print(*lines, sep="\n", soft_wrap=True, markup=False)


def _loaded(run: Path, value_range: tuple[float, float] | None, cut: CellCut | None) -> ImageClassifier:
    model = load_run(run).model
    model.value_range, model.cut = value_range, cut
    return model


def _unknown(unknown: int, rows: int) -> str:
    return f"{unknown:,} of {rows:,} not known: unlike the training images"


def _printable(text: str) -> str:
    """A name can hold line breaks, and what commands a terminal."""
    return text if text.isprintable() else repr(text)

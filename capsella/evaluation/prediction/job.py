"""Predictions for 100,000 files and more, into a table: bounded memory, progress, and resumable at any moment."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.errors import CapsellaError
from capsella.evaluation.prediction.certainty import Certainty
from capsella.evaluation.prediction.journal import Journal
from capsella.evaluation.prediction.listing import image_files
from capsella.evaluation.prediction.predict import Broken, Prediction, check_speed, predict_batches
from capsella.evaluation.prediction.progress import image_progress
from capsella.evaluation.prediction.tables import check_table, write_broken, write_table
from capsella.models import ImageClassifier
from capsella.models.saving import hash_weights

_FEW = 500  # images that are decoded sooner than worker processes start
_MOST_WORKERS = 8


@dataclass(frozen=True)
class Written:
    """What `predict_table` left: rows in the table, those of them whose answer is unsure (0 where that was not asked),
    those whose image is not known (None where nothing is said of it), and the files that could not be read, in a table
    of their own.
    """

    rows: int
    unsure: int
    unknown: int | None
    broken: int
    broken_table: Path | None


def predict_table(
    model: ImageClassifier,
    paths: Iterable[Path],
    out: Path,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    classes: int = 1,
    certainty: Certainty | None = None,
    console: Console | None = None,
) -> Written:
    """Classify image files into the table `out`, and list those that cannot be read in `out`.broken.csv.

    However the process ends, a call with `resume` goes on from `out`.journal: every file is in one table, once.

    Args:
        model, paths: any registered model; files and folders, as for `image_files`.
        out: .csv, .jsonl or .parquet; see `write_table`.
        batch_size, classes: images at a time; classes that an image shows, 2 for a model of pairs.
        workers: processes that decode; None is one a core but one, at most 8, and none for fewer than 500 images.
        resume, overwrite: go on with `out`.journal (same model, paths, working folder); or drop it and replace `out`.
        certainty, console: for the columns behind the activations (None: the probability); for progress.

    Raises:
        ValueError, CapsellaError: from `check_table`, `predict_files` and `Journal`; flags that do not fit `out`.
    """
    check_speed(batch_size, workers)
    paths, out = [Path(path) for path in paths], Path(out)
    certainty = certainty or usual_certainty(model, classes)
    check_table(out, model.classes, certainty)
    journal_path, about = _unused(out, resume=resume, overwrite=overwrite), about_prediction(model, paths, certainty)
    total = sum(1 for _ in image_files(paths))
    with Journal(journal_path, about, model.classes, overwrite=overwrite) as journal:
        files = (name for name in image_files(paths) if name not in journal.files)
        count, watched = _workers_for(total - len(journal.files), workers), certainty.watched
        batches = predict_batches(model, files, batch_size=batch_size, workers=count, classes=classes, novelty=watched)
        _collect(batches, journal, total, console)
        return _finish(journal, out, certainty)


def usual_certainty(model: ImageClassifier, classes: int) -> Certainty:
    """The probability, and whether an image is known; neither for a model of pairs."""
    return Certainty(model.confidence, novelty=model.novelty) if classes == 1 else Certainty()


def _collect(
    batches: Iterable[list[Prediction | Broken]], journal: Journal, total: int, console: Console | None
) -> None:
    with image_progress(console or Console(quiet=True), total, len(journal.files)) as advance:
        for outcomes in batches:
            journal.append(outcomes)
            advance(len(outcomes))


def _unused(out: Path, *, resume: bool, overwrite: bool) -> Path:
    """Where the journal goes, if the flags allow it to be written."""
    journal = out.with_name(out.name + ".journal")
    if resume and overwrite:
        raise ValueError("resume: must not be set together with overwrite")
    if journal.exists() and not resume and not overwrite:
        raise CapsellaError(
            f"{out} was begun and is not finished ({journal}): --resume goes on, --overwrite begins anew"
        )
    if out.exists() and not journal.exists() and not overwrite:
        way = "there is nothing to resume; --overwrite predicts anew" if resume else "--overwrite replaces it"
        raise CapsellaError(f"{out} is finished already: {way}, or choose another --out")
    return journal


def _finish(journal: Journal, out: Path, certainty: Certainty) -> Written:
    """Both tables, each whole or not at all; done again from the beginning where the process is killed half way."""
    broken_table = out.with_name(out.name + ".broken.csv")
    if journal.broken:
        write_broken((outcome for outcome in journal.outcomes() if isinstance(outcome, Broken)), broken_table)
    else:
        broken_table.unlink(missing_ok=True)  # of an older table
    unsure = unknown = 0

    def predictions() -> Iterator[Prediction]:
        nonlocal unsure, unknown
        for outcome in journal.outcomes():
            if isinstance(outcome, Prediction):
                unsure += certainty.doubts(outcome)
                unknown += certainty.refuses(outcome)
                yield outcome

    rows = write_table(predictions(), journal.classes, out, certainty) if journal.predictions else 0
    journal.delete()
    if not rows:
        raise CapsellaError(f"none of the {journal.broken} images could be read; {broken_table} says why")
    said = None if certainty.watched is None else unknown
    return Written(rows, unsure, said, journal.broken, broken_table if journal.broken else None)


def _workers_for(images: int, asked: int | None) -> int:
    if asked is not None:
        return asked
    if images < _FEW:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_WORKERS, max(1, cores - 1))


def about_prediction(model: ImageClassifier, paths: Iterable[Path | str], certainty: Certainty) -> dict[str, Any]:
    """What must be the same for a prediction to be gone on with; names are relative, so the working folder as well."""
    return {
        "fit of what is known": None if certainty.watched is None else certainty.watched.digest,
        "nucleus's radius (--cell-radius)": None if model.cut is None else model.cut.radius,
        "journal": "capsella predict 1",
        "model": _fingerprint(model),
        "working folder": os.getcwd(),
        "list of paths": [str(path) for path in paths],
    }


def _fingerprint(model: ImageClassifier) -> str:
    """SHA-256 of the network and its weights."""
    options = getattr(model, "options", {})
    shape = [type(model).__name__, list(model.classes), list(model.image_size), model.channels, options]
    shape += [] if model.value_range is None else [model.value_range]
    shape += [] if model.cut is None else [model.cut.to_dict()]
    digest = hashlib.sha256(json.dumps(shape, default=str, sort_keys=True).encode())
    hash_weights(model, digest)
    return digest.hexdigest()

"""Predictions of millions of files on a Ray cluster, a Parquet file a part: whole or not at all, each once."""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from capsella import ray_cluster
from capsella.errors import ArgumentError, CapsellaError, check_argument, check_minimum
from capsella.evaluation.prediction.certainty import Certainty
from capsella.evaluation.prediction.job import about_prediction, usual_certainty
from capsella.evaluation.prediction.progress import image_progress
from capsella.evaluation.prediction.tables import check_table
from capsella.evaluation.shards.parts import NAMES, TABLE, Part, digest_of, parts_of, write_names
from capsella.evaluation.shards.urls import is_url, names_in, opened, remove, write
from capsella.evaluation.shards.worker import COUNTS, Work, Worker
from capsella.files import alone_in
from capsella.models import ImageClassifier

ABOUT = "_about.json"
"""In the folder of the output: of which model and paths it is, and at the end what was counted."""
OWN = re.compile(r"\.?part-\d{6,}\.parquet(\..+)?")
"""Names of the parts of an output, also of those that were being written."""
SIZE = 10_000
"""Files a part."""


class Sharded(NamedTuple):
    """What `predict_shards` left: rows, those of files that could not be read, of unsure answers, and of images that
    are not known; and Parquet files.
    """

    rows: int
    broken: int
    unsure: int
    unknown: int
    shards: int


def predict_shards(
    load: Callable[[], ImageClassifier],
    paths: Sequence[str],
    out: str,
    *,
    size: int = SIZE,
    batch_size: int = 64,
    resume: bool = False,
    overwrite: bool = False,
    classes: int = 1,
    certainty: Certainty | None = None,
    console: Console | None = None,
) -> Sharded:
    """Classify images on the cluster that was joined, into Parquet files in the folder `out`, also a URL: a row a file.

    However the call ends, one with `resume` goes on with the parts that are not there.

    Args:
        load: gives the model, here and in every worker; a function of a module, or a `partial` of one.
        paths: files, folders, lists (.txt), and tables (.parquet) with a column `path` or `bytes`; or URLs of them.
        size: files a part, but for tables, of which each row group is a part.
        batch_size, resume, overwrite, classes, certainty, console: as for `predict_table`.

    Raises:
        ValueError, CapsellaError: as `predict_table`; workers died.
    """
    check_minimum(1, size=size, batch_size=batch_size)
    check_argument(not (resume and overwrite), "not come together", resume=resume, overwrite=overwrite)
    model, place = load(), _joined()
    certainty = certainty or usual_certainty(model, classes)
    check_table(Path("part.parquet"), model.classes, certainty)
    check_argument(
        "broken" not in model.classes, "not have broken among them, which is a column", classes=model.classes
    )
    with _alone(out):
        about = _about(model, paths, certainty, size)
        parts = _begun(paths, out, size, about, resume=resume, overwrite=overwrite)
        work = Work(ray_cluster.Desk.here(_needs(place)), load, out, batch_size, classes, certainty)
        found = _predicted(work, parts, place, console)
        _write_about(out, {**about, "counts": found._asdict()})
        remove(f"{out}/{NAMES}")
    return found


def _about(model: ImageClassifier, paths: Sequence[str], certainty: Certainty, size: int) -> dict[str, Any]:
    """What must be the same to go on: every part is written with its columns, where a table is written at the end."""
    fitted = None if certainty.confidence is None else certainty.confidence.to_dict()
    asked = {
        "coverage": certainty.coverage,
        "unsure-below": certainty.unsure_below,
        "refuse": certainty.refuse,
        "calibration": hashlib.sha256(json.dumps(fitted, sort_keys=True).encode()).hexdigest(),
        "images a part": size,
        "content of tables": [digest_of(path) for path in paths if path.endswith(TABLE)],
    }
    about: dict[str, Any] = json.loads(json.dumps({**about_prediction(model, paths, certainty), **asked}))
    return about


def _joined() -> ray_cluster.Place:
    if (place := ray_cluster.place()) is None:
        raise ArgumentError("cluster", "be joined first, with capsella.ray_cluster.joined", None)
    return place


def _predicted(work: Work, parts: Sequence[Part], place: ray_cluster.Place, console: Console | None) -> Sharded:
    """Predict the parts that are not there yet."""
    console = console or Console(quiet=True)
    if note := ray_cluster.shortage(_needs(place)):
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    total = sum(part.rows for part in parts)
    counts, left = _counted_before(parts, work.out)
    with image_progress(console, total, counts["rows"]) as advance:
        for row in _rows(work, left, place):
            counts.update({name: int(row[name]) for name in COUNTS})
            advance(int(row["rows"]))
    if counts["rows"] != total:
        raise CapsellaError(f"{work.out}: {counts['rows']} rows of {total} names: a table changed; begin anew")
    return Sharded(counts["rows"], counts["broken"], counts["unsure"], counts["unknown"], len(parts))


def _needs(place: ray_cluster.Place) -> dict[str, float]:
    """What each worker takes: it predicts on cores alone."""
    return {"num_cpus": place.cpus, "num_gpus": 0}


def _alone(out: str) -> AbstractContextManager[None]:
    """No other process writes there; of a folder elsewhere that is not known."""
    return nullcontext() if is_url(out) else alone_in(Path(out))


def _begun(
    paths: Sequence[str], out: str, size: int, about: Mapping[str, Any], *, resume: bool, overwrite: bool
) -> list[Part]:
    """The parts of a prediction that is begun now, or was before."""
    there = names_in(out) - {".lock"}
    if overwrite:
        _remove_older(out, there, paths)
        there = set()
    if ABOUT in there:
        _check(out, about, resume)
    elif there:
        raise CapsellaError(f"{out} holds other files, as {min(there)}; choose another folder")
    else:
        _write_about(out, about)
    tables = [path for path in paths if path.endswith(TABLE)]
    if named := [path for path in paths if not path.endswith(TABLE)]:
        if NAMES not in there or _rows_in(f"{out}/{NAMES}", []) is None:
            write(f"{out}/{NAMES}", lambda path: write_names(named, path, size))
        tables = [f"{out}/{NAMES}", *tables]
    return parts_of(tables)


def _remove_older(out: str, there: AbstractSet[str], paths: Sequence[str]) -> None:
    """What an earlier prediction wrote into a folder, and nothing else.

    Raises:
        CapsellaError: a part of it is to be read.
    """
    older = [name for name in there if name in (ABOUT, NAMES) or OWN.fullmatch(name)]
    places = {_place(f"{out}/{name}") for name in older}
    if read := [path for path in paths if _place(path) in places]:
        raise CapsellaError(f"{read[0]} is to be read, and would be replaced: choose another folder than {out}")
    for name in sorted(older, key=lambda name: name != ABOUT):  # which may say that all the others are there
        remove(f"{out}/{name}")


def _place(path: str) -> str:
    return path if is_url(path) else str(Path(path).resolve())


def _check(out: str, about: Mapping[str, Any], resume: bool) -> None:
    try:
        with opened(f"{out}/{ABOUT}") as file:
            older = json.load(file)
    except ValueError as error:
        raise CapsellaError(f"{out}/{ABOUT} is damaged: begin anew with --overwrite") from error
    older = {"content of tables": about["content of tables"], **older}  # begun before it was kept
    if "counts" in older:
        raise CapsellaError(f"{out} is finished already: --overwrite predicts anew, or choose another --out")
    if not resume:
        raise CapsellaError(f"{out} was begun and is not finished: --resume goes on, --overwrite begins anew")
    for name, value in about.items():
        if older.get(name) != value:
            got = older.get(name)
            raise CapsellaError(f"{out} was begun with another {name}: {got!r}; take that, or begin with --overwrite")


def _write_about(out: str, about: Mapping[str, Any]) -> None:
    write(f"{out}/{ABOUT}", lambda path: path.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8"))


def _counted_before(parts: Sequence[Part], out: str) -> tuple[Counter[str], list[Part]]:
    """What an earlier call left, and the parts that are still to do."""
    import pyarrow.compute

    counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
    there, left = names_in(out), []
    for part in parts:
        table = _rows_in(f"{out}/{part.shard}", ["broken", "unsure", "known"]) if part.shard in there else None
        if table is None:
            left.append(part)
            continue
        unsure = table["unsure"] if "unsure" in table.column_names else []
        counts["rows"] += len(table)
        counts["broken"] += len(table) - table["broken"].null_count
        counts["unsure"] += pyarrow.compute.sum(unsure).as_py() or 0
        counts["unknown"] += pyarrow.compute.sum(pyarrow.compute.invert(table["known"])).as_py() or 0
    return counts, left


def _rows_in(place: str, columns: Sequence[str]) -> Any:
    """A table with those of its columns; None where it was cut off as it was written, as some stores leave it."""
    import pyarrow.parquet

    try:
        with opened(place) as file, pyarrow.parquet.ParquetFile(file) as table:
            return table.read([name for name in columns if name in table.schema_arrow.names])
    except pyarrow.ArrowInvalid:
        return None


def _rows(work: Work, parts: Sequence[Part], place: ray_cluster.Place) -> Iterator[dict[str, Any]]:
    """What workers say of each part, as soon as it is done."""
    if not parts:
        return
    begin = _from_outside if place.is_outside else _rows_there
    try:
        for row in begin(work, parts, place):
            if row["error"]:
                raise CapsellaError(row["error"])
            yield row
    except ray_cluster.ray_errors() as error:
        raise ray_cluster.lost("predict", error) from error


def _rows_there(work: Work, parts: Sequence[Part], place: ray_cluster.Place) -> Iterator[dict[str, Any]]:
    """In a process of the cluster: all parts through a pool of workers."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    needs, tries = _needs(place), {"max_task_retries": ray_cluster.RETRIES}  # by default, without end
    workers = max(1, min(ray_cluster.room(needs), len(parts)))
    pool = ray.data.ActorPoolStrategy(min_size=workers, max_size=len(parts), max_tasks_in_flight_per_actor=2)
    waiting = ray.data.from_items([asdict(part) for part in parts], override_num_blocks=len(parts))
    done = waiting.map_batches(
        Worker, fn_constructor_args=(work,), batch_size=1, compute=pool, ray_remote_args_fn=lambda: tries, **needs
    )
    yield from done.iter_rows()


def _from_outside(work: Work, parts: Sequence[Part], place: ray_cluster.Place) -> Iterator[dict[str, Any]]:
    """Ray Data knows only processes of the cluster, so one of them asks it, and this one asks that."""
    import ray

    asker = ray.remote(num_cpus=0)(_Asker).remote(work, parts, place)
    while (row := ray.get(asker.next_row.remote())) is not None:
        yield row


class _Asker:
    """What workers say, a row a call; None at the end."""

    def __init__(self, work: Work, parts: Sequence[Part], place: ray_cluster.Place) -> None:
        self._rows = _rows_there(work, parts, place)

    def next_row(self) -> dict[str, Any] | None:
        return next(self._rows, None)

"""The table of predictions: its columns, and CSV, JSON lines and Parquet. Each is resumed by reading its own rows."""

import csv
import hashlib
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from jaxtyping import Float
from torch import Tensor

from capsella.data.image_file import MOST_OUTSIDE
from capsella.data.reading import LEAST_LOSS, NOTHING_UNSEEN, UnseenPart
from capsella.errors import ArgumentError, CapsellaError, check_argument, check_installed, check_minimum
from capsella.files import alone_in, is_disk_full, lock, write_whole
from capsella.models import ImageClassifier
from capsella.uncertainty import (
    FALSE_POSITIVE_RATE,
    OODDetector,
    check_coverage,
    check_false_positive_rate,
    weights_digest,
)

PART_ROWS = 10_000  # rows of a Parquet file
_MOST_WORKERS = 8


@dataclass(frozen=True, eq=False)
class Prediction:
    """The prediction for one file.

    Attributes:
        class_name: the class with the largest activation; of two classes per image both, as in "8 + 3".
        activations: one per class.
        scores: the normalised OOD scores, if a detector is used.
        loss: what the network does not see of the file.
    """

    file: Path
    class_name: str
    activations: Float[Tensor, " classes"]
    scores: Float[Tensor, " scores"] | None = None
    loss: UnseenPart = NOTHING_UNSEEN


@dataclass(frozen=True)
class UnreadableFile:
    """A file that could not be read, and why."""

    file: Path
    reason: str


@dataclass(frozen=True)
class PredictOptions:
    """Options of predictions for files.

    Attributes:
        batch_size: images per batch; affects speed and memory only.
        workers: threads that decode and resize. None: one less than the number of cores, at most 8.
        classes: number of classes per image: 1, or 2 for a model of overlaid pairs.
        coverage: coverage of the prediction sets; None: no sets.
        unsure_below: the probability below which a prediction is unsure; None: no such column.
        false_positive_rate: false-positive rate of the OOD check; None turns it off.
        most_outside: largest proportion of values outside the value range of the training, in files of more than
            8 bits. A file with more counts as unreadable.
    """

    batch_size: int = 64
    workers: int | None = None
    classes: int = 1
    coverage: float | None = None
    unsure_below: float | None = None
    false_positive_rate: float | None = FALSE_POSITIVE_RATE
    most_outside: float = MOST_OUTSIDE

    def __post_init__(self) -> None:
        check_minimum(0, workers=self.workers)
        check_minimum(1, batch_size=self.batch_size)
        below = self.unsure_below
        check_argument(below is None or 0 < below <= 1, "be above 0 and at most 1, e.g. 0.9", unsure_below=below)
        if self.coverage is not None:
            check_coverage(self.coverage)
        if self.false_positive_rate is not None:
            check_false_positive_rate(self.false_positive_rate)

    @property
    def threads(self) -> int:
        """Number of threads that decode."""
        if self.workers is not None:
            return self.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(_MOST_WORKERS, max(1, cores - 1))

    def active_detector(self, model: ImageClassifier) -> OODDetector | None:
        """Return the model's detector if it is used: requested, and fitted with enough validation images."""
        detector = model.ood_detector
        return detector if detector is not None and detector.supports(self.false_positive_rate) else None


@dataclass
class PredictionSummary:
    """Counts of a table's rows, and what the network did not see of the files read in this call.

    Attributes:
        rows, unreadable, unsure, ood: all rows, files that could not be read, unsure predictions, OOD images.
        first_error: why the first of the unreadable files could not be read.
        losses: what the network did not see of a file, for files of which it misses 1 % or more.
    """

    rows: int = 0
    unreadable: int = 0
    unsure: int = 0
    ood: int = 0
    first_error: str = ""
    losses: list[UnseenPart] = field(default_factory=list)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one record with the columns `error`, `unsure` and `in_distribution`, where present."""
        self.rows += 1
        self.unreadable += bool(record.get("error"))
        self.first_error = self.first_error or record.get("error") or ""
        self.unsure += record.get("unsure") in (True, "true")
        self.ood += record.get("in_distribution") in (False, "false")


class PredictionTable:
    """The columns of a table of predictions, and its records.

    Columns: file, class, the activation of every class, probability, prediction_set and unsure if requested,
    in_distribution, ood_reason, error (why a file could not be read) and model (a digest of the weights and the
    options, by which a resumed table is checked).
    """

    def __init__(self, model: ImageClassifier, options: PredictOptions) -> None:
        """Raise `CapsellaError` if the options need calibrated probabilities and the model has none."""
        self.classes, self.calibration, self.options = model.classes, model.calibration, options
        self.detector = options.active_detector(model)
        if model.calibration is None and (options.coverage, options.unsure_below) != (None, None):
            raise CapsellaError(
                "coverage, unsure_below: need calibrated probabilities, and this model has none; "
                "training fits them, except for pairs"
            )
        requested = {"prediction_set": options.coverage, "unsure": options.unsure_below}
        optional = (name for name, value in requested.items() if value is not None)
        self.uncertainty = ("probability", *optional, "in_distribution", "ood_reason")
        self.names = ("file", "class", *self.classes, *self.uncertainty, "error", "model")
        digest = "" if self.detector is None else self.detector.digest
        asked = (options.coverage, options.unsure_below, options.false_positive_rate)
        text = weights_digest(model) + repr((model.preprocessing, model.classes, asked, model.calibration)) + digest
        self.model = hashlib.sha256(text.encode()).hexdigest()[:12]

    def record(self, outcome: Prediction | UnreadableFile) -> dict[str, Any]:
        """Return one row; activations are a dictionary under "activations"."""
        record: dict[str, Any] = {"file": str(outcome.file), "class": None, "activations": None}
        record |= dict.fromkeys((*self.uncertainty, "error")) | {"model": self.model}
        if isinstance(outcome, UnreadableFile):
            return record | {"error": outcome.reason}
        activations = (round(activation, 6) for activation in outcome.activations.tolist())
        record |= {"class": outcome.class_name, "activations": dict(zip(self.classes, activations, strict=True))}
        return record | self._probabilities(outcome) | self._ood(outcome)

    def _probabilities(self, prediction: Prediction) -> dict[str, Any]:
        """Return the calibrated columns; a prediction set names its classes, the most probable first."""
        if self.calibration is None:
            return {}
        probabilities = self.calibration.probabilities(prediction.activations)
        probability = float(probabilities[prediction.activations.argmax()])
        values: dict[str, Any] = {"probability": round(probability, 6)}
        if self.options.coverage is not None:
            inside = self.calibration.sets(prediction.activations, self.options.coverage)
            order = probabilities.argsort(descending=True, stable=True)
            values["prediction_set"] = [self.classes[k] for k in order[inside[order]].tolist()]
        if self.options.unsure_below is not None:
            values["unsure"] = probability < self.options.unsure_below
        return values

    def _ood(self, prediction: Prediction) -> dict[str, Any]:
        if self.detector is None or self.options.false_positive_rate is None or prediction.scores is None:
            return {}
        rate = self.options.false_positive_rate
        is_inside = float(prediction.scores.max()) <= self.detector.threshold(rate)
        reason = None if is_inside else self.detector.reason(prediction.scores, prediction.class_name, rate)
        return {"in_distribution": is_inside, "ood_reason": reason}

    def flat(self, record: Mapping[str, Any]) -> list[Any]:
        """Return a record as a value for each of `names`."""
        activations = record["activations"] or {}
        rest = (record[name] for name in (*self.uncertainty, "error", "model"))
        return [record["file"], record["class"], *(activations.get(name) for name in self.classes), *rest]

    def to_arrow(self, records: Iterable[Mapping[str, Any]]) -> Any:
        """Return a pyarrow table. Bytes of file names that are not UTF-8 become backslash escapes."""
        import pyarrow

        text, number, flag = pyarrow.string(), pyarrow.float64(), pyarrow.bool_()
        types = {"probability": number, "prediction_set": pyarrow.list_(text), "unsure": flag, "in_distribution": flag}
        types |= dict.fromkeys(self.classes, number)
        schema = pyarrow.schema([(_utf8(name), types.get(name, text)) for name in self.names])
        rows = [dict(zip(schema.names, map(_utf8, self.flat(record)), strict=True)) for record in records]
        return pyarrow.Table.from_pylist(rows, schema)

    def check_names(self) -> None:
        """Check that no class has the name of another column."""
        taken = sorted(name for name in self.classes if self.names.count(name) > 1)
        check_argument(not taken, "not be the name of another column; choose .jsonl", classes=taken[:1])


class TableWriter:
    """A table that is being written: a CSV or JSON-lines file with a row per line.

    Attributes:
        done: files that already have a row.
        summary: counts of all rows.
    """

    def __init__(self, table: PredictionTable) -> None:
        self.table, self.done, self.summary = table, set[str](), PredictionSummary()

    def write(self, outcomes: Sequence[Prediction | UnreadableFile]) -> None:
        """Append rows, and count them."""
        records = [self.table.record(outcome) for outcome in outcomes]
        self._append(records)
        for outcome, record in zip(outcomes, records, strict=True):
            self.summary.add(record)
            if isinstance(outcome, Prediction) and max(outcome.loss) >= LEAST_LOSS:
                self.summary.losses.append(outcome.loss)

    def _append(self, records: list[dict[str, Any]]) -> None:
        raise NotImplementedError

    def _count_old(self, record: Mapping[str, Any]) -> None:
        if record.get("model") != self.table.model:
            raise CapsellaError(
                "the table has rows of another model, or of other options; use these, or start again with --overwrite"
            )
        self.done.add(record["file"])
        self.summary.add(record)


@contextmanager
def open_table(out: Path | None, table: PredictionTable, *, resume: bool, overwrite: bool) -> Iterator[TableWriter]:
    """Open `out` (.csv, .jsonl or .parquet) to add rows; None prints CSV to standard output."""
    if out is None:
        table.check_names()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # whatever the terminal's encoding
        yield _TextWriter(table, sys.stdout)
        return
    if out.suffix not in (".csv", ".jsonl", ".parquet"):
        raise ArgumentError("out", "end in .csv, .jsonl or .parquet", str(out))
    if out.suffix != ".jsonl":
        table.check_names()
    if out.suffix == ".parquet":
        check_installed("Parquet", "parquet", "pyarrow", otherwise=", or choose .csv or .jsonl")
    elif out.is_dir():
        raise CapsellaError(f"{out} is a folder; name a file in it")
    if out.exists() and not (resume or overwrite):
        raise CapsellaError(f"{out} exists: --resume adds the files it lacks, --overwrite replaces it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".parquet":
            with alone_in(out):
                writer = _ParquetWriter(table, out, resume)
                try:
                    yield writer
                finally:
                    writer.close()
            return
        with out.open("a", newline="", encoding="utf-8", errors="surrogateescape") as file:
            lock(file, f"{out}: another `capsella predict` is writing it")
            yield _TextWriter(table, file, out if resume else None, out.suffix == ".csv")
    except OSError as error:
        if is_disk_full(error):
            raise CapsellaError(f"no space left to write {out}; make room, then continue with --resume") from error
        raise CapsellaError(f"{out}: cannot be written ({error})") from error


class _TextWriter(TableWriter):
    """A CSV or JSON-lines file with a row per line. A row that a killed process left incomplete is dropped."""

    def __init__(self, table: PredictionTable, file: TextIO, older: Path | None = None, is_csv: bool = True) -> None:
        super().__init__(table)
        self.file, self.is_csv, end = file, is_csv, 0
        if older is not None:
            with _old_rows(older):
                for record, position in self._complete_rows(older):
                    end = position
                    if record is not None:
                        self._count_old(record)
        if file is not sys.stdout and file.seekable():
            file.truncate(end)
        if is_csv and not end:
            file.write(_csv_line(table.names))
            file.flush()

    def _append(self, records: list[dict[str, Any]]) -> None:
        if self.is_csv:
            self.file.writelines(_csv_line(map(_csv_value, self.table.flat(record))) for record in records)
        else:
            self.file.writelines(json.dumps(record) + "\n" for record in records)
        self.file.flush()

    def _complete_rows(self, path: Path) -> Iterator[tuple[Mapping[str, Any] | None, int]]:
        """Yield the rows that end in a line break, None for the names of the columns, and where they end in bytes."""
        names, is_first = self.table.names, True
        with open(path, "rb") as file:
            lines = (line.decode("utf-8", "surrogateescape") for line in file if line.endswith(b"\n"))
            if not self.is_csv:
                yield from ((json.loads(line), file.tell()) for line in lines)
                return
            for row in csv.reader(lines):  # takes no line before it has returned the row that came before
                if is_first and tuple(row) != names:
                    raise CapsellaError(f"{path} has other columns than this prediction; choose another --out")
                if len(row) != len(names):  # cut off after a line break in a file's name
                    return
                yield None if is_first else dict(zip(names, row, strict=True)), file.tell()
                is_first = False


class _ParquetWriter(TableWriter):
    """A folder of Parquet files, each written whole: pandas, pyarrow and Ray read the folder as one table."""

    def __init__(self, table: PredictionTable, folder: Path, keep: bool) -> None:
        super().__init__(table)
        import pyarrow.parquet

        self.folder, self.waiting = folder, list[dict[str, Any]]()
        for part in sorted(folder.glob("*.parquet")):
            if not keep:
                part.unlink()
                continue
            with _old_rows(part):
                for row in pyarrow.parquet.read_table(part).to_pylist():
                    self._count_old(row)

    def _append(self, records: list[dict[str, Any]]) -> None:
        self.waiting += records
        if len(self.waiting) >= PART_ROWS:
            self.close()

    def close(self) -> None:
        """Write the rows that wait for more."""
        import pyarrow.parquet

        if self.waiting:
            rows, parts = self.table.to_arrow(self.waiting), (self.folder / f"part-{k:06}.parquet" for k in count())
            part = next(part for part in parts if not part.exists())
            write_whole(part, lambda temporary: pyarrow.parquet.write_table(rows, temporary))
            self.waiting = []


@contextmanager
def _old_rows(path: Path) -> Iterator[None]:
    """Turn every error of a damaged table's rows into a `CapsellaError` with its path."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, csv.Error) as error:
        raise CapsellaError(f"{path}: is damaged ({error}); start again with --overwrite") from error


def _csv_line(values: Iterable[str]) -> str:
    """Return a CSV line. Python's csv module quotes only those line breaks in a value that its line terminator has."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(values)
    return text.getvalue().removesuffix("\r\n") + "\n"


def _csv_value(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.6f}"
        case list():
            return " | ".join(value)
        case _:
            return str(value)


def _utf8(value: Any) -> Any:
    if isinstance(value, list):
        return [_utf8(item) for item in value]
    if not isinstance(value, str):
        return value
    return value.encode(errors="surrogateescape").decode(errors="backslashreplace")

"""The table of predictions: its columns, and CSV, JSON lines and Parquet. Each is resumed by reading its own rows."""

import csv
import hashlib
import io
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from jaxtyping import Float
from torch import Tensor

from capsella.data.reading import NOTHING_UNSEEN, UnseenCount, UnseenPart
from capsella.errors import ArgumentError, CapsellaError, check_argument, check_installed
from capsella.files import alone_in, is_disk_full, lock, write_whole
from capsella.models import ImageClassifier
from capsella.uncertainty import (
    FALSE_POSITIVE_RATE,
    Calibration,
    OODDetector,
    check_coverage,
    check_false_positive_rate,
    weights_digest,
)

PART_ROWS = 10_000  # rows of a Parquet file


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
class UncertaintyColumns:
    """The uncertainty columns of a table, which follow the activations, and what they are computed from.

    Attributes:
        calibration: the model's calibration; None leaves the probability empty.
        coverage: coverage of the prediction sets; None: no sets.
        unsure_below: the probability below which a prediction is unsure; None: no such column.
        detector: the model's OOD detector; None leaves the OOD columns empty.
        false_positive_rate: false-positive rate of the OOD check; None turns it off.
    """

    calibration: Calibration | None = None
    coverage: float | None = None
    unsure_below: float | None = None
    detector: OODDetector | None = None
    false_positive_rate: float | None = FALSE_POSITIVE_RATE

    def __post_init__(self) -> None:
        below = self.unsure_below
        if self.coverage is not None:
            check_coverage(self.coverage)
        if self.false_positive_rate is not None:
            check_false_positive_rate(self.false_positive_rate)
        check_argument(below is None or 0 < below <= 1, "be above 0 and at most 1, e.g. 0.9", unsure_below=below)
        if self.calibration is None and (self.coverage, below) != (None, None):
            raise CapsellaError(
                "coverage, unsure_below: need calibrated probabilities, and this model has none; "
                "`capsella evaluate RUN --calibrate` fits them for a run (not for pairs)"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        requested = {"prediction_set": self.coverage, "unsure": self.unsure_below}
        optional = (name for name, value in requested.items() if value is not None)
        return ("probability", *optional, "in_distribution", "ood_reason")

    @property
    def active_detector(self) -> OODDetector | None:
        """The detector, if it is used: requested, and fitted with enough validation images for a threshold."""
        return self.detector if self.detector is not None and self.detector.supports(self.false_positive_rate) else None

    def values(self, prediction: Prediction, classes: Sequence[str]) -> dict[str, Any]:
        """Return the values of the columns; a prediction set names its classes, the most probable first."""
        values: dict[str, Any] = dict.fromkeys(self.names)
        if self.calibration is not None:
            probabilities = self.calibration.probabilities(prediction.activations)
            probability = float(probabilities[prediction.activations.argmax()])
            values["probability"] = round(probability, 6)
            if self.coverage is not None:
                inside = self.calibration.sets(prediction.activations, self.coverage)
                order = probabilities.argsort(descending=True, stable=True)
                values["prediction_set"] = [classes[k] for k in order[inside[order]].tolist()]
            if self.unsure_below is not None:
                values["unsure"] = probability < self.unsure_below
        detector = self.active_detector
        if detector is not None and self.false_positive_rate is not None and prediction.scores is not None:
            is_inside = float(prediction.scores.max()) <= detector.threshold(self.false_positive_rate)
            values["in_distribution"] = is_inside
            values["ood_reason"] = None if is_inside else detector.reason(prediction.scores, prediction.class_name)
        return values


@dataclass
class PredictionSummary:
    """Counts of a table's rows, and what the network did not see of the files read in this call.

    Attributes:
        rows, unreadable, unsure, ood: all rows, files that could not be read, unsure predictions, OOD images.
        first_error: why the first of the unreadable files could not be read.
        losses: what the network did not see of the files.
    """

    rows: int = 0
    unreadable: int = 0
    unsure: int = 0
    ood: int = 0
    first_error: str = ""
    losses: UnseenCount = field(default_factory=UnseenCount)

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> "PredictionSummary":
        """Count records with the columns `error`, `unsure` and `in_distribution`, where present."""
        summary = cls()
        for record in records:
            summary.add(record)
        return summary

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one record."""
        self.rows += 1
        self.unreadable += bool(record.get("error"))
        self.first_error = self.first_error or record.get("error") or ""
        self.unsure += record.get("unsure") in (True, "true")
        self.ood += record.get("in_distribution") in (False, "false")


class PredictionTable:
    """The columns of a table of predictions, and its records.

    Columns: file, class, the activation of every class, those of `UncertaintyColumns`, error (why a file could not be
    read) and model (a digest of the weights and the options, by which a resumed table is checked).
    """

    def __init__(self, model: ImageClassifier, columns: UncertaintyColumns) -> None:
        self.classes, self.columns = model.classes, columns
        options = repr((model.preprocessing, model.classes, columns.coverage))
        options += repr((columns.unsure_below, columns.false_positive_rate))
        detector = "" if columns.active_detector is None else columns.active_detector.digest
        text = weights_digest(model) + options + repr(columns.calibration) + detector
        self.model = hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns in their order."""
        return ("file", "class", *self.classes, *self.columns.names, "error", "model")

    def check_names(self) -> None:
        """Check that no class has the name of another column."""
        taken = sorted(set(self.classes) & (set(self.names) - set(self.classes)))
        taken += sorted(set(self.classes) & {"file", "class", "error", "model", *self.columns.names})
        check_argument(not taken, "not be the name of another column; choose .jsonl", classes=taken[:1])

    def record(self, outcome: Prediction | UnreadableFile) -> dict[str, Any]:
        """Return one row; activations are a list under "activations"."""
        record: dict[str, Any] = {"file": str(outcome.file), "class": None, "activations": None}
        if isinstance(outcome, UnreadableFile):
            return record | dict.fromkeys(self.columns.names) | {"error": outcome.reason, "model": self.model}
        record |= {"class": outcome.class_name, "activations": [round(a, 6) for a in outcome.activations.tolist()]}
        return record | self.columns.values(outcome, self.classes) | {"error": None, "model": self.model}

    def to_arrow(self, outcomes: Iterable[Prediction | UnreadableFile]) -> Any:
        """Return a pyarrow table. Bytes of file names that are not UTF-8 become backslash escapes."""
        import pyarrow

        text, number, flag = pyarrow.string(), pyarrow.float64(), pyarrow.bool_()
        types = {"probability": number, "prediction_set": pyarrow.list_(text), "unsure": flag, "in_distribution": flag}
        types |= dict.fromkeys(self.classes, number)
        fields = [(_utf8(name), types.get(name, text)) for name in self.names]
        rows = [[_utf8(value) for value in self.flat_record(outcome)] for outcome in outcomes]
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in fields]
        schema = pyarrow.schema(fields)
        arrays = [pyarrow.array(column, kind) for column, (_, kind) in zip(columns, fields, strict=True)]
        return pyarrow.Table.from_arrays(arrays, schema=schema)

    def flat_record(self, outcome: Prediction | UnreadableFile) -> list[Any]:
        """Return one row as a value for each of `names`."""
        record = self.record(outcome)
        activations = record["activations"] or [None] * len(self.classes)
        rest = (record[name] for name in (*self.columns.names, "error", "model"))
        return [record["file"], record["class"], *activations, *rest]


class OpenTable(ABC):
    """A table that is being written.

    Attributes:
        done: files that already have a row.
        summary: counts of all rows.
    """

    def __init__(self, table: PredictionTable) -> None:
        self.table, self.done, self.summary = table, set[str](), PredictionSummary()

    @abstractmethod
    def write(self, outcomes: Sequence[Prediction | UnreadableFile]) -> None:
        """Append rows, and count them."""
        for outcome in outcomes:
            self.summary.add(self.table.record(outcome))
            if isinstance(outcome, Prediction):
                self.summary.losses.add(outcome.loss)

    def _count_old(self, record: Mapping[str, Any]) -> None:
        if record.get("model") != self.table.model:
            raise CapsellaError(
                "the table has rows of another model, or of other options; use these, or start again with --overwrite"
            )
        self.done.add(record["file"])
        self.summary.add(record)


@contextmanager
def open_table(out: Path | None, table: PredictionTable, *, resume: bool, overwrite: bool) -> Iterator[OpenTable]:
    """Open `out` (.csv, .jsonl or .parquet) to add rows; None prints CSV to standard output."""
    if out is None:
        table.check_names()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # whatever the terminal's encoding
        yield _TextTable(table, sys.stdout)
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
            with alone_in(out), _ParquetTable(table, out, keep=resume) as folder:
                yield folder
            return
        with _open_text(out) as file:
            yield _TextTable(table, file, out if resume else None, out.suffix == ".csv")
    except OSError as error:
        if is_disk_full(error):
            raise CapsellaError(f"no space left to write {out}; make room, then continue with --resume") from error
        raise


def _open_text(out: Path) -> TextIO:
    try:
        file = out.open("a", newline="", encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise CapsellaError(f"{out}: cannot be written ({error.strerror or error})") from error
    lock(file, f"{out}: another `capsella predict` is writing it")
    return file


class _TextTable(OpenTable):
    """A CSV or JSON-lines file with a row per line. A row that a killed process left incomplete is dropped."""

    def __init__(self, table: PredictionTable, file: TextIO, older: Path | None = None, is_csv: bool = True) -> None:
        super().__init__(table)
        self.file, self.is_csv = file, is_csv
        end = 0 if older is None else (self._end_of_csv if is_csv else self._end_of_json)(older)
        if file is not sys.stdout and file.seekable():
            file.truncate(end)
        if is_csv and not end:
            file.write(_csv_line(table.names))
            file.flush()

    def write(self, outcomes: Sequence[Prediction | UnreadableFile]) -> None:
        self.file.write("".join(map(self._line, outcomes)))
        self.file.flush()
        super().write(outcomes)

    def _line(self, outcome: Prediction | UnreadableFile) -> str:
        if self.is_csv:
            return _csv_line(map(_csv_value, self.table.flat_record(outcome)))
        record = self.table.record(outcome)
        if record["activations"] is not None:
            record["activations"] = dict(zip(self.table.classes, record["activations"], strict=True))
        return json.dumps(record) + "\n"

    def _end_of_csv(self, path: Path) -> int:
        """Count the complete rows of a file, and return where they end, in bytes."""
        end = 0
        with open(path, "rb") as file:
            whole = (line.decode("utf-8", "surrogateescape") for line in file if line.endswith(b"\n"))
            for row in csv.reader(whole):  # takes no line before it has returned the row that came before
                if not end and tuple(row) != self.table.names:
                    raise CapsellaError(
                        f"{path} has other columns than this prediction; choose another --out, or --overwrite"
                    )
                if len(row) != len(self.table.names):
                    break
                if end:
                    self._count_old(dict(zip(self.table.names, row, strict=True)))
                end = file.tell()
        return end

    def _end_of_json(self, path: Path) -> int:
        end = 0
        with open(path, "rb") as file:
            for line in file:
                try:
                    record = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:
                    record = None
                if not isinstance(record, dict):
                    break
                self._count_old(record)
                end += len(line)
        return end


class _ParquetTable(OpenTable):
    """A folder of Parquet files, each written whole: pandas, pyarrow and Ray read the folder as one table."""

    def __init__(self, table: PredictionTable, folder: Path, keep: bool) -> None:
        super().__init__(table)
        self.folder, self.waiting = folder, list[Prediction | UnreadableFile]()
        for part in sorted(folder.glob("*.parquet")):
            if keep:
                self._read(part)
            else:
                part.unlink()

    def __enter__(self) -> "_ParquetTable":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._write_part()

    def _read(self, part: Path) -> None:
        import pyarrow.parquet

        try:
            rows = pyarrow.parquet.read_table(part).to_pylist()
        except pyarrow.ArrowInvalid:  # written in part
            part.unlink()
            return
        for row in rows:
            self._count_old(row)

    def write(self, outcomes: Sequence[Prediction | UnreadableFile]) -> None:
        self.waiting += outcomes
        if len(self.waiting) >= PART_ROWS:
            self._write_part()
        super().write(outcomes)

    def _write_part(self) -> None:
        import pyarrow.parquet

        if self.waiting:
            rows, parts = self.table.to_arrow(self.waiting), (self.folder / f"part-{k:06}.parquet" for k in count())
            part = next(part for part in parts if not part.exists())
            write_whole(part, lambda temporary: pyarrow.parquet.write_table(rows, temporary))
            self.waiting = []


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

"""Predictions as tables: CSV, JSON lines, Parquet. Written as they come, whole or not at all, in bounded memory."""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from capsella.errors import ArgumentError, CapsellaError, check_installed
from capsella.evaluation.prediction.certainty import Certainty, Value
from capsella.evaluation.prediction.predict import Broken, Prediction
from capsella.files import write_whole

_ROW_GROUP = 10_000  # rows that a Parquet file holds in memory while it is written


def check_table(out: Path, classes: Sequence[str], certainty: Certainty = Certainty()) -> None:
    """`write_table` can write `out`: to be asked before the predictions are made.

    Raises:
        ValueError: its ending is none of .csv, .jsonl and .parquet, or a class has the name of another column.
        CapsellaError: Parquet without pyarrow; `out` is a folder.
    """
    if out.suffix not in _WRITERS:
        raise ArgumentError("out", f"end in {', '.join(_WRITERS)}", str(out))
    if out.is_dir():
        raise CapsellaError(f"{out} is a folder; name a file in it")
    if out.suffix == ".parquet":
        check_installed("Parquet", "parquet", "pyarrow", otherwise=", or choose .csv or .jsonl")
    if out.suffix != ".jsonl":
        _check_columns(classes, certainty)


def _check_columns(classes: Sequence[str], certainty: Certainty) -> None:
    """No two columns have one name.

    Raises:
        ValueError: a class has the name of another column.
    """
    if taken := sorted({"file", "class", *certainty.columns} & set(classes)):
        raise ValueError(f"out: each column needs a name of its own, and a class is called {taken[0]!r}; choose .jsonl")


def write_table(
    predictions: Iterable[Prediction], classes: Sequence[str], out: Path, certainty: Certainty = Certainty()
) -> int:
    """Write a row a prediction, in the format that the ending of `out` names; returns the number of rows.

    .csv: columns file, class, the activation of every class, with six decimals, and those of `certainty` (the classes
    of a set with " | " between them); file names that are not UTF-8 are there with their own bytes. .jsonl: an object a
    line, {"file", "class", "activations": {class: …}, "probability", …}, in ASCII; bytes that are not UTF-8 are lone
    surrogates, as Python's `os.fsencode` takes them. .parquet: columns as in CSV, sets as lists; such bytes are a
    backslash, x and two digits.

    Args:
        predictions: as they come; no more than a few thousand are in memory.
        classes: names of the activations' columns.
        certainty: which columns come behind them.
        out: a file, written whole or not at all (an error half way leaves an older file as it was).

    Raises:
        ValueError, CapsellaError: from `check_table`; the disk is full.
    """
    check_table(out, classes, certainty)
    rows = 0

    def counted() -> Iterator[Prediction]:
        nonlocal rows
        for prediction in predictions:
            rows += 1
            yield prediction

    write_whole(out, lambda temporary: _WRITERS[out.suffix](counted(), classes, temporary, certainty))
    return rows


def print_table(predictions: Iterable[Prediction], classes: Sequence[str], certainty: Certainty = Certainty()) -> int:
    """Write CSV, as `write_table` does, to standard output, a row as soon as it is there; returns the rows.

    Raises:
        ValueError: a class has the name of another column.
    """
    _check_columns(classes, certainty)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # names that are not UTF-8 as the bytes they are
    return _write_csv_rows(predictions, classes, sys.stdout, certainty)


def write_broken(broken: Iterable[Broken], out: Path) -> None:
    """Write a CSV table of files that cannot be read: file, reason."""

    def write(temporary: Path) -> None:
        with _open(temporary) as file:
            file.write("file,reason\n")
            file.writelines(_csv_line([str(entry.file), entry.reason]) for entry in broken)

    write_whole(out, write)


def _open(path: Path) -> TextIO:
    return open(path, "w", newline="", encoding="utf-8", errors="surrogateescape")


def _csv_line(values: Sequence[str]) -> str:
    """Python's csv module quotes the line breaks in a value only where they are those of its own lines."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(values)
    return text.getvalue().removesuffix("\r\n") + "\n"


def _write_csv_rows(
    predictions: Iterable[Prediction], classes: Sequence[str], file: TextIO, certainty: Certainty
) -> int:
    rest = iter(predictions)
    first = list(islice(rest, 1))  # what is wrong with it is said before anything is written
    file.write(_csv_line(["file", "class", *classes, *certainty.columns]))
    rows = 0
    for prediction in chain(first, rest):
        activations = (f"{activation:.6f}" for activation in prediction.activations.tolist())
        more = (_in_words(value, classes) for value in certainty.values(prediction))
        file.write(_csv_line([str(prediction.file), prediction.class_name, *activations, *more]))
        rows += 1
    return rows


def _in_words(value: Value, classes: Sequence[str]) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.6f}"
        case _:
            return " | ".join(classes[k] for k in value)


def _write_csv(predictions: Iterable[Prediction], classes: Sequence[str], path: Path, certainty: Certainty) -> None:
    with _open(path) as file:
        _write_csv_rows(predictions, classes, file, certainty)


def _write_jsonl(predictions: Iterable[Prediction], classes: Sequence[str], path: Path, certainty: Certainty) -> None:
    with _open(path) as file:
        for prediction in predictions:
            row = {
                "file": str(prediction.file),
                "class": prediction.class_name,
                "activations": dict(zip(classes, _rounded(prediction), strict=True)),
                **_named(prediction, classes, certainty),
            }
            file.write(json.dumps(row) + "\n")


def _write_parquet(predictions: Iterable[Prediction], classes: Sequence[str], path: Path, certainty: Certainty) -> None:
    write_parquet(((str(row.file), row) for row in predictions), classes, path, certainty)


def write_parquet(
    outcomes: Iterable[tuple[str, Prediction | Broken]],
    classes: Sequence[str],
    path: Path,
    certainty: Certainty,
    *,
    with_broken: bool = False,
) -> None:
    """Write the columns of `write_table`, for each name with what became of it.

    with_broken: with a last column, broken: why a file could not be read. Such a row has a name and nothing else.
    """
    import pyarrow
    import pyarrow.parquet

    classes = [_readable(name) for name in classes]
    text, number = pyarrow.string(), pyarrow.float64()
    kinds = {
        "probability": number,
        "prediction_set": pyarrow.list_(text),
        "unsure": pyarrow.bool_(),
        "known": pyarrow.bool_(),
    }
    kinds |= {"why_unknown": text}
    more = [(name, kinds[name]) for name in certainty.columns]
    more += [("broken", text)] if with_broken else []
    schema = pyarrow.schema([("file", text), ("class", text), *((name, number) for name in classes), *more])
    waiting = iter(outcomes)
    with pyarrow.parquet.ParquetWriter(str(path), schema) as writer:
        while rows := list(islice(waiting, _ROW_GROUP)):
            values = zip(*(_record(name, row, classes, certainty, len(schema)) for name, row in rows), strict=True)
            columns = [pyarrow.array(column, field.type) for column, field in zip(values, schema, strict=True)]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


def _record(
    name: str, outcome: Prediction | Broken, classes: Sequence[str], certainty: Certainty, columns: int
) -> list[Any]:
    """A row of Parquet, as many columns as there are; what it does not say is None."""
    if isinstance(outcome, Broken):
        return [_readable(name), *[None] * (columns - 2), outcome.reason]
    certain = _named(outcome, classes, certainty).values()
    record = [_readable(name), _readable(outcome.class_name), *_rounded(outcome), *certain]
    return record + [None] * (columns - len(record))


def _readable(name: str) -> str:
    """Bytes that are not UTF-8 as a backslash, x and two digits."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _named(prediction: Prediction, classes: Sequence[str], certainty: Certainty) -> dict[str, Any]:
    """The columns of `certainty`, a set as the names of its classes."""
    return {
        name: [classes[k] for k in value] if isinstance(value, list) else value
        for name, value in zip(certainty.columns, certainty.values(prediction), strict=True)
    }


def _rounded(prediction: Prediction) -> list[float]:
    return [round(activation, 6) for activation in prediction.activations.tolist()]


_WRITERS: dict[str, Callable[[Iterable[Prediction], Sequence[str], Path, Certainty], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}

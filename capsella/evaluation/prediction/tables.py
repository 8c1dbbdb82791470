"""Predictions as tables: CSV, JSON lines, Parquet. Written as they come, whole or not at all, in bounded memory."""

import csv
import importlib.util
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from capsella.errors import CapsellaError
from capsella.evaluation.prediction.predict import Broken, Prediction
from capsella.files import write_whole

_ROW_GROUP = 10_000  # rows that a Parquet file holds in memory while it is written


def check_table(out: Path, classes: Sequence[str]) -> None:
    """`write_table` can write `out`: to be asked before the predictions are made.

    Raises:
        ValueError: its ending is none of .csv, .jsonl and .parquet, or a class has the name of another column.
        CapsellaError: Parquet without pyarrow; `out` is a folder.
    """
    if out.suffix not in _WRITERS:
        raise ValueError(f"out: must end in {', '.join(_WRITERS)}, got {str(out)!r}")
    if out.is_dir():
        raise CapsellaError(f"{out} is a folder; name a file in it")
    if out.suffix == ".parquet":
        if importlib.util.find_spec("pyarrow") is None:
            raise CapsellaError("Parquet needs pyarrow: pip install 'capsella[parquet]', or choose .csv or .jsonl")
        if taken := sorted({"file", "class"} & set(classes)):
            raise ValueError(f"out: a Parquet column has one name, but a class is called {taken[0]!r}; choose .jsonl")


def write_table(predictions: Iterable[Prediction], classes: Sequence[str], out: Path) -> int:
    """Write a row a prediction, in the format that the ending of `out` names; returns the number of rows.

    .csv: columns file, class, and the activation of every class, with six decimals; file names that are not UTF-8 are
    there with their own bytes. .jsonl: an object a line, {"file", "class", "activations": {class: …}}, in ASCII; bytes
    that are not UTF-8 are lone surrogates, as Python's `os.fsencode` takes them. .parquet: columns as in CSV; they
    are a backslash, x and two digits.

    Args:
        predictions: as they come; no more than a few thousand are in memory.
        classes: names of the activations' columns.
        out: a file, written whole or not at all (an error half way leaves an older file as it was).

    Raises:
        ValueError, CapsellaError: from `check_table`; the disk is full.
    """
    check_table(out, classes)
    rows = 0

    def counted() -> Iterator[Prediction]:
        nonlocal rows
        for prediction in predictions:
            rows += 1
            yield prediction

    write_whole(out, lambda temporary: _WRITERS[out.suffix](counted(), classes, temporary))
    return rows


def print_table(predictions: Iterable[Prediction], classes: Sequence[str]) -> int:
    """Write CSV, as `write_table` does, to standard output, a row as soon as it is there; returns the rows."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # names that are not UTF-8 as the bytes they are
    return _write_csv_rows(predictions, classes, sys.stdout)


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


def _write_csv_rows(predictions: Iterable[Prediction], classes: Sequence[str], file: TextIO) -> int:
    file.write(_csv_line(["file", "class", *classes]))
    rows = 0
    for prediction in predictions:
        activations = (f"{activation:.6f}" for activation in prediction.activations.tolist())
        file.write(_csv_line([str(prediction.file), prediction.class_name, *activations]))
        rows += 1
    return rows


def _write_csv(predictions: Iterable[Prediction], classes: Sequence[str], path: Path) -> None:
    with _open(path) as file:
        _write_csv_rows(predictions, classes, file)


def _write_jsonl(predictions: Iterable[Prediction], classes: Sequence[str], path: Path) -> None:
    with _open(path) as file:
        for prediction in predictions:
            activations = dict(zip(classes, _rounded(prediction), strict=True))
            row = {"file": str(prediction.file), "class": prediction.class_name, "activations": activations}
            file.write(json.dumps(row) + "\n")


def _write_parquet(predictions: Iterable[Prediction], classes: Sequence[str], path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    text, number = pyarrow.string(), pyarrow.float64()
    schema = pyarrow.schema([("file", text), ("class", text), *((name, number) for name in classes)])
    waiting = iter(predictions)
    with pyarrow.parquet.ParquetWriter(str(path), schema) as writer:
        while rows := list(islice(waiting, _ROW_GROUP)):
            names = [str(row.file).encode(errors="surrogateescape").decode(errors="backslashreplace") for row in rows]
            numbers: list[Any] = list(zip(*map(_rounded, rows), strict=True))
            values = [names, [row.class_name for row in rows], *numbers]
            columns = [pyarrow.array(column, field.type) for column, field in zip(values, schema, strict=True)]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


def _rounded(prediction: Prediction) -> list[float]:
    return [round(activation, 6) for activation in prediction.activations.tolist()]


_WRITERS: dict[str, Callable[[Iterable[Prediction], Sequence[str], Path], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}

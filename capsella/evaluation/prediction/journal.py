"""What became of each file of a long prediction, so that a process that is killed loses nothing and doubles nothing."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import torch

from capsella.errors import CapsellaError
from capsella.evaluation.prediction.names import Names
from capsella.evaluation.prediction.predict import Broken, Prediction
from capsella.files import is_disk_full, lock


class Journal:
    """A file of JSON lines: what is predicted, then every file with its class and activations, or with what is wrong.

    Lines are on the disk when `append` returns. A line that is not whole was being written when the process or the
    machine stopped: it is cut off, with all after it, and its file is predicted again.

    files: names that were done when it was opened; those since are not noted.
    predictions, broken: how many files could be read by now, and how many not. path: where it is.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], classes: Sequence[str], *, overwrite: bool) -> None:
        """Begin a journal, or continue the one at `path`.

        Args:
            path: of the file.
            about: what decides the outcomes, JSON-ready; an older journal must have the same.
            classes: of the model.
            overwrite: drop an older journal.

        Raises:
            CapsellaError: no file can be written there, or another process writes it; the older one is about something
                else, or no journal.
        """
        self.path, self.classes = path, tuple(classes)
        self.files = Names()
        self.predictions = self.broken = 0
        self.file = _open(path)
        try:
            lock(self.file, f"{path}: another capsella predict is writing it; wait for its end")
            if overwrite:
                self.file.truncate(0)
            self._continue(json.loads(json.dumps(about)))
        except BaseException:
            self.file.close()
            raise

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def append(self, outcomes: Sequence[Prediction | Broken]) -> None:
        """Write what became of some files.

        Raises:
            CapsellaError: the disk is full; what was written before is kept.
        """
        self._write([self._record(outcome) for outcome in outcomes])
        for outcome in outcomes:
            self._count(outcome)

    def outcomes(self) -> Iterator[Prediction | Broken]:
        """Everything, in the order in which it was written, read from the file as it is asked for."""
        with open(self.path, "rb") as file:
            next(file)
            for line in file:
                yield self._outcome(json.loads(line))

    def delete(self) -> None:
        """The table is written: nothing of the journal is needed any more."""
        self.path.unlink()

    def _continue(self, about: dict[str, Any]) -> None:
        """Read what is there up to the first line that is not whole, and go on behind it."""
        with open(self.path, "rb") as file:
            head = file.readline()
            if head.endswith(b"\n"):
                self._check(head, about)
                self.file.truncate(self._read(file))
                return
        self.file.truncate(0)  # new, or killed while it wrote the first line
        self._write([about])

    def _read(self, file: BinaryIO) -> int:
        """Take note of what is done; returns where the last whole line ends."""
        end = file.tell()
        for line in file:
            try:
                outcome = self._outcome(json.loads(line)) if line.endswith(b"\n") else None
            except (ValueError, KeyError, TypeError, IndexError):
                outcome = None
            if outcome is None:
                break
            end += len(line)
            self.files.add(str(outcome.file))
            self._count(outcome)
        return end

    def _count(self, outcome: Prediction | Broken) -> None:
        self.predictions += isinstance(outcome, Prediction)
        self.broken += isinstance(outcome, Broken)

    def _check(self, head: bytes, about: dict[str, Any]) -> None:
        anew = "or begin anew with --overwrite"
        try:
            older = json.loads(head)
            differing = [key for key in about if older.get(key) != about[key]]
        except (ValueError, AttributeError) as error:
            raise CapsellaError(f"{self.path} is no journal of capsella predict; choose another --out") from error
        if differing:
            was = older.get(differing[0])
            raise CapsellaError(f"{self.path} was begun with another {differing[0]}: {was!r}; take that, {anew}")

    def _write(self, records: Sequence[Mapping[str, Any]]) -> None:
        try:
            lines = memoryview(b"".join(json.dumps(record).encode() + b"\n" for record in records))
            while lines:
                lines = lines[self.file.write(lines) :]
            os.fsync(self.file.fileno())
        except OSError as error:
            if is_disk_full(error):
                raise CapsellaError(
                    f"no space left to write {self.path}; make room, then go on with --resume"
                ) from error
            raise

    def _record(self, outcome: Prediction | Broken) -> dict[str, Any]:
        if isinstance(outcome, Broken):
            return {"file": str(outcome.file), "broken": outcome.reason}
        activations = outcome.activations.tolist()
        record = {"file": str(outcome.file), "class": outcome.class_name, "activations": activations}
        return record if outcome.surprises is None else {**record, "surprises": outcome.surprises.tolist()}

    def _outcome(self, record: Mapping[str, Any]) -> Prediction | Broken:
        file = Path(record["file"])
        if "broken" in record:
            return Broken(file, str(record["broken"]))
        activations = torch.tensor(record["activations"])
        if len(activations) != len(self.classes):
            raise ValueError(f"{self.path}: {len(activations)} activations of {len(self.classes)} classes")
        surprises = torch.tensor(record["surprises"]) if "surprises" in record else None
        named = record["class"]  # a number in journals of before pairs
        return Prediction(file, named if isinstance(named, str) else self.classes[named], activations, surprises)


def _open(path: Path) -> FileIO:
    """Unbuffered: what a full disk refuses must not be tried again when the file is closed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab", buffering=0)
    except OSError as error:
        raise CapsellaError(
            f"{path.parent}: no table can be written there ({error.strerror or error}); choose another --out"
        ) from error

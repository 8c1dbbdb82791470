"""A sweep: a table of rows that are trained and validated but never tested."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.errors import pluralize
from capsella.evaluation import over_seeds
from capsella.experiments import Runner
from capsella.files import write_json
from capsella.papers.table_types import ErrorRow, table_values

COLUMNS = ("validation error %", "validation loss")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A table of validation errors. No test image is seen."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[ErrorRow, ...]
    family: str | None = None

    def on(self, source: str) -> "Sweep":
        """Return the sweep for images of another source."""
        return replace(self, rows=tuple(row.on(source) for row in self.rows))

    def path(self, folder: Path) -> Path:
        """Return the path of the JSON."""
        return folder / f"{folder.resolve().name}.json"

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Train the missing runs and write the table. A row that diverged has an infinite error."""
        runs = Runner(folder, console).validate(self.rows, seeds)
        rows = []
        for row, of_row in zip(self.rows, runs, strict=True):
            errors, losses = [run.error for run in of_row.values()], [run.loss for run in of_row.values()]
            cells = [*row.label, over_seeds(errors), f"{sum(losses) / len(losses):.4f}"]
            rows.append({"cells": cells, "validation_error_percent": errors, "validation_loss": losses})
        measured = f"Error on validation images; {pluralize(len(seeds), 'seed')}."
        values = table_values(self, measured, command, COLUMNS, rows)
        write_json(self.path(folder), values)
        return values

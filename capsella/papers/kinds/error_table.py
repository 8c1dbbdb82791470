"""A published table of test errors as a grid of runs: trained where missing, resumed where interrupted."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.files import write_json
from capsella.grid import Results, Row, evaluated_again
from capsella.models import ImageClassifier
from capsella.papers.kinds.published import (
    NOT_RUN,
    FolderTable,
    hardware_of,
    mean_cell,
    seeds_phrase,
    table_values,
)

COPIES = {"smallnorb-jpeg": "smallnorb", "cifar10-jpeg": "cifar10"}
"""Sources of all images of another one, which alone may stand beside what was published on that."""
MEASURED = ("paper %", "ours %", "gap", "train loss", "validation loss", "images/s")
"""The columns that every table of errors has, behind its own."""


@dataclass(frozen=True, kw_only=True)
class ErrorRow(Row):
    """One row of a table.

    label: what the row says, a cell for each of the table's own columns. paper: the published test error in per cent,
    or None where the paper has no such row. paper_sd: its standard deviation, where the paper has it.
    """

    label: tuple[str, ...]
    paper: float | None
    paper_sd: float | None = None


@dataclass(frozen=True)
class AgainRow:
    """A row without a training of its own: the networks of another one, tested in another way.

    slug: name of the JSON in the other row's runs. of: the other row's slug. label, paper: as for `ErrorRow`.
    change: from a trained network to the one that is tested.
    """

    slug: str
    of: str
    label: tuple[str, ...]
    change: Callable[[ImageClassifier], ImageClassifier]
    paper: float | None


@dataclass(frozen=True)
class ErrorTable(FolderTable):
    """A published table of test errors, each row a recipe of its own.

    title: paper and number. note: what a reader of the numbers must know. columns: heads of the labels.
    again: rows that stand behind those whose networks they test again.
    mark: what must stand behind every number of ours (`marked_cells`).
    """

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[ErrorRow, ...]
    again: tuple[AgainRow, ...] = ()
    mark: str = ""

    def mark_of(self, slug: str) -> str:
        """As `Published.mark_of`."""
        return self.mark

    def on(self, source: str) -> "ErrorTable":
        """The same table on the images of another source, as on the copy of a set at hand.

        Where the rows have different sources, several may be named, with commas between them, and each takes the place
        of the one whose name it continues: smallnorb-jpeg that of smallnorb. A row on images that are no copy of the
        paper's has no published number, and says so in its column "data", where the table has one.

        Raises:
            ValueError: a name continues none of the rows' sources.
        """
        instead = _instead({row.recipe.data.source for row in self.rows}, source.split(","))
        rows = [self._on(row, instead[row.recipe.data.source]) for row in self.rows]
        published = {row.slug for row in rows if row.paper is not None}
        again = [row if row.of in published else dataclasses.replace(row, paper=None) for row in self.again]
        return dataclasses.replace(self, rows=tuple(rows), again=tuple(again))

    def _on(self, row: ErrorRow, source: str) -> ErrorRow:
        """A row on another source."""
        data, moved = row.recipe.data, row.on(source)
        if source == data.source or COPIES.get(source) == data.source:
            return moved
        name = f"pairs of {source}" if data.is_paired else source
        label = [name if head == "data" else cell for head, cell in zip(self.columns, row.label, strict=True)]
        return dataclasses.replace(moved, label=tuple(label), paper=None, paper_sd=None)

    def trainings(self) -> tuple[ErrorRow, ...]:
        """As `Published.trainings`."""
        return self.rows

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`; the JSON has errors by seed, and each run's result in full."""
        found = [run for runs in results.values() for run in runs]
        tested = list(dict.fromkeys(f"{run['data']}, {run['test']['images']} images" for run in found))
        values = table_values(
            title=self.title,
            note=self.note,
            measured=f"Test error on {' and '.join(tested)}; {seeds_phrase(results)}; {hardware_of(results)}.",
            command=command,
            folder=folder,
            labels=self.columns,
            columns=MEASURED,
            rows=[values for row in self.rows for values in self._with_again(row, results.get(row.slug, []), folder)],
            mark=self.mark,
        )
        write_json(self.path(folder), values)
        return values

    def _with_again(self, row: ErrorRow, runs: list[dict[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
        """The values of a row, and of those that test its networks again."""
        yield _row_values(row, runs)
        for again in self.again:
            if again.of == row.slug:
                tests = [
                    evaluated_again(row.folder(folder, run["seed"]), again.slug, row.recipe.data, again.change)
                    for run in runs
                ]
                yield _row_values(again, [{**run, "test": test} for run, test in zip(runs, tests, strict=True)])


def _instead(usual: set[str], wanted: list[str]) -> dict[str, str]:
    """Each usual source's new one: the wanted name that continues it, or itself."""
    if len(usual) == len(wanted) == 1:  # a table on one source has it replaced, whatever the other is called
        return dict.fromkeys(usual, wanted[0])
    instead = {name: name for name in usual}
    for name in wanted:
        continued = [one for one in usual if name.startswith(one)]
        if not continued:
            raise ValueError(f"data: each source must continue the name of one of {sorted(usual)}, got {name!r}")
        instead[max(continued, key=len)] = name
    return instead


def _row_values(row: ErrorRow | AgainRow, runs: list[dict[str, Any]]) -> dict[str, Any]:
    sd = row.paper_sd if isinstance(row, ErrorRow) else None
    return {
        "cells": [*row.label, *error_cells(row.paper, runs, sd)],
        "slugs": [row.of if isinstance(row, AgainRow) else row.slug],
        "label": list(row.label),
        "paper_error_percent": row.paper,
        "paper_standard_deviation": sd,
        "runs": runs,
    }


def error_cells(paper: float | None, runs: list[dict[str, Any]], paper_sd: float | None = None) -> list[str]:
    """What `MEASURED` names, from the results of a row's runs: mean ± sd where there are seeds."""
    printed = "–" if paper is None else f"{paper:g}" + (f" ± {paper_sd:g}" if paper_sd is not None else "")
    if not runs:
        return [printed, NOT_RUN, *("–" for _ in MEASURED[2:])]
    errors = [run["test"]["error_percent"] for run in runs]
    mean = sum(errors) / len(errors)
    best = [run["training"]["best"] for run in runs]
    return [
        printed,
        mean_cell(errors),
        "–" if paper is None else f"{mean - paper:+.2f}",
        *(f"{sum(epoch[name] for epoch in best) / len(best):.4f}" for name in ("train_loss", "validation_loss")),
        f"{sum(run['training']['images_per_second'] for run in runs) / len(errors):.0f}",
    ]

"""A published table of test errors as a grid of runs: trained where missing, resumed where interrupted."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.data import DataOptions, load_data
from capsella.files import write_json
from capsella.grid.run import evaluated_again, result_of
from capsella.models import ImageClassifier
from capsella.papers.kinds.table import check_seeds, hardware_of, mean_cell, seeds_phrase, table_values
from capsella.training import Recipe

MEASURED = ("paper %", "ours %", "gap", "train loss", "validation loss", "images/s")
"""The columns that every table of errors has, behind its own."""


@dataclass(frozen=True)
class Budget:
    """A fixed, short training, the same for every row: it compares the rows with each other, not with the paper.

    per_class, validation_per_class, test_per_class: images a class, to train on, to choose the epoch by, to test on.
    """

    per_class: int
    validation_per_class: int
    test_per_class: int
    epochs: int
    batch_size: int

    def __str__(self) -> str:
        return (
            f"{self.per_class} training, {self.validation_per_class} validation and {self.test_per_class} test images "
            f"a class, {self.epochs} epochs, batches of {self.batch_size}"
        )

    def limit(self, recipe: Recipe) -> Recipe:
        """The recipe within this budget."""
        data = dataclasses.replace(
            recipe.data,
            per_class=self.per_class,
            validation_per_class=self.validation_per_class,
            test_per_class=self.test_per_class,
        )
        return dataclasses.replace(recipe, data=data, epochs=self.epochs, batch_size=self.batch_size)


@dataclass(frozen=True)
class PairBudget:
    """As `Budget`, for images that are overlaid in pairs, of which there is no end."""

    epoch_pairs: int
    validation_pairs: int
    test_pairs: int
    epochs: int
    batch_size: int

    def __str__(self) -> str:
        return (
            f"{self.epochs} × {self.epoch_pairs} training, {self.validation_pairs} validation and {self.test_pairs} "
            f"test pairs, batches of {self.batch_size}"
        )

    def limit(self, recipe: Recipe) -> Recipe:
        """The recipe within this budget."""
        data = dataclasses.replace(recipe.data, validation_pairs=self.validation_pairs, test_pairs=self.test_pairs)
        return dataclasses.replace(
            recipe, data=data, epochs=self.epochs, epoch_images=self.epoch_pairs, batch_size=self.batch_size
        )


@dataclass(frozen=True)
class Row:
    """One row of a table.

    slug: name of its runs' folders. label: what the row says, a cell for each of the table's own columns.
    recipe_name, recipe: the registered recipe that it departs from, and what it trains.
    paper: the published test error in per cent, or None where the paper has no such row. paper_sd: its standard
    deviation, where the paper has it.
    """

    slug: str
    label: tuple[str, ...]
    recipe_name: str
    recipe: Recipe
    paper: float | None
    paper_sd: float | None = None


@dataclass(frozen=True)
class AgainRow:
    """A row without a training of its own: the networks of another one, tested in another way.

    slug: name of the JSON in the other row's runs. of: the other row's slug. label, paper: as for `Row`.
    change: from a trained network to the one that is tested.
    """

    slug: str
    of: str
    label: tuple[str, ...]
    change: Callable[[ImageClassifier], ImageClassifier]
    paper: float | None


@dataclass(frozen=True)
class ErrorTable:
    """A published table of test errors, each row a recipe of its own.

    title: paper and number. note: what a reader of the numbers must know. columns: heads of the labels.
    again: rows that stand behind those whose networks they test again.
    family: the folder of runs that it shares, if any (`PublishedTable`).
    """

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    again: tuple[AgainRow, ...] = ()
    family: str | None = None

    def on(self, source: str) -> "ErrorTable":
        """The same table on the images of another source, as on the copy of a set at hand.

        Where the rows have different sources, several may be named, with commas between them, and each takes the place
        of the one whose name it continues: smallnorb-jpeg that of smallnorb. A row on images of another name has no
        published number, and says so in its column "data", where the table has one.

        Raises:
            ValueError: a name continues none of the rows' sources.
        """
        rows = [self._relabelled(row, old) for row, old in zip(on_source(self.rows, source), self.rows, strict=True)]
        published = {row.slug for row in rows if row.paper is not None}
        again = [row if row.of in published else dataclasses.replace(row, paper=None) for row in self.again]
        return dataclasses.replace(self, rows=tuple(rows), again=tuple(again))

    def _relabelled(self, row: Row, old: Row) -> Row:
        """A row on another source than the `old` one, which the paper knows."""
        source = _source(row.recipe.data)
        if source.startswith(_source(old.recipe.data)):
            return row
        data = f"pairs of {source}" if row.recipe.data.is_paired else source
        label = [data if head == "data" else cell for head, cell in zip(self.columns, row.label, strict=True)]
        return dataclasses.replace(row, label=tuple(label), paper=None, paper_sd=None)

    def path(self, folder: Path) -> Path:
        """`folder`/`folder's name`.json."""
        return folder / f"{folder.name}.json"

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Run what is missing and write `path(folder)`: errors by seed, and each run's result in full.

        Args:
            folder: of the table; each run has a folder of its own in it, and one that is finished is read.
            seeds: of the runs of each row.
            command: that makes this table, to be kept beside the numbers.
            console: for progress.

        Raises:
            ValueError: no seed, or one twice.
            CapsellaError: a run of another recipe is in the folder.
        """
        runs = self._runs(folder, seeds, console)
        tested = list(dict.fromkeys(f"{run['data']}, {run['test']['images']} images" for run, *_ in runs.values()))
        values = table_values(
            title=self.title,
            note=self.note,
            measured=f"Test error on {' and '.join(tested)}; {seeds_phrase(len(seeds))}; {hardware_of(runs)}.",
            command=command,
            labels=self.columns,
            columns=MEASURED,
            rows=[values for row in self.rows for values in self._with_again(row, runs[row.slug], folder)],
        )
        write_json(self.path(folder), values)
        return values

    def _with_again(self, row: Row, runs: list[dict[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
        """The values of a row, and of those that test its networks again."""
        yield _row_values(row, runs)
        for again in self.again:
            if again.of == row.slug:
                tests = [
                    evaluated_again(_place(folder, row, run["seed"]), again.slug, row.recipe.data, again.change)
                    for run in runs
                ]
                yield _row_values(again, [{**run, "test": test} for run, test in zip(runs, tests, strict=True)])

    def _runs(self, folder: Path, seeds: Sequence[int], console: Console) -> dict[str, list[dict[str, Any]]]:
        """Results by row. Seeds go round the rows: after the first, every row has a number."""
        check_seeds(seeds)
        runs: dict[str, list[dict[str, Any]]] = {row.slug: [] for row in self.rows}
        plan = [(seed, row) for seed in seeds for row in self.rows]
        self._check_sources([row for seed, row in plan if not (_place(folder, row, seed) / "result.json").exists()])
        for number, (seed, row) in enumerate(plan, start=1):
            console.print(f"run {number} of {len(plan)}: {row.slug}, seed {seed}")
            recipe = dataclasses.replace(row.recipe, seed=seed)
            runs[row.slug].append(result_of(recipe, _place(folder, row, seed), row.recipe_name, console))
        return runs

    def _check_sources(self, rows: Sequence[Row]) -> None:
        """Load the images of every source: one that is missing shows before the hours of the rows before it.

        A single source is not loaded twice, for the first training finds what is wrong with it.
        """
        sources = {_source(row.recipe.data): row.recipe.data for row in rows}
        for data in sources.values() if len(sources) > 1 else ():
            load_data(data)


def _place(folder: Path, row: Row, seed: int) -> Path:
    return folder / f"{row.slug}-seed{seed}"


def on_source(rows: Sequence[Row], source: str) -> list[Row]:
    """The rows on other sources: see `ErrorTable.on`. Of pairs, the source of their images.

    Raises:
        ValueError: a name continues none of the rows' sources.
    """
    usual, wanted = {_source(row.recipe.data) for row in rows}, source.split(",")
    # A table on one source has it replaced, whatever the other is called.
    instead = dict.fromkeys(usual, wanted[0]) if len(usual) == len(wanted) == 1 else {}
    for name in wanted if len(usual) > 1 or len(wanted) > 1 else ():
        continued = [one for one in usual if name.startswith(one)]
        if not continued:
            raise ValueError(f"data: each source must continue the name of one of {sorted(usual)}, got {name!r}")
        instead[max(continued, key=len)] = name
    return [_with_source(row, instead.get(_source(row.recipe.data))) for row in rows]


def _source(data: DataOptions) -> str:
    return data.single().name if data.is_paired else data.name


def _with_source(row: Row, source: str | None) -> Row:
    if source is None:
        return row
    data = row.recipe.data
    other = (
        dataclasses.replace(data, name="multi", of=source) if data.is_paired else dataclasses.replace(data, name=source)
    )
    return dataclasses.replace(row, recipe=dataclasses.replace(row.recipe, data=other))


def _row_values(row: Row | AgainRow, runs: list[dict[str, Any]]) -> dict[str, Any]:
    sd = row.paper_sd if isinstance(row, Row) else None
    return {
        "cells": [*row.label, *error_cells(row.paper, runs, sd)],
        "label": list(row.label),
        "paper_error_percent": row.paper,
        "paper_standard_deviation": sd,
        "runs": runs,
    }


def error_cells(paper: float | None, runs: list[dict[str, Any]], paper_sd: float | None = None) -> list[str]:
    """What `MEASURED` names, from the results of a row's runs: mean ± sd where there are seeds."""
    errors = [run["test"]["error_percent"] for run in runs]
    mean = sum(errors) / len(errors)
    best = [run["training"]["best"] for run in runs]
    return [
        "–" if paper is None else f"{paper:g}" + (f" ± {paper_sd:g}" if paper_sd is not None else ""),
        mean_cell(errors),
        "–" if paper is None else f"{mean - paper:+.2f}",
        *(f"{sum(epoch[name] for epoch in best) / len(best):.4f}" for name in ("train_loss", "validation_loss")),
        f"{sum(run['training']['images_per_second'] for run in runs) / len(errors):.0f}",
    ]

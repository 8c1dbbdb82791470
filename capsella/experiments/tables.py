"""A published table as a grid of runs: trained where missing, resumed where interrupted, printed beside the paper."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from capsella.experiments.runs import result_of
from capsella.files import write_json
from capsella.training import Recipe
from capsella.training.spread import Spread

BudgetName = Literal["small", "full"]
MEASURED = ("paper %", "ours %", "gap", "train loss", "validation loss", "images/s")
"""The columns that every table has, behind its own."""


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
class Row:
    """One row of a table.

    slug: name of its runs' folders. label: what the row says, a cell for each of the table's own columns.
    recipe_name, recipe: the registered recipe that it departs from, and what it trains.
    paper: the published test error in per cent, or None where the paper has no such row.
    """

    slug: str
    label: tuple[str, ...]
    recipe_name: str
    recipe: Recipe
    paper: float | None


@dataclass(frozen=True)
class PaperTable:
    """A published table.

    title: paper and number. note: what a reader of the numbers must know. columns: heads of the labels.
    """

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def on(self, source: str) -> "PaperTable":
        """The same table on the images of another source, as on the copy of a set at hand."""
        rows = [
            dataclasses.replace(
                row, recipe=dataclasses.replace(row.recipe, data=dataclasses.replace(row.recipe.data, name=source))
            )
            for row in self.rows
        ]
        return dataclasses.replace(self, rows=tuple(rows))


def run_table(table: PaperTable, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
    """Run what is missing and write `folder`/`folder's name`.json: each row's errors by seed, and its results in full.

    Seeds go round the rows: after the first, every row has a number.

    Args:
        table: what to run.
        folder: of the table; each run has a folder of its own in it, and one that is finished is read.
        seeds: of the runs of each row.
        command: that makes this table, to be kept beside the numbers.
        console: for progress.

    Raises:
        ValueError: no seed, or one twice.
        CapsellaError: a run of another recipe is in the folder.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds: must be at least one, and each only once, got {tuple(seeds)}")
    runs: dict[str, dict[int, dict[str, Any]]] = {row.slug: {} for row in table.rows}
    plan = [(seed, row) for seed in seeds for row in table.rows]
    for number, (seed, row) in enumerate(plan, start=1):
        console.print(f"run {number} of {len(plan)}: {row.slug}, seed {seed}")
        recipe = dataclasses.replace(row.recipe, seed=seed)
        runs[row.slug][seed] = result_of(recipe, folder / f"{row.slug}-seed{seed}", row.recipe_name, console)
    values = {
        "title": table.title,
        "note": table.note,
        "data": runs[table.rows[0].slug][seeds[0]]["data"],
        "command": command,
        "columns": list(table.columns),
        "rows": [
            {"label": list(row.label), "paper_error_percent": row.paper, "runs": list(runs[row.slug].values())}
            for row in table.rows
        ],
    }
    write_json(folder / f"{folder.name}.json", values)
    return values


def table_cells(row: dict[str, Any]) -> list[str]:
    """One row of a table's JSON as text: its label, then what `MEASURED` names, mean ± sd where there are seeds."""
    errors = [run["test"]["error_percent"] for run in row["runs"]]
    mean, paper = sum(errors) / len(errors), row["paper_error_percent"]
    best = [run["training"]["best"] for run in row["runs"]]
    return [
        *row["label"],
        "–" if paper is None else f"{paper:.1f}",
        str(Spread.of(errors)) if len(errors) > 1 else f"{mean:.2f}",
        "–" if paper is None else f"{mean - paper:+.1f}",
        *(f"{sum(epoch[name] for epoch in best) / len(best):.4f}" for name in ("train_loss", "validation_loss")),
        f"{sum(run['training']['images_per_second'] for run in row['runs']) / len(errors):.0f}",
    ]


def draw_table(values: dict[str, Any]) -> Table:
    """A table's JSON for a terminal."""
    title = f"{values['title']}: test error on {values['data']}"
    table = Table(*values["columns"], *MEASURED, title=title, caption=values["note"])
    for column in table.columns:
        column.overflow = "fold"  # a number cut short is no number
    for row in values["rows"]:
        table.add_row(*table_cells(row))
    return table

"""A published table as a grid of runs: trained where missing, resumed where interrupted, printed beside the paper."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from capsella.experiments.runs import result_of
from capsella.files import write_json
from capsella.training import Recipe
from capsella.training.spread import Spread


@dataclass(frozen=True)
class Row:
    """One row of a table.

    slug: name of its runs' folders. label: what the row says, a cell for each of the table's own columns.
    recipe: the registered recipe's name, and the recipe itself. paper: the published test error in per cent, or None.
    """

    slug: str
    label: tuple[str, ...]
    recipe_name: str
    recipe: Recipe
    paper: float | None


@dataclass(frozen=True)
class PaperTable:
    """A table: its name, what it says, the columns of its labels, and its rows."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def run_table(table: PaperTable, folder: Path, seeds: Sequence[int], console: Console) -> dict[str, Any]:
    """Run what is missing and return the table, JSON-ready: each row's errors by seed, and its results in full.

    Seeds go round the rows: after the first, every row has a number.
    """
    results: dict[str, dict[int, dict[str, Any]]] = {row.slug: {} for row in table.rows}
    total = len(seeds) * len(table.rows)
    for seed in seeds:
        for row in table.rows:
            done = sum(len(by_seed) for by_seed in results.values())
            console.print(f"{table.name}: run {done + 1} of {total}, {row.slug}, seed {seed}")
            recipe = dataclasses.replace(row.recipe, seed=seed)
            results[row.slug][seed] = result_of(recipe, folder / f"{row.slug}-seed{seed}", row.recipe_name, console)
    rows = [_row_result(row, results[row.slug]) for row in table.rows]
    values = {"table": table.name, "title": table.title, "columns": list(table.columns), "rows": rows}
    write_json(folder / f"{table.name}.json", values)
    return values


def _row_result(row: Row, by_seed: dict[int, dict[str, Any]]) -> dict[str, Any]:
    errors = {str(seed): result["test"]["error_percent"] for seed, result in by_seed.items()}
    return {
        "label": list(row.label),
        "paper_error_percent": row.paper,
        "error_percent": errors,
        "runs": list(by_seed.values()),
    }


def draw_table(values: dict[str, Any]) -> Table:
    """For a terminal: the row's label, the paper's error, ours with its spread, and the gap."""
    table = Table(*values["columns"], "paper %", "ours %", "gap", "images/s", title=values["title"])
    for row in values["rows"]:
        errors = list(row["error_percent"].values())
        mean = sum(errors) / len(errors)
        paper = row["paper_error_percent"]
        speeds = [run["training"]["images_per_second"] for run in row["runs"]]
        table.add_row(
            *row["label"],
            "–" if paper is None else f"{paper:.1f}",
            str(Spread.of(errors)) if len(errors) > 1 else f"{mean:.2f}",
            "–" if paper is None else f"{mean - paper:+.1f}",
            f"{sum(speeds) / len(speeds):.0f}",
        )
    return table

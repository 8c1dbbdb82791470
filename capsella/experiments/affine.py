"""A table of networks that were stopped at one error and then met images under changes they had never seen."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.data import load_data
from capsella.evaluation import evaluate
from capsella.experiments.runs import result_of
from capsella.experiments.tables import check_seeds, hardware, table_values
from capsella.files import write_json
from capsella.training import Recipe, load_run
from capsella.training.spread import Spread

PLAIN = "mnist40"
"""The source whose test images are plain: MNIST's, placed at random."""
MEASURED = ("stopped", "plain, paper %", "plain, ours %", "affine, paper %", "affine, ours %", "gap")
NOTE = (
    "Both networks stop at the first epoch whose validation error is {stop:g} % or less; the paper stops at 0.77 and "
    "0.78 % on its plain test. The last row is the CNN's error less CapsNet's, seed by seed."
)


@dataclass(frozen=True)
class AffineRow:
    """One network.

    slug: name of its runs' folders. label: what the row says. recipe_name, recipe: the registered recipe, and what it
    trains. plain, affine: the published errors in per cent.
    """

    slug: str
    label: str
    recipe_name: str
    recipe: Recipe
    plain: float
    affine: float


@dataclass(frozen=True)
class AffineTable:
    """Errors on plain and on changed test images, of networks of one training set, and how far they are apart.

    title: paper and section. rows: two networks, the second to be compared with the first.
    family: the folder of runs that it shares, if any (`PublishedTable`).
    """

    title: str
    rows: tuple[AffineRow, ...]
    columns: tuple[str, ...] = ("network",)
    family: str | None = None

    def on(self, source: str) -> "AffineTable":
        """The same table with the test images of another source: affnist-like, where affNIST's are not at hand."""
        rows = []
        for row in self.rows:
            data = dataclasses.replace(row.recipe.data, name=source)
            rows.append(dataclasses.replace(row, recipe=dataclasses.replace(row.recipe, data=data)))
        return dataclasses.replace(self, rows=tuple(rows))

    def path(self, folder: Path) -> Path:
        """`folder`/`folder's name`.json."""
        return folder / f"{folder.name}.json"

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Run what is missing and write `path(folder)`; args and errors as `ErrorTable.run`."""
        check_seeds(seeds)
        runs: dict[str, list[dict[str, Any]]] = {row.slug: [] for row in self.rows}
        plan = [(seed, row) for seed in seeds for row in self.rows]
        for number, (seed, row) in enumerate(plan, start=1):
            console.print(f"run {number} of {len(plan)}: {row.slug}, seed {seed}")
            recipe = dataclasses.replace(row.recipe, seed=seed)
            place = folder / f"{row.slug}-seed{seed}"
            result = result_of(recipe, place, row.recipe_name, console)
            runs[row.slug].append({**result, "plain": _plain(recipe, place)})
        first = runs[self.rows[0].slug][0]
        values = table_values(
            title=self.title,
            note=NOTE.format(stop=self.rows[0].recipe.stop_at_error),
            measured=f"Plain: {first['plain']['data']}, {first['plain']['images']} images; affine: {first['data']}, "
            f"{first['test']['images']} images; mean ± standard deviation over {len(seeds)} seed(s); "
            f"{hardware(first['environment'])}.",
            command=command,
            labels=self.columns,
            columns=MEASURED,
            rows=[*(_row_values(row, runs[row.slug]) for row in self.rows), self._difference(runs)],
        )
        write_json(self.path(folder), values)
        return values

    def _difference(self, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
        """The second network's errors less the first's, of runs of the same seed."""
        one, other = self.rows
        errors = {
            kind: [
                theirs[kind]["error_percent"] - ours[kind]["error_percent"]
                for ours, theirs in zip(runs[one.slug], runs[other.slug], strict=True)
            ]
            for kind in ("plain", "test")
        }
        paper = {"plain": other.plain - one.plain, "test": other.affine - one.affine}
        cells = [f"{other.label} − {one.label}", "", f"{paper['plain']:+.2f}", _signed(errors["plain"])]
        cells += [f"{paper['test']:+.1f}", _signed(errors["test"])]
        return {
            "cells": [*cells, f"{sum(errors['test']) / len(errors['test']) - paper['test']:+.1f}"],
            "paper": paper,
            "by_seed": errors,
        }


def _plain(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The error of a run on the plain test images: read where it is there."""
    path = folder / "plain.json"
    if not path.exists():
        splits = load_data(dataclasses.replace(recipe.data, name=PLAIN))
        evaluation = evaluate(load_run(folder).model, splits.test)
        facts = {"images": len(evaluation.labels), "errors": evaluation.errors, "error_percent": evaluation.error}
        write_json(path, {"data": splits.name, **facts})
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def _row_values(row: AffineRow, runs: list[dict[str, Any]]) -> dict[str, Any]:
    plain, affine = ([run[kind]["error_percent"] for run in runs] for kind in ("plain", "test"))
    stops = [run["training"]["stopped"] for run in runs]
    return {
        "cells": [
            row.label,
            ", ".join(f"epoch {stop['epoch']}" if stop["reached"] else "not reached" for stop in stops),
            f"{row.plain:g}",
            _mean(plain),
            f"{row.affine:g}",
            _mean(affine),
            f"{sum(affine) / len(affine) - row.affine:+.1f}",
        ],
        "paper": {"plain": row.plain, "test": row.affine},
        "runs": runs,
    }


def _mean(errors: list[float]) -> str:
    return str(Spread.of(errors)) if len(errors) > 1 else f"{errors[0]:.2f}"


def _signed(differences: list[float]) -> str:
    return f"{'+' if sum(differences) >= 0 else ''}{_mean(differences)}"

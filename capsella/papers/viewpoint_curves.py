"""Novel viewpoints, tested on hundreds of objects: error on novel against familiar viewpoints over the whole training.

Four networks share their stem, loss and training: EM routing, the same with uniform couplings, and two CNNs. Networks
differ in how fast they learn, so their errors on novel viewpoints are compared at equal error on familiar ones, by
analysis of covariance over all checkpoints. The plan (results/plans.md, D) preceded the first run.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from jaxtyping import Float
from rich.console import Console

from capsella.data import DataOptions, Splits, load_data, load_once
from capsella.errors import ArgumentError
from capsella.evaluation import Interval, VarianceComponent, evaluate, over_seeds
from capsella.experiments import CorrectnessTable, Row, check_seeds, evaluate_run, reevaluate
from capsella.papers.budget import Budget, BudgetName, Budgets
from capsella.papers.routing_benchmark.datasets import CNNS, BenchmarkDataset, rows_on
from capsella.papers.table_types import Published, gain_cells, interval_cell, measured_text, with_test
from capsella.training import Recipe, RunFolder, resume, train

SMALL = Budget(
    epochs=3, epoch_images=320, batch_size=32, validation_per_class=4, test_per_class=60, cosine=True, ema=0.9
)
LONG = Budget(epochs=8, epoch_images=2_000, batch_size=32, validation_per_class=20, cosine=True, ema=0.99)
COMPARED_BELOW = 30.0  # only checkpoints with a lower familiar error (%) count; above, novel error is not linear in it
EM = "EM"
NETWORKS = {"em": EM, "em, uniform": "EM, uniform couplings", **{name: name for name in CNNS}}  # by label of the row
QUIET = Console(quiet=True)
COLUMNS = (
    *("familiar, ours %", "novel, ours %", "EM gains, novel, points", "EM gains at equal familiar error, points"),
    *("p", "detects, points"),
)
By = Literal["azimuth", "elevation"]
SOURCES: Mapping[str, tuple[By, ...]] = {
    "toys-5": ("azimuth", "elevation"),
    "toys-20": ("azimuth", "elevation"),
    "smallnorb-jpeg-poses": ("elevation",),
}


@dataclass(frozen=True, kw_only=True)
class ViewpointCurves(Published):
    """The table of novel viewpoints: a row per network, for novel azimuths and for novel elevations."""

    budget: BudgetName
    source: str = "toys-5"
    title: str = "Novel viewpoints at equal error on familiar ones"
    note: str = (
        f"Errors of the last epoch. Gains of {EM} routing have a 95 % interval over objects and seeds. At equal "
        "familiar error: analysis of covariance over the checkpoints with a familiar error below "
        f"{COMPARED_BELOW:g} %, one slope for both networks."
    )
    columns: tuple[str, ...] = ("viewpoints by", "network")

    def on(self, source: str) -> Self:
        """Return the table for other objects.

        Raises:
            ArgumentError: not one of `SOURCES`.
        """
        if source not in SOURCES:
            raise ArgumentError("data", f"be one of {', '.join(SOURCES)}", source)
        return replace(self, source=source)

    @property
    def recipe_name(self) -> str:
        """The registered recipe that all rows are based on."""
        return "routings-toys" if "toys" in self.source else "routings-elevation"

    def recipes(self, by: By) -> dict[str, Recipe]:
        """Return the recipe of each network."""
        dataset = BenchmarkDataset("", self.recipe_name, (self.source,), Budgets(SMALL, LONG))
        rows = rows_on(dataset, self.source, "small" if self.budget == "small" else "medium")
        return {
            NETWORKS[row.label[1]]: replace(row.recipe, data=row.recipe.data.replace(viewpoints=by))
            for row in rows
            if row.label[1] in NETWORKS
        }

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Train and test the missing runs, azimuths first, and write the table after every seed."""
        check_seeds(seeds)
        curves: dict[By, dict[str, list[_Curve]]] = {}
        values: dict[str, Any] = {}
        for by in SOURCES[self.source]:
            curves[by] = {name: [] for name in self.recipes(by)}
            for seed in seeds:
                for name, recipe in self.recipes(by).items():
                    slug = f"{by}-{name.lower().replace(', ', '-').replace(' ', '-')}"
                    row = Row(slug=slug, recipe_name=self.recipe_name, recipe=recipe)
                    curves[by][name].append(_curve(row, seed, folder, console))
                rows = [row for which, of_which in curves.items() for row in _rows(which, of_which)]
                measured = measured_text("Test error", {str(n): row["runs"] for n, row in enumerate(rows)})
                values = self.write(folder, command, measured, COLUMNS, rows)
        return values


class _Curve(NamedTuple):
    """A run. points: (familiar, novel) error in per cent after each epoch. result, novel: its JSONs of these names."""

    points: Float[np.ndarray, "epochs 2"]
    result: Mapping[str, Any]
    novel: Mapping[str, Any]


def _curve(row: Row, seed: int, folder: Path, console: Console) -> _Curve:
    """Train a run and test it after every epoch. An interrupted run starts anew, as it takes only a minute."""
    run_folder, recipe = row.folder(folder, seed), replace(row.recipe, seed=seed)
    files = RunFolder(run_folder)
    if not (run_folder / "curve.json").exists():
        shutil.rmtree(run_folder, ignore_errors=True)
        console.print(f"{row.slug}, seed {seed}", markup=False)
        familiar, novel = load_once(recipe.data), _novel(recipe.data)
        curve = []
        for epoch in range(1, recipe.epochs + 1):
            run = (
                train(recipe, run_folder, name=row.recipe_name, console=QUIET, until=1, splits=familiar)
                if epoch == 1
                else resume(run_folder, console=QUIET, until=epoch, splits=familiar)
            )
            curve.append([evaluate(run.model, images).error for images in (familiar.test, novel.test)])
        evaluate_run(run, report=False, progress=False)
        reevaluate(run_folder, "novel", lambda: (novel.name, novel.test))
        files.write("curve", {"familiar_and_novel_error_percent": curve})
        files.checkpoint.unlink(missing_ok=True)
    files.check_recipe(recipe)
    errors = np.array(files.read("curve")["familiar_and_novel_error_percent"])
    return _Curve(errors, files.read("result"), files.read("novel"))


@lru_cache(maxsize=1)  # rendering takes time
def _novel(data: DataOptions) -> Splits:
    return load_data(data.replace(test_viewpoints="novel"))


def _rows(by: str, curves: Mapping[str, Sequence[_Curve]]) -> list[dict[str, Any]]:
    rows = []
    for name, of_row in curves.items():
        familiar = [curve.result["test"]["error_percent"] for curve in of_row]
        novel = [curve.novel["error_percent"] for curve in of_row]
        plain, adjusted = (None, None) if name == EM or len(of_row) < 2 else _gains(curves[EM], of_row)
        gains = [interval_cell(plain), *gain_cells(adjusted)]
        rows.append(
            {
                "cells": [by, name, over_seeds(familiar), over_seeds(novel), *gains],
                "label": [by, name],
                "familiar_error_percent": familiar,
                "novel_error_percent": novel,
                "gain": with_test(plain),
                "gain_at_equal_familiar_error": with_test(adjusted),
                "curves": [curve.points.tolist() for curve in of_row],
                "runs": [dict(curve.result) for curve in of_row],
                "novel": [dict(curve.novel) for curve in of_row],
            }
        )
    return rows


def _gains(first: Sequence[_Curve], second: Sequence[_Curve]) -> tuple[Interval, Interval]:
    """Return how much lower the first network's novel error is, at the end and at equal familiar error."""
    tables = [CorrectnessTable.from_tests([curve.novel for curve in curves]) for curves in (first, second)]
    plain = tables[0].difference_from(tables[1])
    adjusted = adjusted_means([[curve.points for curve in curves] for curves in (first, second)])
    gain = float(adjusted[1].mean() - adjusted[0].mean()) / 100
    seeds = sum(len(values) - 1 for values in adjusted)
    variance = sum((len(values) - 1) * float(values.var(ddof=1)) for values in adjusted) / seeds / 100**2
    joined = tables[0].difference_from(tables[1], seed_variance=VarianceComponent(variance, seeds))
    shift = gain - joined.estimate
    return plain, replace(joined, estimate=gain, low=joined.low + shift, high=joined.high + shift)


def adjusted_means(
    curves: Sequence[Sequence[Float[np.ndarray, "epochs 2"]]],
) -> list[Float[np.ndarray, " seeds"]]:
    """Return each seed's novel error at the mean familiar error of both networks (analysis of covariance).

    Both networks share one slope of novel against familiar error, estimated within runs.
    """
    kept = [[run[run[:, 0] < max(COMPARED_BELOW, run[:, 0].min() + 1e-6)] for run in runs] for runs in curves]
    runs = [run for of_network in kept for run in of_network]
    centred = np.concatenate([run - run.mean(0) for run in runs])
    spread = (centred[:, 0] ** 2).sum()
    slope = (centred[:, 0] * centred[:, 1]).sum() / spread if spread else 0.0
    familiar = np.mean([run[:, 0].mean() for run in runs])
    return [np.array([run[:, 1].mean() - slope * (run[:, 0].mean() - familiar) for run in of]) for of in kept]

"""Does a routing end with a lower error, or does it only learn faster? Trainings of n, 4n and 16n images.

The plan (results/plans.md, C) preceded the first run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console

from capsella.errors import unknown_name
from capsella.evaluation import Interval, over_seeds
from capsella.experiments import CorrectnessTable, Runner, check_seeds
from capsella.papers.routing_benchmark.datasets import (
    DATASETS,
    BenchmarkDataset,
    BenchmarkRow,
    at_chosen_rate,
    choose_rates,
    rows_on,
)
from capsella.papers.routing_benchmark.table import FEWEST_SEEDS, RoutingBenchmark
from capsella.papers.table_types import gain_cells, interval_cell, measured_text, with_test
from capsella.training import RunFolder

TIMES = (1, 4, 16)  # lengths of the trainings, as multiples of the benchmark's; each is four times the one before
LAST_SEARCHED = 4  # longer trainings have the learning rates of this length
COLUMNS = (
    *("rates", "routed, ours %", "uniform, ours %", "training %", "gain, points", "p", "detects, points"),
    "gain over uniform couplings after 4 times as many images",
)
NOTE = (
    "A routing and the same network with uniform couplings, each at its own learning rates: those of the first two "
    "lengths were chosen by short trainings on two splits of the training images; the longest has those of the second. "
    "Gains have a 95 % interval over test images (or their groups) and seeds. If a routing only learns "
    "faster, its gain falls with the length, and the last column is near or below zero."
)


@dataclass(frozen=True, kw_only=True)
class TrainingLengths(RoutingBenchmark):
    """The table of routings and their twins with uniform couplings, at three lengths of training.

    only: labels of the routings; empty for all that have a twin.
    """

    datasets: tuple[tuple[BenchmarkDataset, str], ...] = tuple(
        (dataset, dataset.sources[0]) for dataset in DATASETS if not dataset.stops
    )
    title: str = "Speed or end: gains over uniform couplings by length of training"
    note: str = NOTE
    columns: tuple[str, ...] = ("data", "routing", "images")

    def rows_to_train(self) -> tuple[BenchmarkRow, ...]:
        """Return the networks to train, at the shortest length."""
        return tuple(row for dataset, source in self.datasets for pair in self._pairs(dataset, source) for row in pair)

    def _pairs(self, dataset: BenchmarkDataset, source: str, times: int = 1) -> list[tuple[BenchmarkRow, BenchmarkRow]]:
        """Return each routing and its twin with uniform couplings, with `times` as many epochs."""
        rows = {row.slug: row for row in rows_on(dataset, source, self.budget)}
        routed = {row.label[1]: row for row in rows.values() if row.uniform is not None}
        for name in (wanted := [name.replace("_", " ") for name in self.only]):
            if name not in routed:
                raise unknown_name("rows", name, routed)

        def longer(row: BenchmarkRow) -> BenchmarkRow:
            recipe = replace(row.recipe, epochs=times * row.recipe.epochs)
            return replace(row, slug=f"{row.slug}-{times}n", recipe=recipe)

        return [
            (longer(row), longer(rows[row.uniform or ""]))
            for name, row in routed.items()
            if not wanted or name in wanted
        ]

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Train and test the missing runs, shortest first, and write the table after every length.

        Raises:
            ValueError: no seeds, or duplicate seeds.
            CapsellaError: the folder holds a run of another recipe, or images cannot be read.
        """
        check_seeds(seeds)
        self.rows_to_train()  # fail on unknown rows before the first training
        runner, pairs, values = Runner(folder, console), list[tuple[_Arm, _Arm]](), dict[str, Any]()
        for dataset, source in self.datasets:
            console.print(f"{dataset.label} ({source})", markup=False)
            rates: list[float] = []
            for times in TIMES:
                rows = [row for pair in self._pairs(dataset, source, times) for row in pair]
                if times <= LAST_SEARCHED:
                    rates = [choice.rate for choice in choose_rates(rows, runner)]
                chosen = [at_chosen_rate(row, rate) for row, rate in zip(rows, rates, strict=True)]
                results = runner.results(chosen, seeds)
                arms = [_Arm(row, results[row.slug], folder) for row in chosen]
                pairs += zip(arms[::2], arms[1::2], strict=True)
                all_runs = {arm.row.slug: arm.runs for pair in pairs for arm in pair}
                measured = measured_text("Test error", all_runs)
                values = self.write(folder, command, measured, COLUMNS, _values(pairs, len(seeds)))
        return values


class _Arm(NamedTuple):
    """A network at a length of training. runs: results of the seeds that did not diverge."""

    row: BenchmarkRow
    runs: list[dict[str, Any]]
    folder: Path

    @property
    def images(self) -> int:
        return self.row.recipe.epochs * (self.row.recipe.epoch_images or 0)

    @property
    def errors(self) -> list[float]:
        return [run["test"]["error_percent"] for run in self.runs]

    @property
    def train_error(self) -> float:
        """The training error of the last epoch in per cent, averaged over seeds."""
        folders = [self.row.folder(self.folder, run["seed"]) for run in self.runs]
        return fmean(float(RunFolder(path).read_metrics()["train_error"][-1]) for path in folders)

    def gain_over(self, other: "_Arm", seeds: int) -> Interval | None:
        """Return how much lower its error is; None if a seed diverged, or there are too few."""
        if min(len(self.runs), len(other.runs)) < max(seeds, FEWEST_SEEDS):
            return None
        first, second = (CorrectnessTable.from_tests([run["test"] for run in arm.runs]) for arm in (self, other))
        return first.difference_from(second)


def _values(pairs: Sequence[tuple[_Arm, _Arm]], seeds: int) -> list[dict[str, Any]]:
    """Return the JSON of every routing and length, given the routing and its twin with uniform couplings."""
    uniform_of = {(*routed.row.label, uniform.images): uniform for routed, uniform in pairs}
    rows = []
    for routed, uniform in pairs:
        if not (routed.runs and uniform.runs):
            continue  # all seeds diverged
        longer = uniform_of.get((*routed.row.label, 4 * routed.images))
        gain = routed.gain_over(uniform, seeds)
        over_longer = None if longer is None else routed.gain_over(longer, seeds)
        rates = " and ".join(f"{arm.row.recipe.optimizer.learning_rate:g}" for arm in (routed, uniform))
        trained = " and ".join(f"{arm.train_error:.2f}" for arm in (routed, uniform))
        errors = [over_seeds(arm.errors) for arm in (routed, uniform)]
        label = [*routed.row.label, f"{routed.images:,}"]
        rows.append(
            {
                "cells": [*label, rates, *errors, trained, *gain_cells(gain), interval_cell(over_longer)],
                "slugs": [routed.row.slug, uniform.row.slug],
                "label": label,
                "error_percent": routed.errors,
                "uniform_error_percent": uniform.errors,
                "gain": with_test(gain),
                "gain_over_longer": with_test(over_longer),
                "runs": routed.runs,
                "uniform_runs": uniform.runs,
            }
        )
    return rows

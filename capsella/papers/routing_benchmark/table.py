"""The table of the routing benchmark: a row per network and data set, with errors, ranks, gains and speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, Self

import numpy as np
from rich.console import Console

from capsella.data import load_data
from capsella.errors import unknown_name
from capsella.evaluation import accuracy_interval, holm_adjusted
from capsella.experiments import CorrectnessTable, Results, Runner, check_seeds, reevaluate
from capsella.papers.budget import BudgetName
from capsella.papers.routing_benchmark.datasets import (
    CNNS,
    DATASETS,
    STOPS,
    BenchmarkDataset,
    BenchmarkRow,
    ChosenRate,
    at_chosen_rate,
    choose_rates,
    datasets_on,
    rows_on,
    stopped_rows,
)
from capsella.papers.table_types import NOT_RUN, Published, measured_text
from capsella.training import RunFolder
from capsella.training.progress import best_validation

FEWEST_SEEDS = 2  # with one seed, an interval covers only the test images, and the seed alone could separate rows
COLUMNS = (
    *("rate", "error, ours %", "rank", "training %", "gain over uniform, points", "gain over CNN, points"),
    *("changed images, ours %", "rank, changed", "training, images/s"),
)
NOTE = (
    "Each learning rate was chosen by short trainings on two splits of the training images (edge: the least or the "
    "greatest of three). A gain over uniform is over the same network, trained at the same rate, with uniform "
    "couplings; a gain over the CNN is over the one with the lower validation error. Where networks stop at one error, "
    "gains are on the changed images. Intervals: 95 %, over test images (or their groups) and seeds. Ranks are of "
    "differences that are significant among all pairs of a data set (Holm 1979)."
)


@dataclass(frozen=True, kw_only=True)
class RoutingBenchmark(Published):
    """The table of all routings, and of networks without routing, on one or several data sets.

    datasets: pairs of a data set and its source. only: labels of the rows to train;
    empty for all.
    """

    budget: BudgetName
    datasets: tuple[tuple[BenchmarkDataset, str], ...] = tuple((dataset, dataset.sources[0]) for dataset in DATASETS)
    title: str = "Routing benchmark"
    note: str = NOTE
    columns: tuple[str, ...] = ("data", "routing")
    only: tuple[str, ...] = ()

    def rows_to_train(self) -> tuple[BenchmarkRow, ...]:
        """Return the networks to train on each data set."""
        return tuple(row for dataset, source in self.datasets for row in self._rows_on(dataset, source))

    def _rows_on(self, dataset: BenchmarkDataset, source: str) -> tuple[BenchmarkRow, ...]:
        rows, wanted = rows_on(dataset, source, self.budget), [name.replace("_", " ") for name in self.only]
        labels = [row.label[1] for row in rows]
        for name in wanted:
            if name not in labels:
                raise unknown_name("rows", name, labels)
        return tuple(row for row in rows if not wanted or row.label[1] in wanted)

    def on(self, source: str) -> Self:
        """Return the benchmark for other sources, separated by commas.

        Raises:
            ValueError: an unknown source.
        """
        return replace(self, datasets=datasets_on(source))

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Train and test the missing runs, write `path(folder)` and return the values of its JSON.

        Raises:
            ValueError: no seeds, or duplicate seeds.
            CapsellaError: the folder holds a run of another recipe, or images cannot be read.
        """
        check_seeds(seeds)
        rows_of = {source: self._rows_on(dataset, source) for dataset, source in self.datasets}
        for dataset, source in self.datasets:  # fail on missing images before hours of training
            data = dataset.base(self.budget, source).data
            load_data(data)
            if dataset.changed is not None:
                dataset.changed.images(data)
        rows: list[dict[str, Any]] = []
        results: Results = {}
        lengths = []
        for dataset, source in self.datasets:
            console.print(f"{dataset.label} ({source})", markup=False)
            measured = _measure(dataset, rows_of[source], STOPS[self.budget], Runner(folder, console), seeds)
            rows += _values(measured)
            results |= {row.row.slug: row.runs for row in measured}
            stop = f", stopped at {STOPS[self.budget]:g} % on familiar elevations" if dataset.stops else ""
            lengths.append(f"{dataset.label}: {dataset.budgets.text(self.budget) or 'the whole training'}{stop}. ")
        table = replace(self, note="".join(lengths) + self.note)
        return table.write(folder, command, measured_text("Test error", results), COLUMNS, rows)


@dataclass(frozen=True)
class Measured:
    """A row with all its measurements.

    chosen: its learning rate, and the row as trained. head: short name of the changed images. runs: results of the
    seeds that did not diverge. train_errors: their training errors in the last epoch, in per cent. changed: their
    results on the changed images. diverged: the diverged seeds. uniform: results of the twin with uniform couplings at
    this row's rate; empty if there is no twin, or one of its seeds diverged.
    """

    row: BenchmarkRow
    chosen: ChosenRate
    head: str
    runs: list[dict[str, Any]]
    train_errors: list[float]
    changed: list[dict[str, Any]]
    diverged: list[int]
    uniform: list[dict[str, Any]]

    @property
    def stops(self) -> bool:
        """True if its training should stop at an error."""
        return self.chosen.row.recipe.stop_at_error is not None

    @property
    def reached(self) -> bool:
        """True if all seeds reached that error; also true for a row that does not stop."""
        return not self.stops or all(run["training"]["stopped"]["reached"] for run in self.runs)

    @property
    def tests(self) -> list[Mapping[str, Any]]:
        """The results on the test images."""
        return [run["test"] for run in self.runs]

    @property
    def compared(self) -> Sequence[Mapping[str, Any]]:
        """The results that gains compare: on changed images if networks stop at one error, else on the test images."""
        return self.changed if self.stops else self.tests


def _measure(
    dataset: BenchmarkDataset, rows: Sequence[BenchmarkRow], stop: float, runner: Runner, seeds: Sequence[int]
) -> list[Measured]:
    """Train, test and measure the rows of a data set. All choices are made before the first test."""
    chosen = stopped_rows(rows, stop) if dataset.stops else choose_rates(rows, runner)
    by_slug = {row.slug: row for row in rows}
    # If a row and its twin chose the same rate, the twin's runs exist already.
    twins = {
        row.slug: at_chosen_rate(by_slug[row.uniform], choice.rate)
        for row, choice in zip(rows, chosen, strict=True)
        if row.uniform in by_slug and not dataset.stops
    }
    results = runner.results([choice.row for choice in chosen], seeds)
    uniform = runner.results(list(twins.values()), seeds)
    changed = dataset.changed
    images = None if changed is None else cache(lambda: changed.images(rows[0].recipe.data))
    measured = []
    for row, choice in zip(rows, chosen, strict=True):
        runs = results[choice.row.slug]
        folders = [choice.row.folder(runner.folder, run["seed"]) for run in runs]
        of_twin = uniform[twins[row.slug].slug] if row.slug in twins else []
        measured.append(
            Measured(
                row=row,
                chosen=choice,
                head="" if changed is None else changed.head,
                runs=runs,
                train_errors=[float(RunFolder(run).read_metrics()["train_error"][-1]) for run in folders],
                changed=[] if images is None else [reevaluate(run, "changed", images) for run in folders],
                diverged=[seed for seed in seeds if seed not in [run["seed"] for run in runs]],
                uniform=of_twin if len(of_twin) == len(seeds) else [],
            )
        )
    return measured


def _values(rows: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return the JSON rows of one data set, sorted by error. Rows that missed the common error have no rank."""
    sound = [row for row in rows if row.runs and not row.diverged]
    by_error = ranks({row.row.slug: CorrectnessTable.from_tests(row.tests) for row in sound if not row.stops})
    by_change = ranks(
        {row.row.slug: CorrectnessTable.from_tests(row.changed) for row in sound if row.changed and row.reached}
    )
    order = sorted(rows, key=lambda row: mean_error(row.compared)["error_percent"] if row.runs else np.inf)
    return [_row_values(row, rows, by_error.get(row.row.slug), by_change.get(row.row.slug)) for row in order]


def _row_values(row: Measured, rows: Sequence[Measured], rank: str | None, changed_rank: str | None) -> dict[str, Any]:
    """Return the JSON of a row.

    The gain over uniform couplings compares with the twin trained at the same rate or, if networks stop at one error,
    with the twin's own row. The gain over the CNN compares whole networks, each at its own rate; the CNN is the one
    with the lower validation error.
    """
    twin = next((other for other in rows if other.row.slug == row.row.uniform), None)
    over_uniform = _gain_over(row, twin) if row.stops else _gain(row, [run["test"] for run in row.uniform])
    over_cnn = None if row.row.label[1] in CNNS else _gain_over(row, _better_cnn(rows))
    cells = [f"{row.chosen.rate:g}" + (" (edge)" if row.chosen.at_edge else ""), NOT_RUN]
    if row.runs:
        state = "" if row.reached else " (not reached)"
        cells[1:] = [
            _error_cell(row.tests) + state,
            rank or "–",
            ", ".join(f"{error:.1f}" for error in row.train_errors),
            _gain_cell(over_uniform),
            _gain_cell(over_cnn),
            f"{_error_cell(row.changed)} ({row.head}){state}" if row.changed else "–",
            changed_rank or "–",
            f"{np.mean([run['training']['images_per_second'] for run in row.runs]):.0f}",
        ]
    return {
        "cells": [*row.row.label, *cells, *("–" for _ in COLUMNS[len(cells) :])],
        "slugs": [row.chosen.row.slug] * 2,
        "label": list(row.row.label),
        "rate": row.chosen.rate,
        "diverged_seeds": row.diverged,
        "validation_errors_by_rate": {
            f"{rate:g}": [error if np.isfinite(error) else "diverged" for error in errors]
            for rate, errors in row.chosen.tried.items()
        },
        "error": mean_error(row.tests) if row.runs else None,
        "rank": rank,
        "gain_over_uniform": over_uniform,
        "gain_over_cnn": over_cnn,
        "changed": row.changed,
        "runs": row.runs,
        "uniform_runs": row.uniform,
    }


def _better_cnn(rows: Sequence[Measured]) -> Measured | None:
    """Return the CNN (average pooling or flattened maps) with the lower validation error, averaged over seeds."""
    cnns = [row for row in rows if row.row.label[1] in CNNS and row.runs]

    def error(row: Measured) -> float:
        return float(np.mean([best_validation(run["training"])[0] for run in row.runs]))

    return min(cnns, key=error, default=None)


def _gain_over(row: Measured, other: Measured | None) -> dict[str, Any] | None:
    """Return the gain over another row; None if that diverged, or either missed the error at which all should stop."""
    if other is None or other.diverged or not (row.reached and other.reached):
        return None
    return _gain(row, other.compared)


def _gain(row: Measured, others: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return how many points lower the row's error is, and the smallest difference detected with 80 % power.

    None if a seed of the row diverged, or either side has fewer than `FEWEST_SEEDS`.
    """
    if row.diverged or min(len(row.compared), len(others)) < FEWEST_SEEDS:
        return None
    gain = CorrectnessTable.from_tests(row.compared).difference_from(CorrectnessTable.from_tests(others))
    return {
        "points": 100 * gain.estimate,
        "interval_95_points": [100 * gain.low, 100 * gain.high],
        "detectable_points": 100 * gain.detectable,
    }


def _gain_cell(gain: Mapping[str, Any] | None) -> str:
    if gain is None:
        return "–"
    low, high = gain["interval_95_points"]
    return f"{gain['points']:.2f} [{low:.1f}, {high:.1f}]"


def _error_cell(tests: Sequence[Mapping[str, Any]]) -> str:
    error = mean_error(tests)
    low, high = error["interval_95_percent"]
    return f"{error['error_percent']:.2f} [{low:.1f}, {high:.1f}]"


def mean_error(tests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean error over seeds in per cent, with its 95 % interval over test images (or groups) and seeds."""
    accuracy = accuracy_interval(*CorrectnessTable.from_tests(tests))
    interval = [100 - 100 * accuracy.high, 100 - 100 * accuracy.low]
    return {"error_percent": 100 - 100 * accuracy.estimate, "interval_95_percent": interval}


def ranks(rows: Mapping[str, CorrectnessTable]) -> dict[str, str]:
    """Return the range of ranks that each row may have.

    Two rows differ if the difference of their accuracies, image by image and over seeds, is significant: a t-test at
    5 %, corrected for all pairs of rows (Holm 1979). A row ranks below all that are better, and above all that are
    worse. A row that differs from no other has no rank.

    rows: for each row, which test images each seed classifies correctly; the same images in all rows.
    """
    rows = {name: hits for name, hits in rows.items() if len(hits.correct) >= FEWEST_SEEDS}
    pairs = list(combinations(rows, 2))
    gains = [rows[a].difference_from(rows[b]) for a, b in pairs]
    better, worse = dict.fromkeys(rows, 0), dict.fromkeys(rows, 0)  # numbers of rows that are better, worse
    for (a, b), gain, p in zip(pairs, gains, holm_adjusted([gain.p_value for gain in gains]), strict=True):
        if p <= 0.05:
            first, second = (a, b) if gain.estimate > 0 else (b, a)
            worse[first] += 1
            better[second] += 1
    ranges = {name: (1 + better[name], len(rows) - worse[name]) for name in rows}
    return {
        name: "–" if (best, worst) == (1, len(rows)) else str(best) if best == worst else f"{best}–{worst}"
        for name, (best, worst) in ranges.items()
    }

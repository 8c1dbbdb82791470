"""The table of the routing benchmark: a row per network and data set, with errors, ranks, gains and costs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from capsella.data import load_data
from capsella.environment import environment, hardware
from capsella.errors import pluralize, unknown_name
from capsella.evaluation import AttackOptions, accuracy_interval, holm_adjusted
from capsella.experiments import CorrectnessTable, Results, Runner, ValidationResult, check_seeds, reevaluate
from capsella.files import read_json, write_json
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
from capsella.papers.routing_benchmark.measure import Speed, measure_network, measure_speeds
from capsella.papers.table_types import Published, hardware_of, table_values
from capsella.training import RunFolder
from capsella.training.progress import best_validation

EPSILON = 0.03
# By budget: the options of the attack, and the number of attacked images.
ATTACKS: dict[BudgetName, tuple[AttackOptions, int]] = {
    "small": (AttackOptions((EPSILON,), steps=5, restarts=1), 20),
    "medium": (AttackOptions((EPSILON,), steps=20, restarts=2), 200),
    "full": (AttackOptions((EPSILON,), steps=20, restarts=2), 200),
}
PUBLISHED = Path(__file__).parents[3] / "results" / "tables"  # exists only in a checkout of the repository
_NUMBER = re.compile(r"[0-9.]+")
FEWEST_SEEDS = 2  # with one seed, an interval covers only the test images, and the seed alone could separate rows
COLUMNS = (  # as in the committed tables
    *("rate", "error, ours %", "rank", "seeds %", "training %"),
    *("gain over uniform, points", "gain over CNN, points"),
    *("changed images, ours %", "rank, changed"),
    *("unattacked, right %", "attacked, right %", "entropy", "training, images/s", "ms an image", "memory MiB"),
)
NOTE = (
    "Ranks hold for this length of training alone. **Alike**: the first layers but for the width of their last "
    "convolution, the parameters (128,000, within 1 %), the images seen where networks do not stop at one error, and "
    "the trials. **Learning rates**: three, each in short trainings of seed 0, a fifth as long, on two splits of the "
    "training images; the middle one stays unless another has a lower error on both (edge: the least or the greatest). "
    "Every seed then trains anew on nearly all training images; intervals do not cover this choice. Gains over the CNN "
    "are over the one with the lower validation error: average pooling, or flattened maps. Networks that stop "
    "at one error have the recipe's rate. Test images choose nothing, but those of familiar elevations stop networks. "
    "**Not alike**: the layers and the loss around a routing follow the kind of its activations, so ranks are of whole "
    "networks. A gain over uniform is of the routing alone: points of error less than the same network, trained at the "
    "same rate, with uniform couplings; where networks stop at one error, on the changed images. Options were not "
    "searched; those of EM and variational routing were set beforehand by training errors on smallNORB. Inverted "
    "attention routes one layer after the other; random couplings are one draw. **Intervals**, in brackets: 95 %, over "
    "test images (or their groups) and seeds. A rank needs two seeds, none that diverged, and differences between rows "
    "that are significant among all pairs of a data set (Holm 1979). Training: the last epoch's error, on changed "
    "images. **First seed only**: how many of the test images that were attacked are right before and after PGD at "
    "ε = 0.03; entropy of the couplings of each layer, 1 where all are uniform; forward, loss and backward of 32 "
    "images in float32, all networks timed in turn; what such a step keeps for its backward pass."
)


@dataclass(frozen=True, kw_only=True)
class RoutingBenchmark(Published):
    """The table of all routings, and of networks without routing, on one or several data sets.

    datasets: pairs of a data set and its source. only: labels of the rows to train, shown beside the published rows;
    empty for all.
    """

    budget: BudgetName
    datasets: tuple[tuple[BenchmarkDataset, str], ...] = tuple((dataset, dataset.sources[0]) for dataset in DATASETS)
    title: str = "Routing benchmark"
    note: str = NOTE
    columns: tuple[str, ...] = ("data", "routing")
    only: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[BenchmarkRow, ...]:
        """The networks to train on each data set."""
        return tuple(row for dataset, source in self.datasets for row in self._rows_on(dataset, source))

    def _rows_on(self, dataset: BenchmarkDataset, source: str) -> tuple[BenchmarkRow, ...]:
        rows, wanted = rows_on(dataset, source, self.budget), [name.replace("_", " ") for name in self.only]
        labels = [row.label[1] for row in rows]
        for name in wanted:
            if name not in labels:
                raise unknown_name("rows", name, labels)
        return tuple(row for row in rows if not wanted or row.label[1] in wanted)

    def on(self, source: str) -> "RoutingBenchmark":
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
            part = _DatasetPart(dataset, self.budget, rows_of[source], folder, console)
            measured = part.measured(seeds)
            rows += _beside_published(_values(measured), self.budget, source) if self.only else _values(measured)
            results |= {row.row.slug: row.runs for row in measured}
            stop = f", stopped at {STOPS[self.budget]:g} % on familiar elevations" if dataset.stops else ""
            lengths.append(f"{dataset.label}: {dataset.budgets.get(self.budget, 'the whole training')}{stop}. ")
        runs = [run for of_row in results.values() for run in of_row]
        tested = list(dict.fromkeys(f"{run['data']}, {run['test']['images']} images" for run in runs))
        text = f"Test error on {' and '.join(tested)}; {pluralize(len({run['seed'] for run in runs}), 'seed')}; "
        text += f"{hardware_of(results)}. Times are of {hardware(environment())}."
        values = table_values(replace(self, note="".join(lengths) + self.note), text, command, COLUMNS, rows)
        write_json(self.path(folder), values)
        return values


Runs = dict[int, ValidationResult]  # by seed


@dataclass(frozen=True)
class Measured:
    """A row with all its measurements.

    chosen: its learning rate, and the row as trained. head: short name of the changed images. runs: results of the
    seeds that did not diverge. train_errors: their training errors in the last epoch, in per cent. changed: their
    results on the changed images. first: measurements of the first seed, see `measure_network`. diverged: the diverged
    seeds. uniform: results of the twin with uniform couplings at this row's rate; empty if there is no twin, or one of
    its seeds diverged.
    """

    row: BenchmarkRow
    chosen: ChosenRate
    head: str
    runs: list[dict[str, Any]]
    train_errors: list[float]
    changed: list[dict[str, Any]]
    first: Mapping[str, Any]
    speed: Speed | None
    diverged: tuple[int, ...]
    uniform: Sequence[Mapping[str, Any]]

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


@dataclass(frozen=True)
class _DatasetPart:
    """The rows of one data set. All are trained before the first is tested."""

    dataset: BenchmarkDataset
    budget: BudgetName
    rows: tuple[BenchmarkRow, ...]
    folder: Path
    console: Console

    def measured(self, seeds: Sequence[int]) -> list[Measured]:
        """Train, test and measure all rows. All choices are made before the first test."""
        grid = Runner(self.folder, self.console)
        if self.dataset.stops:
            chosen = stopped_rows(self.rows, STOPS[self.budget])
        else:
            self.console.print("short trainings, which choose the learning rates:")
            chosen = choose_rates(self.rows, grid)
            self.console.print("trainings at those rates:")
        trained: list[Runs] = grid.validate([choice.row for choice in chosen], seeds)
        uniform = {} if self.dataset.stops else self._uniform(chosen, grid, seeds)
        sound = [_sound(runs) for runs in trained]
        results = [self._test(choice.row, runs) for choice, runs in zip(chosen, sound, strict=True)]
        changed = self._test_changed(sound)
        folders = [[run.folder for run in runs.values()] for runs in sound]
        first = {row.slug: runs[0] for row, runs in zip(self.rows, folders, strict=True) if runs}
        networks = {slug: measure_network(run, *ATTACKS[self.budget]) for slug, run in first.items()}
        data = self.rows[0].recipe.data
        speeds = measure_speeds(self.folder / f"speed-{data.name}.json", first) if first else {}
        return [
            Measured(
                row=row,
                chosen=chosen[n],
                head=self.dataset.changed.head if self.dataset.changed else "",
                runs=results[n],
                changed=changed[n],
                first=networks.get(row.slug, {}),
                speed=speeds.get(row.slug),
                diverged=tuple(seed for seed in trained[n] if seed not in sound[n]),
                train_errors=[float(RunFolder(run).read_metrics()["train_error"][-1]) for run in folders[n]],
                uniform=self._test(*uniform[row.slug]) if row.slug in uniform else (),
            )
            for n, row in enumerate(self.rows)
        ]

    def _uniform(
        self, chosen: Sequence[ChosenRate], grid: Runner, seeds: Sequence[int]
    ) -> dict[str, tuple[BenchmarkRow, Runs]]:
        """Return, by row, its twin with uniform couplings trained at the row's rate, if no seed diverged.

        If both rows chose the same rate, these runs exist already.
        """
        by_slug = {row.slug: row for row in self.rows}
        rows = {
            row.slug: at_chosen_rate(by_slug[row.uniform], choice.rate)
            for row, choice in zip(self.rows, chosen, strict=True)
            if row.uniform in by_slug
        }
        trained = grid.validate(list(rows.values()), seeds)
        both = zip(rows.items(), trained, strict=True)
        return {slug: (row, runs) for (slug, row), runs in both if _sound(runs) == runs}

    def _test(self, row: BenchmarkRow, runs: Runs) -> list[dict[str, Any]]:
        tasks = [row.task(self.folder, seed) for seed in runs]
        for task in tasks:
            task.run(self.console)
        return [task.files.read("result") for task in tasks]

    def _test_changed(self, trained: Sequence[Runs]) -> list[list[dict[str, Any]]]:
        """Test the networks of every row on the changed images, which are loaded once."""
        if (changed := self.dataset.changed) is None:
            return [[] for _ in trained]
        images = cache(lambda: changed.images(self.rows[0].recipe.data))
        return [[reevaluate(run.folder, "changed", images) for run in runs.values()] for runs in trained]


def _sound(runs: Runs) -> Runs:
    """Return the runs that did not diverge."""
    return {seed: run for seed, run in runs.items() if np.isfinite(run.error)}


def _beside_published(rows: list[dict[str, Any]], budget: BudgetName, source: str) -> list[dict[str, Any]]:
    """Add the published rows that were not trained here, marked as published, and sort by error."""
    path = PUBLISHED / f"routings-{budget}-{source}.json"
    if not path.exists():
        return rows
    table, heads = read_json(path)["tables"][0], ["data", "routing", *COLUMNS]
    error, trained = heads.index("error, ours %"), [row["label"][1] for row in rows]
    for cells in table["rows"]:
        known = dict(zip(table["heads"], cells, strict=True))
        if known["routing"] not in trained:
            published = {**known, "routing": f"{known['routing']} (published)"}
            rows.append({"cells": [published.get(head, "–") for head in heads], "published": True})

    def error_of(row: dict[str, Any]) -> float:
        number = _NUMBER.match(row["cells"][error])
        return float(number[0]) if number else np.inf

    return sorted(rows, key=error_of)


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
    cnn = _better_cnn(rows)
    over_uniform = _gain_over(row, twin) if row.stops else _gain(row, [run["test"] for run in row.uniform])
    over_cnn = None if row.row.label[1] in CNNS else _gain_over(row, cnn)
    return {
        "cells": [*row.row.label, *_cells(row, over_uniform, over_cnn, rank, changed_rank)],
        "slugs": [row.row.slug] * 2,
        "label": list(row.row.label),
        "rate": row.chosen.rate,
        "diverged_seeds": list(row.diverged),
        "validation_errors_by_rate": {
            f"{rate:g}": [error if np.isfinite(error) else "diverged" for error in errors]
            for rate, errors in row.chosen.tried.items()
        },
        "error": mean_error(row.tests) if row.runs else None,
        "rank": rank,
        "gain_over_uniform": over_uniform,
        "gain_over_cnn": over_cnn,
        "first_seed": row.first,
        "changed": row.changed,
        "runs": row.runs,
        "uniform_runs": list(row.uniform),
    }


def _better_cnn(rows: Sequence[Measured]) -> Measured | None:
    """Return the CNN (average pooling or flattened maps) with the lower validation error, averaged over seeds."""
    cnns = [row for row in rows if row.row.label[1] in CNNS and row.runs]

    def error(row: Measured) -> float:
        return float(np.mean([best_validation(run["training"])[0] for run in row.runs]))

    return min(cnns, key=error, default=None)


def _cells(row: Measured, over_uniform: Any, over_cnn: Any, rank: str | None, changed_rank: str | None) -> list[str]:
    """Return the cells of a row, one for each of `COLUMNS`."""
    rate = f"{row.chosen.rate:g}" + (" (edge)" if row.chosen.at_edge else "")
    if not row.runs:
        return [rate, "diverged", *("–" for _ in COLUMNS[2:])]
    state = "" if row.reached else " (not reached)"
    seeds = len(row.diverged) + len(row.runs)
    state += f" ({len(row.diverged)} of {seeds} seeds diverged)" if row.diverged else ""
    attack, entropy, speed = row.first["attack"], row.first["coupling_entropy"], row.speed
    (attacked,) = next(curve["accuracy_percent"] for curve in attack["attacks"] if curve["attack"] == "PGD")
    return [
        rate,
        _error_cell(row.tests) + state,
        rank or "–",
        ", ".join(f"{test['error_percent']:.2f}" for test in row.tests),
        ", ".join(f"{error:.1f}" for error in row.train_errors),
        _gain_cell(over_uniform),
        _gain_cell(over_cnn),
        f"{_error_cell(row.changed)} ({row.head}){state}" if row.changed else "–",
        changed_rank or "–",
        f"{attack['clean_accuracy_percent']:.1f}",
        f"{attacked:.1f}" + (" (masked)" if attack["masked"] else ""),
        ", ".join(f"{layer:.3f}" for layer in entropy) or "–",
        "–" if speed is None else f"{speed.per_second:.0f}",
        "–" if speed is None else f"{speed.milliseconds:.2f}",
        f"{row.first['step_memory_mib']:.0f}",
    ]


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

    >>> import numpy as np
    >>> all_right, half, none = (CorrectnessTable(np.tile(np.arange(100) < right, (2, 1))) for right in (100, 50, 0))
    >>> ranks({"a": half, "b": all_right, "c": half, "d": none})
    {'a': '2–3', 'b': '1', 'c': '2–3', 'd': '4'}
    >>> ranks({"a": half, "b": half})
    {'a': '–', 'b': '–'}
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

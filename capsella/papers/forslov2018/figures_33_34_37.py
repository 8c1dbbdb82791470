"""Figures 33, 34 and 37: accuracy on the validation images during training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from capsella.data import load_data
from capsella.grid import BudgetName, Results, Row
from capsella.papers.forslov2018.base import FigureFromRuns
from capsella.papers.forslov2018.paper import FAMILIES, NETWORKS, family
from capsella.papers.forslov2018.runs import ThesisRuns
from capsella.papers.forslov2018.supply import find_supply
from capsella.papers.kinds.figure import write_panels
from capsella.papers.kinds.panels import Panel, Series
from capsella.papers.kinds.published import diverged_phrase, hardware_of, seeds_of, seeds_phrase
from capsella.training import RunFolder
from capsella.training.validation import best_validation

RATES = (3e-4, 3e-5, 3e-6)
ITERATIONS, ACCURACY = "iterations", "validation accuracy"


@dataclass(frozen=True)
class CurveFigure(FigureFromRuns):
    """Validation accuracy against iterations."""

    def _write(
        self,
        folder: Path,
        panels: Sequence[Panel],
        results: Results,
        note: str,
        command: str,
        spikes: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        first = next(run for runs in results.values() for run in runs)
        measured = f"Validation accuracy on {first['data']}; {seeds_phrase(results)}; {hardware_of(results)}."
        measured += diverged_phrase(folder, results)
        return write_panels(
            self.path(folder),
            panels,
            title=self.title,
            note=note,
            measured=measured,
            command=command,
            more={"runs": results} | ({} if spikes is None else {"spikes": spikes}),
        )


@dataclass(frozen=True)
class BestCurves(CurveFigure):
    """Figure 33: on each set, each family's network of lowest validation error; the thesis takes the test's."""

    def trainings(self) -> list[Row]:
        """As `Published.trainings`."""
        return self.runs.grid(find_supply(self.runs.options("hard"), self.runs.sets).sets)

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`, a picture with its numbers beside it."""
        supply = find_supply(self.runs.options("hard"), self.runs.sets)
        chance = dict.fromkeys(supply.sets, 1 / supply.classes) | {
            name: 1 / len(load_data(self.runs.options(name)).classes)
            for name in supply.sets
            if name in ("basic", "medium")
        }
        panels = []
        for name in supply.sets:
            series = []
            for kind in FAMILIES:
                of_kind = [(network, init) for network, init in self.runs.networks if family(network) == kind]
                plan = {one: self.runs.planned(name, *one) for one in of_kind}
                trained = [one for one in of_kind if results.get(plan[one].slug)]
                if not trained:
                    continue
                network, init = best = min(trained, key=lambda one: _validation_error(results[plan[one].slug]))
                series.append(_series(f"{NETWORKS[network]}, INIT-NET {init}", plan[best], results, folder))
            if series:
                panels.append(Panel(name, ITERATIONS, ACCURACY, tuple(series), level=("chance", chance[name])))
        note = (
            "The best network of each family on each set, by its best validation error. "
            f"{self.runs.describe()} {supply.sentences()}"
        )
        return self._write(folder, panels, results, note, command)


@dataclass(frozen=True)
class RateCurves(CurveFigure):
    """Figure 34: EM-NET 1 behind INIT-NET 1 at three learning rates, and how often it falls back to chance."""

    needs_all: ClassVar[bool] = True

    def plan(self) -> dict[float, Row]:
        """The row of each rate."""
        return {rate: self.runs.with_learning_rate(rate) for rate in RATES}

    def trainings(self) -> list[Row]:
        """As `Published.trainings`."""
        return list(self.plan().values())

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`, a picture with its numbers beside it: a panel a seed, as a mean would hide spikes."""
        plan = self.plan()
        validation = load_data(plan[RATES[0]].recipe.data).validation
        classes, images = len(validation.classes), len(validation)
        panels: list[Panel] = []
        found: list[dict[str, Any]] = []
        counts: dict[float, list[int]] = {rate: [] for rate in RATES}
        for seed in seeds_of(results):
            series = []
            for rate, run in plan.items():
                steps, accuracies = curve(run.folder(folder, seed))
                at = spikes_to_chance(steps, accuracies, classes, images)
                counts[rate].append(len(at))
                found.append({"seed": seed, "learning_rate": rate, "spikes_to_chance_at": at})
                series.append(Series(f"{rate:.0e}: {_times(at)}", tuple(steps), tuple(accuracies)))
            panels.append(Panel(f"seed {seed}", ITERATIONS, ACCURACY, tuple(series), level=("chance", 1 / classes)))
        spikes = "; ".join(f"{rate:.0e}: {sum(counts[rate])}" for rate in RATES)
        note = (
            f"Learning rates of EM-NET 1 on mini. Spikes to chance over all seeds, {spikes}. A spike: validation "
            "accuracy within two standard errors of chance, after it was once halfway from chance to 1. "
            f"{self.runs.describe_fine()}"
        )
        return self._write(folder, panels, results, note, command, spikes=found)


@dataclass(frozen=True)
class DecoderCurves(CurveFigure):
    """Figure 37: CAPSNET 1 behind INIT-NET 1 with and without the reconstruction loss."""

    needs_all: ClassVar[bool] = True

    def plan(self) -> dict[str, Row]:
        """The row with and that without."""
        return {name: self.runs.with_decoder("capsnet1", name == "with") for name in ("with", "without")}

    def trainings(self) -> list[Row]:
        """As `Published.trainings`."""
        return list(self.plan().values())

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`, a picture with its numbers beside it."""
        plan = self.plan()
        series = tuple(_series(f"{name} reconstruction", run, results, folder) for name, run in plan.items())
        options = plan["with"].recipe.data
        chance = 1 / len(load_data(options).classes)
        panel = Panel("CAPSNET 1, INIT-NET 1", ITERATIONS, ACCURACY, series, level=("chance", chance))
        note = f"Trained on mini, images of {options.size}×{options.size}. {self.runs.describe_drawn()}"
        return self._write(folder, [panel], results, note, command)


def curve(folder: Path) -> tuple[list[float], list[float]]:
    """Steps and validation accuracies (shares of 1) of a run's epochs, from its metrics.csv."""
    metrics = RunFolder(folder).read_metrics()
    return metrics["step"].tolist(), (1 - metrics["validation_error"] / 100).tolist()


def spikes_to_chance(steps: Sequence[float], accuracies: Sequence[float], classes: int, images: int) -> list[int]:
    """Steps at which a training that had learnt fell back to chance; neighbouring ones count once.

    Learnt: an earlier accuracy was halfway from chance to 1. At chance: within two standard errors of 1/classes, for so
    many images.

    >>> spikes_to_chance([10, 20, 30, 40, 50, 60], [0.2, 0.7, 0.2, 0.2, 0.9, 0.21], classes=5, images=100)
    [30, 60]
    """
    chance = 1 / classes
    limit = chance + 2 * math.sqrt(chance * (1 - chance) / images)
    found, has_learnt, is_down = [], False, False
    for step, accuracy in zip(steps, accuracies, strict=True):
        was_down, is_down = is_down, accuracy <= limit
        if has_learnt and is_down and not was_down:
            found.append(int(step))
        has_learnt = has_learnt or accuracy >= (1 + chance) / 2
    return found


def figure_33(budget: BudgetName) -> BestCurves:
    """Figure 33, validation curves on each training set."""
    return BestCurves(ThesisRuns(budget), "figure33", "Forslöv 2018, Figure 33: validation curves by training set")


def figure_34(budget: BudgetName) -> RateCurves:
    """Figure 34, learning rates of EM-NET 1."""
    return RateCurves(ThesisRuns(budget), "figure34", "Forslöv 2018, Figure 34: learning rates of EM-NET 1")


def figure_37(budget: BudgetName) -> DecoderCurves:
    """Figure 37, with and without reconstruction."""
    return DecoderCurves(ThesisRuns(budget), "figure37", "Forslöv 2018, Figure 37: CAPSNET 1 with and without decoder")


def _series(name: str, run: Row, results: Results, folder: Path) -> Series:
    """The mean curve over seeds."""
    curves = [curve(run.folder(folder, result["seed"])) for result in results[run.slug]]
    steps = tuple(curves[0][0])
    accuracies = np.array([accuracies for _, accuracies in curves])
    sd = None if len(curves) == 1 else tuple(accuracies.std(0, ddof=1).tolist())
    return Series(name, steps, tuple(accuracies.mean(0).tolist()), sd)


def _validation_error(runs: Sequence[dict[str, Any]]) -> float:
    return float(np.mean([best_validation(run["training"])[0] for run in runs]))


def _times(at: Sequence[int]) -> str:
    return "1 spike" if len(at) == 1 else f"{len(at)} spikes"

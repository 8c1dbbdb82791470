"""Figures 31 and 32: accuracy against the size of the training set, and against the number of classes."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from capsella.data import load_data
from capsella.grid import BudgetName, Results, Row
from capsella.papers.forslov2018.base import FigureFromRuns, accuracies_of, images_tested, mean_sd
from capsella.papers.forslov2018.paper import (
    ACCURACY,
    FAMILIES,
    NETWORKS,
    SET_CLASSES,
    SET_IMAGES,
    SETS,
    family,
)
from capsella.papers.forslov2018.runs import ThesisRuns
from capsella.papers.forslov2018.supply import find_supply
from capsella.papers.kinds.figure import write_panels
from capsella.papers.kinds.panels import Panel, Series
from capsella.papers.kinds.published import diverged_phrase, hardware_of, seeds_phrase
from capsella.routing import EMRouting

LEAST_FOR_STANDARDISED_COSTS = 3
"""Classes: of two, the costs are always +1 and −1 and teach an EM-NET nothing."""


@dataclass(frozen=True)
class TrendFigure(FigureFromRuns):
    """Test accuracy of every network against a number that each training set has; a panel a family of networks."""

    x_name: ClassVar[str]
    log: ClassVar[bool] = False
    in_paper: ClassVar[Mapping[str, int]]

    @abstractmethod
    def points(self) -> tuple[dict[str, int], str]:
        """The training sets with their place on the horizontal axis, and what a reader must know of them."""

    def plan(self, points: Mapping[str, int]) -> list[Row]:
        """The runs of the figure: every network on every set."""
        return self.runs.grid([*points])

    def trainings(self) -> list[Row]:
        """As `Published.trainings`."""
        return self.plan(self.points()[0])

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`, a picture with its numbers beside it."""
        points, note = self.points()
        every = [result for runs in results.values() for result in runs]
        return write_panels(
            self.path(folder),
            [self._panel(kind, points, results) for kind in FAMILIES],
            title=self.title,
            note=f"{self.runs.describe()} {note}",
            measured=f"Test accuracy on {every[0]['data']}, {images_tested(every)}; {seeds_phrase(results)}; "
            f"{hardware_of(results)}.{diverged_phrase(folder, results)}",
            command=command,
            more={"runs": results},
        )

    def _panel(self, kind: str, points: Mapping[str, int], results: Results) -> Panel:
        series = []
        for network, init in self.runs.networks:
            if family(network) != kind:
                continue
            name = NETWORKS[network] + (f", INIT-NET {init}" if len(self.runs.inits) > 1 else "")
            slugs = {points[at]: self.runs.planned(at, network, init).slug for at in points}
            found = {x: mean_sd(accuracies_of(results[slug])) for x, slug in sorted(slugs.items()) if results.get(slug)}
            means, sds = tuple(mean for mean, _ in found.values()), tuple(sd for _, sd in found.values())
            series.append(Series(name, tuple(found), means, sds if any(sd is not None for sd in sds) else None))
            paper = tuple(ACCURACY[network, init][SETS.index(at)] for at in self.in_paper)
            series.append(Series(name, tuple(self.in_paper.values()), paper, paper=True))
        ticks = tuple(sorted({*points.values(), *self.in_paper.values()}))
        return Panel(FAMILIES[kind], self.x_name, "test accuracy", tuple(series), _apart(ticks, self.log), self.log)


@dataclass(frozen=True)
class SizeFigure(TrendFigure):
    """Figure 31: mini, small, medium-size and hard; where hard is basic or medium over again, that."""

    x_name: ClassVar[str] = "training images"
    log: ClassVar[bool] = True
    in_paper: ClassVar[Mapping[str, int]] = SET_IMAGES

    def points(self) -> tuple[dict[str, int], str]:
        """As of `TrendFigure`."""
        supply = find_supply(self.runs.options("hard"), SETS)
        whole = [name for name in ("hard", "medium", "basic") if name in supply.sets][:1]
        sets = [name for name in ("mini", "small", "medium-size") if name in supply.sets] + whole
        if self.runs.budget != "full":
            sets = [name for name in sets if name in (*self.runs.sets, *whole)]
        return {name: supply.counts[name] for name in sets}, supply.sentences()


@dataclass(frozen=True)
class ClassesFigure(TrendFigure):
    """Figure 32: the first 5 and 10 classes and all; of a source with five or fewer, each number of them."""

    x_name: ClassVar[str] = "classes"
    in_paper: ClassVar[Mapping[str, int]] = SET_CLASSES

    def points(self) -> tuple[dict[str, int], str]:
        """As of `TrendFigure`."""
        splits = load_data(self.runs.options("hard"))
        classes = len(splits.train.classes)
        if classes > SET_CLASSES["basic"]:
            supply = find_supply(self.runs.options("hard"), [*SET_CLASSES])
            return {name: min(classes, SET_CLASSES[name]) for name in supply.sets}, supply.sentences()
        whole = {"basic": classes} if classes == SET_CLASSES["basic"] else {"hard": classes}
        note = f"{splits.name} has {classes} classes: the first 2 to {classes} of them, with all their images."
        if self.runs.budget == "full":
            note += " EM-NETs start at 3: of two classes, standardised costs are always +1 and −1 and teach nothing."
        return {f"classes{number}": number for number in range(2, classes)} | whole, note

    def plan(self, points: Mapping[str, int]) -> list[Row]:
        """The runs of the figure: every network on every set with enough classes for its routing."""
        return [run for name, classes in points.items() for run in self.runs.grid([name]) if _can_learn(run, classes)]


def figure_31(budget: BudgetName) -> SizeFigure:
    """Figure 31, test accuracy against the number of training images."""
    return SizeFigure(ThesisRuns(budget), "figure31", "Forslöv 2018, Figure 31: accuracy by size of the training set")


def figure_32(budget: BudgetName) -> ClassesFigure:
    """Figure 32, test accuracy against the number of classes."""
    return ClassesFigure(ThesisRuns(budget), "figure32", "Forslöv 2018, Figure 32: accuracy by number of classes")


def _can_learn(run: Row, classes: int) -> bool:
    routing = run.recipe.complete().model.options.get("routing")
    return not (isinstance(routing, EMRouting) and routing.standardise_costs and classes < LEAST_FOR_STANDARDISED_COSTS)


def _apart(ticks: Sequence[int], log: bool) -> tuple[float, ...]:
    """The ticks without those that would overlap the one before."""
    kept: list[float] = []
    for tick in ticks:
        if not kept or not log or tick > 1.3 * kept[-1]:
            kept.append(tick)
    return tuple(kept)

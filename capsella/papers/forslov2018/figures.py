"""Figures 31 to 37 of Forslöv's thesis (2018): accuracy by set, validation curves, perturbed capsules."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from rich.console import Console

from capsella.data import load_data, single_images
from capsella.environment import hardware
from capsella.errors import pluralize
from capsella.experiments import Results, Row
from capsella.files import write_json
from capsella.papers.budget import BudgetName
from capsella.papers.figure_types import Panel, Series, write_panels
from capsella.papers.forslov2018.paper import ACCURACY, FAMILIES, NETWORKS, SET_CLASSES, SET_IMAGES, SETS, family
from capsella.papers.forslov2018.runs import (
    FromRuns,
    ThesisRuns,
    accuracies_of,
    images_tested,
    mean_sd,
)
from capsella.papers.table_types import diverged_phrase, hardware_of, seeds_of, seeds_phrase
from capsella.report import dimension_tweaks, largest_elements
from capsella.report.figures import write_png
from capsella.report.image_figures import perturbation_figure
from capsella.report.reconstructions import row_changes, share_nearest_own
from capsella.routing import EMRouting
from capsella.training import RunFolder, load_run
from capsella.training.validation import best_validation

FEWEST_CLASSES = 3  # for standardised costs: those of two classes are always +1 and −1 and teach an EM-NET nothing
RATES = (3e-4, 3e-5, 3e-6)
ITERATIONS, VALIDATION_ACCURACY = "iterations", "validation accuracy"
COMPARED = 500  # test images that reconstructions are compared with
CANDIDATES = 16  # the largest numbers of the capsule, of which those are shown that change the picture most


@dataclass(frozen=True, kw_only=True)
class PanelFigure(FromRuns):
    """A figure of panels of lines. measured_as: what its numbers are."""

    measured_as: ClassVar[str] = "Validation accuracy"

    def _write(
        self,
        folder: Path,
        panels: Sequence[Panel],
        results: Results,
        note: str,
        command: str,
        tested: str = "",
        **more: Any,
    ) -> dict[str, Any]:
        first = next(run for runs in results.values() for run in runs)
        return write_panels(
            self.path(folder),
            panels,
            title=self.title,
            note=note,
            measured=f"{self.measured_as} on {first['data']}{tested}; {seeds_phrase(results)}; {hardware_of(results)}."
            f"{diverged_phrase(folder, results)}",
            command=command,
            more={"runs": results, **more},
        )


@dataclass(frozen=True, kw_only=True)
class TrendFigure(PanelFigure):
    """Test accuracy of every network against a number that each training set has; a panel per family of networks."""

    measured_as: ClassVar[str] = "Test accuracy"
    points: Callable[[ThesisRuns], tuple[dict[str, int], str]]  # the sets with their place on the x axis, and a note
    x_name: str
    in_paper: Mapping[str, int]
    log: bool = False

    def rows_to_train(self) -> list[Row]:
        """Return every network on every set with enough classes for its routing."""
        return [row for row in self.runs.grid([*self.points(self.runs)[0]]) if _can_learn(row)]

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`."""
        points, note = self.points(self.runs)
        tested = f", {images_tested([run for runs in results.values() for run in runs])}"
        panels = [self._panel(kind, points, results) for kind in FAMILIES]
        return self._write(folder, panels, results, f"{self.runs.describe()} {note}", command, tested)

    def _panel(self, kind: str, points: Mapping[str, int], results: Results) -> Panel:
        series = []
        for network, init in self.runs.networks:
            if family(network) != kind:
                continue
            name = NETWORKS[network] + (f", INIT-NET {init}" if len(self.runs.inits) > 1 else "")
            slugs = {points[at]: self.runs.row(at, network, init).slug for at in points}
            measured = {x: mean_sd(accuracies_of(results[s])) for x, s in sorted(slugs.items()) if results.get(s)}
            means, sds = tuple(mean for mean, _ in measured.values()), tuple(sd for _, sd in measured.values())
            series.append(Series(name, tuple(measured), means, sds if any(sd is not None for sd in sds) else None))
            paper = tuple(ACCURACY[network, init][SETS.index(at)] for at in self.in_paper)
            series.append(Series(name, tuple(self.in_paper.values()), paper, paper=True))
        ticks: list[float] = []
        for tick in sorted({*points.values(), *self.in_paper.values()}):
            if not ticks or not self.log or tick > 1.3 * ticks[-1]:  # ticks must not overlap
                ticks.append(tick)
        return Panel(FAMILIES[kind], self.x_name, "test accuracy", tuple(series), tuple(ticks), self.log)


def _can_learn(row: Row) -> bool:
    """Return whether there are enough classes for standardised costs."""
    routing, classes = row.recipe.complete().model.options.get("routing"), row.recipe.data.first_classes
    standardised = isinstance(routing, EMRouting) and routing.standardise_costs
    return not (standardised and classes is not None and classes < FEWEST_CLASSES)


def set_sizes(runs: ThesisRuns) -> tuple[dict[str, int], str]:
    """Return the sets of Figure 31: mini, small, medium-size and the largest of hard, medium and basic."""
    available = runs.available_sets(SETS)
    whole = [name for name in ("hard", "medium", "basic") if name in available.sets][:1]
    sets = [name for name in ("mini", "small", "medium-size") if name in available.sets] + whole
    if runs.budget != "full":
        sets = [name for name in sets if name in (*runs.sets, *whole)]
    return {name: available.counts[name] for name in sets}, available.describe()


def set_classes(runs: ThesisRuns) -> tuple[dict[str, int], str]:
    """Return the sets of Figure 32: the first 5 and 10 classes and all; each number of classes if there are up to 5."""
    splits = load_data(runs.options("hard"))
    classes = len(splits.train.classes)
    if classes > SET_CLASSES["basic"]:
        available = runs.available_sets([*SET_CLASSES])
        return {name: min(classes, SET_CLASSES[name]) for name in available.sets}, available.describe()
    whole = {"basic": classes} if classes == SET_CLASSES["basic"] else {"hard": classes}
    note = f"{splits.name} has {classes} classes: the first 2 to {classes} of them, with all their images."
    if runs.budget == "full":
        note += " EM-NETs start at 3: of two classes, standardised costs are always +1 and −1 and teach nothing."
    return {f"classes{number}": number for number in range(2, classes)} | whole, note


@dataclass(frozen=True, kw_only=True)
class BestCurves(PanelFigure):
    """Figure 33: on each set, each family's network of lowest validation error; the thesis takes the test error."""

    def rows_to_train(self) -> list[Row]:
        """Return every network on every set."""
        return self.runs.grid(self.runs.available_sets().sets)

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`."""
        available = self.runs.available_sets()
        panels = []
        for name in available.sets:
            series = []
            for kind in FAMILIES:
                rows = {key: self.runs.row(name, *key) for key in self.runs.networks if family(key[0]) == kind}
                trained = [key for key, row in rows.items() if results.get(row.slug)]
                if trained:
                    best = min(trained, key=lambda key: _validation_error(results[rows[key].slug]))
                    label = f"{NETWORKS[best[0]]}, INIT-NET {best[1]}"
                    series.append(_mean_curve(label, rows[best], results, folder))
            if series:
                level = ("chance", 1 / available.classes_of(name))
                panels.append(Panel(name, ITERATIONS, VALIDATION_ACCURACY, tuple(series), level=level))
        note = (
            "The best network of each family on each set, by its best validation error. "
            f"{self.runs.describe()} {available.describe()}"
        )
        return self._write(folder, panels, results, note, command)


@dataclass(frozen=True, kw_only=True)
class RateCurves(PanelFigure):
    """Figure 34: EM-NET 1 behind INIT-NET 1 at three learning rates, and how often it falls back to chance."""

    requires_common_seeds: ClassVar[bool] = True

    def rows_to_train(self) -> list[Row]:
        """Return a row per rate."""
        return [self.runs.with_learning_rate(rate) for rate in RATES]

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`: a panel per seed, as a mean would hide spikes."""
        rows = dict(zip(RATES, self.rows_to_train(), strict=True))
        validation = load_data(rows[RATES[0]].recipe.data).validation
        classes, images = len(validation.classes), len(validation)
        panels: list[Panel] = []
        spikes: list[dict[str, Any]] = []
        for seed in seeds_of(results):
            series = []
            for rate, row in rows.items():
                steps, accuracies = curve(row.folder(folder, seed))
                at = spikes_to_chance(steps, accuracies, classes, images)
                spikes.append({"seed": seed, "learning_rate": rate, "spikes_to_chance_at": at})
                series.append(Series(f"{rate:.0e}: {pluralize(len(at), 'spike')}", tuple(steps), tuple(accuracies)))
            level = ("chance", 1 / classes)
            panels.append(Panel(f"seed {seed}", ITERATIONS, VALIDATION_ACCURACY, tuple(series), level=level))
        counts = {
            rate: sum(len(s["spikes_to_chance_at"]) for s in spikes if s["learning_rate"] == rate) for rate in RATES
        }
        note = (
            "Learning rates of EM-NET 1 on mini. Spikes to chance over all seeds, "
            f"{'; '.join(f'{rate:.0e}: {count}' for rate, count in counts.items())}. A spike: validation "
            "accuracy within two standard errors of chance, after it was once halfway from chance to 1. "
            f"{self.runs.describe('rates')}"
        )
        return self._write(folder, panels, results, note, command, spikes=spikes)


@dataclass(frozen=True, kw_only=True)
class DecoderCurves(PanelFigure):
    """Figure 37: CAPSNET 1 behind INIT-NET 1 with and without the reconstruction loss."""

    requires_common_seeds: ClassVar[bool] = True

    def rows_to_train(self) -> list[Row]:
        """Return the row with the decoder and the one without."""
        return [self.runs.with_decoder("capsnet1", decoder) for decoder in (True, False)]

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`."""
        rows = dict(zip(("with", "without"), self.rows_to_train(), strict=True))
        series = tuple(_mean_curve(f"{name} reconstruction", row, results, folder) for name, row in rows.items())
        options = rows["with"].recipe.data
        level = ("chance", 1 / len(load_data(options).classes))
        panel = Panel("CAPSNET 1, INIT-NET 1", ITERATIONS, VALIDATION_ACCURACY, series, level=level)
        note = f"Trained on mini, images of {options.size}×{options.size}. {self.runs.describe('decoder')}"
        return self._write(folder, [panel], results, note, command)


def curve(folder: Path) -> tuple[list[float], list[float]]:
    """Return steps and validation accuracies (shares of 1) of a run's epochs."""
    metrics = RunFolder(folder).read_metrics()
    return metrics["step"].tolist(), (1 - metrics["validation_error"] / 100).tolist()


def spikes_to_chance(steps: Iterable[float], accuracies: Iterable[float], classes: int, images: int) -> list[int]:
    """Return the steps at which a training that had learnt fell back to chance; adjacent ones count once.

    Learnt: an earlier accuracy was halfway from chance to 1. At chance: within two standard errors of 1/classes, for so
    many images.

    >>> spikes_to_chance([10, 20, 30, 40, 50, 60], [0.2, 0.7, 0.2, 0.2, 0.9, 0.21], classes=5, images=100)
    [30, 60]
    """
    chance = 1 / classes
    limit = chance + 2 * math.sqrt(chance * (1 - chance) / images)
    spikes, has_learnt, is_down = [], False, False
    for step, accuracy in zip(steps, accuracies, strict=True):
        was_down, is_down = is_down, accuracy <= limit
        if has_learnt and is_down and not was_down:
            spikes.append(int(step))
        has_learnt = has_learnt or accuracy >= (1 + chance) / 2
    return spikes


def _mean_curve(name: str, row: Row, results: Results, folder: Path) -> Series:
    curves = [curve(row.folder(folder, result["seed"])) for result in results[row.slug]]
    accuracies = np.array([accuracies for _, accuracies in curves])
    sd = None if len(curves) == 1 else tuple(accuracies.std(0, ddof=1).tolist())
    return Series(name, tuple(curves[0][0]), tuple(accuracies.mean(0).tolist()), sd)


def _validation_error(runs: Sequence[Mapping[str, Any]]) -> float:
    return float(np.mean([best_validation(run["training"])[0] for run in runs]))


@dataclass(frozen=True, kw_only=True)
class PerturbationFigure(FromRuns):
    """A test image, its reconstruction, and rows of reconstructions with one number of the true class's capsule moved.

    network: with the decoder. most: the largest offset either way, of nine. elements: how many numbers are moved.
    """

    network: str
    most: float
    elements: int
    requires_common_seeds: ClassVar[bool] = True

    def rows_to_train(self) -> tuple[Row, ...]:
        """Return the network with its decoder."""
        return (self.runs.with_decoder(self.network, True),)

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`: the picture is of the first seed's run."""
        (row,) = self.rows_to_train()
        offsets = tuple(self.most * step / 4 for step in range(-4, 5))
        result = results[row.slug][0]
        model = load_run(row.folder(folder, result["seed"])).model
        test = single_images(load_data(row.recipe.data).test, "figures of changed capsules")
        image, target = test.images[0].float() / 255, int(test.labels[0])
        candidates = largest_elements(model, image, target, CANDIDATES)
        effects = row_changes(dimension_tweaks(model, image, target, (-self.most, self.most), candidates))
        shown = effects.topk(min(self.elements, len(effects))).indices.sort().values.tolist()
        elements = [candidates[number] for number in shown]
        grid = dimension_tweaks(model, image, target, offsets, elements)
        reconstruction = grid[0, len(offsets) // 2]
        compared = test.subset(torch.arange(min(len(test), COMPARED)))
        own = share_nearest_own(model, compared.images, compared.labels)
        values = {
            "title": self.title,
            "note": f"{NETWORKS[self.network]} with its decoder, trained on mini, images of {model.image_size[0]}×"
            f"{model.image_size[1]}; the first test image, {test.classes[target]}. Shown are the numbers, of the "
            f"{CANDIDATES} largest of the capsule, that change the picture most. {self.runs.describe('decoder')} "
            f"For {round(own * len(compared)):,} of {len(compared):,} test images, the nearest to the reconstruction, "
            "by pixels, is the image itself.",
            "measured": f"{result['data']}; seed {result['seed']}; {hardware(result['environment'])}.",
            "command": command,
            "offsets": list(offsets),
            "elements": elements,
            "mean_change_by_element": dict(zip(candidates, effects.tolist(), strict=True)),
            "nearest_is_own_percent": 100 * own,
            "nearest_among": len(compared),
            "reconstruction_error": float((reconstruction - image).square().mean()),
            "runs": {row.slug: [result]},
        }
        write_json(self.path(folder).with_suffix(".json"), values)
        drawn = perturbation_figure(image.numpy(), reconstruction.numpy(), grid.numpy(), offsets, elements)
        write_png(drawn, self.path(folder))
        return values


def _figure(number: int, title: str, kind: type[FromRuns], **options: Any) -> Callable[[BudgetName], FromRuns]:
    def make(budget: BudgetName) -> FromRuns:
        name = f"Forslöv 2018, Figure {number}: {title}"
        return kind(title=name, runs=ThesisRuns(budget), item=f"figure{number}", **options)

    return make


FIGURES = {
    "forslov2018-31": _figure(
        31,
        "accuracy by size of the training set",
        TrendFigure,
        points=set_sizes,
        x_name="training images",
        in_paper=SET_IMAGES,
        log=True,
    ),
    "forslov2018-32": _figure(
        32, "accuracy by number of classes", TrendFigure, points=set_classes, x_name="classes", in_paper=SET_CLASSES
    ),
    "forslov2018-33": _figure(33, "validation curves by training set", BestCurves),
    "forslov2018-34": _figure(34, "learning rates of EM-NET 1", RateCurves),
    "forslov2018-35": _figure(
        35, "class capsule of CAPSNET 1, perturbed", PerturbationFigure, network="capsnet1", most=0.4, elements=3
    ),
    "forslov2018-36": _figure(
        36, "class capsule of EM-NET 1, perturbed", PerturbationFigure, network="emnet1", most=5.0, elements=4
    ),
    "forslov2018-37": _figure(37, "CAPSNET 1 with and without decoder", DecoderCurves),
}

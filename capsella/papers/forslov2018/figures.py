"""Figures 31 to 37 of Forslöv's thesis (2018): accuracy by set, validation curves, perturbed capsules."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from rich.console import Console

from capsella.data import LabelledImages, load_data, single_images
from capsella.errors import pluralize
from capsella.experiments import Results, Row
from capsella.files import write_json
from capsella.models import ImageClassifier
from capsella.papers.budget import BudgetName, Budgets
from capsella.papers.figure_types import Drawn, Panel, RunFigure, Series, panels_figure
from capsella.papers.forslov2018.paper import ACCURACY, FAMILIES, NETWORKS, SET_CLASSES, SET_IMAGES, SETS, family
from capsella.papers.forslov2018.runs import (
    DECODER_BUDGETS,
    RATE_BUDGETS,
    TABLE_BUDGETS,
    ThesisItem,
    accuracies_of,
    limits_note,
    mean_sd,
)
from capsella.papers.table_types import Published, diverged_phrase, few_images_caveat, measured_text, seeds_of
from capsella.report import dimension_tweaks, largest_elements
from capsella.report.figures import write_png
from capsella.report.image_figures import tweak_figure
from capsella.report.reconstructions import row_changes, share_nearest_own
from capsella.training import RunFolder
from capsella.training.progress import best_validation

COMPARED = 500  # test images among which a reconstruction's nearest one is searched
RATES = (3e-4, 3e-5, 3e-6)


@dataclass(frozen=True, kw_only=True)
class PanelFigure(ThesisItem):
    """A figure of line plots, of every network on every set unless a subclass trains others."""

    suffix: ClassVar[str] = "png"

    def rows_to_train(self) -> list[Row]:
        """Return every network on every set."""
        return self.grid([*self.images_by_set()])

    def _draw(self, results: Results, folder: Path) -> tuple[list[Panel], dict[str, Any]]:
        """Return the panels, and further values for the JSON."""
        raise NotImplementedError

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`."""
        path, (panels, more) = self.path(folder), self._draw(results, folder)
        write_png(panels_figure(panels), path)
        values = {
            "title": self.title,
            "note": self.note,
            "measured": measured_text("Accuracy", results) + diverged_phrase(folder, results),
            "command": command,
            "runs": results,
            **more,
            "panels": [asdict(panel) for panel in panels],
        }
        write_json(path.with_suffix(".json"), values)  # last, as its presence means that the picture is there
        return values


@dataclass(frozen=True, kw_only=True)
class Trend(PanelFigure):
    """Test accuracy against a property of the training sets, a panel per family of networks.

    in_paper: the property's values in the thesis, by set.
    """

    in_paper: Mapping[str, int]

    def places(self) -> dict[str, int]:
        """Return the x value of each training set."""
        return set_sizes(self) if self.in_paper is SET_IMAGES else set_classes(self)

    def rows_to_train(self) -> list[Row]:
        """Return every network on every set with enough classes: of two, standardised costs are always ±1."""
        return [row for row in self.grid([*self.places()]) if self.budget != "full" or "classes2-emnet" not in row.slug]

    def _draw(self, results: Results, folder: Path) -> tuple[list[Panel], dict[str, Any]]:
        by_size, places, panels = self.in_paper is SET_IMAGES, self.places(), []
        for kind in FAMILIES:
            series = []
            for network, init in (key for key in self.networks if family(key[0]) == kind):
                name = f"{NETWORKS[network]}, INIT-NET {init}"
                slugs = {x: self.row(at, network, init).slug for at, x in places.items()}
                measured = {x: mean_sd(accuracies_of(results[s])) for x, s in sorted(slugs.items()) if results.get(s)}
                means, sds = tuple(mean for mean, _ in measured.values()), tuple(sd for _, sd in measured.values())
                series.append(Series(name, tuple(measured), means, sds))
                paper = tuple(ACCURACY[network, init][SETS.index(at)] for at in self.in_paper)
                series.append(Series(name, tuple(self.in_paper.values()), paper, paper=True))
            if series:
                x_name = "training images" if by_size else "classes"
                panels.append(Panel(FAMILIES[kind], x_name, "test accuracy", tuple(series), log=by_size))
        return panels, {}


def set_sizes(item: ThesisItem) -> dict[str, int]:
    """Return the training images of each set of Figure 31. The last set has the most classes of all."""
    counts = item.images_by_set(SETS)
    whole = [name for name in ("hard", "medium", "basic") if name in counts][:1]
    sets = [name for name in ("mini", "small", "medium-size") if name in counts and name in item.sets] + whole
    return {name: counts[name] for name in sets}


def set_classes(item: ThesisItem) -> dict[str, int]:
    """Return the classes of each set of Figure 32: 5, 10 and all; with up to 5, every number from 2 on."""
    classes = len(load_data(item.options("hard")).classes)
    if classes > SET_CLASSES["basic"]:
        return {name: min(classes, SET_CLASSES[name]) for name in item.images_by_set([*SET_CLASSES])}
    whole = {"basic" if classes == SET_CLASSES["basic"] else "hard": classes}
    return {f"classes{number}": number for number in range(2, classes)} | whole


@dataclass(frozen=True, kw_only=True)
class BestCurves(PanelFigure):
    """Validation curves of each family's network with the lowest validation error, a panel per set."""

    def _draw(self, results: Results, folder: Path) -> tuple[list[Panel], dict[str, Any]]:
        classes, panels = len(load_data(self.options("hard")).classes), []
        for name in self.images_by_set():
            series = []
            for kind in FAMILIES:
                rows = {key: self.row(name, *key) for key in self.networks if family(key[0]) == kind}
                if trained := [key for key, row in rows.items() if results.get(row.slug)]:
                    best = min(trained, key=lambda key: _validation_error(results[rows[key].slug]))
                    series.append(_mean_curve(f"{NETWORKS[best[0]]}, INIT-NET {best[1]}", rows[best], results, folder))
            if series:
                panels.append(_curves(name, series, self.options(name).first_classes or classes))
        return panels, {}


@dataclass(frozen=True, kw_only=True)
class RateCurves(PanelFigure):
    """EM-NET 1 at three learning rates, a panel per seed, since a mean over seeds would hide spikes."""

    requires_common_seeds: bool = True

    def rows_to_train(self) -> list[Row]:
        """Return the network at each learning rate."""
        return [self.with_learning_rate(rate) for rate in RATES]

    def _draw(self, results: Results, folder: Path) -> tuple[list[Panel], dict[str, Any]]:
        validation = load_data(self.options("mini")).validation
        panels: list[Panel] = []
        spikes: list[dict[str, Any]] = []
        for seed in seeds_of(results):
            series = []
            for rate in RATES:
                steps, accuracies = curve(self.with_learning_rate(rate).folder(folder, seed))
                at = spikes_to_chance(steps, accuracies, len(validation.classes), len(validation))
                spikes.append({"seed": seed, "learning_rate": rate, "spikes_to_chance_at": at})
                series.append(Series(f"{rate:.0e}: {pluralize(len(at), 'spike')}", tuple(steps), tuple(accuracies)))
            panels.append(_curves(f"seed {seed}", series, len(validation.classes)))
        return panels, {"spikes": spikes}


@dataclass(frozen=True, kw_only=True)
class DecoderCurves(PanelFigure):
    """CAPSNET 1 with and without the reconstruction loss."""

    def rows_to_train(self) -> list[Row]:
        """Return the network with and without a decoder."""
        return [self.with_decoder("capsnet1", decoder) for decoder in (True, False)]

    def _draw(self, results: Results, folder: Path) -> tuple[list[Panel], dict[str, Any]]:
        rows = [row for row in self.rows_to_train() if results.get(row.slug)]
        series = [_mean_curve(row.slug, row, results, folder) for row in rows]
        classes = len(load_data(self.options("mini")).classes)
        return [_curves("CAPSNET 1, INIT-NET 1", series, classes)], {}


def _curves(title: str, series: Sequence[Series], classes: int) -> Panel:
    return Panel(title, "iterations", "validation accuracy", tuple(series), chance=1 / classes)


def curve(folder: Path) -> tuple[list[float], list[float]]:
    """Return the step and the validation accuracy (a proportion) of each epoch of a run."""
    metrics = RunFolder(folder).read_metrics()
    return metrics["step"].tolist(), (1 - metrics["validation_error"] / 100).tolist()


def spikes_to_chance(steps: Iterable[float], accuracies: Iterable[float], classes: int, images: int) -> list[int]:
    """Return the steps at which a network that had learnt fell back to chance; consecutive steps count once.

    Learnt: an earlier accuracy was at least halfway from chance to 1. At chance: at most two standard errors (for this
    number of images) above 1/classes.
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


def draw_perturbations(most: float, elements: int, model: ImageClassifier, images: LabelledImages) -> Drawn:
    """Draw a test image, its reconstruction, and reconstructions with one pose element of its class capsule changed.

    Of the largest pose elements, the figure shows those that change the picture most.

    Args:
        most: largest of the nine offsets, which are symmetric about zero.
        elements: number of pose elements to show.
        model: a network with a decoder.
        images: test images, of which the first is drawn.
    """
    offsets = tuple(most * step / 4 for step in range(-4, 5))
    test = single_images(images, "figures of changed capsules")
    image, target = test.images[0].float() / 255, int(test.labels[0])
    candidates = largest_elements(model, image, target)
    effects = row_changes(dimension_tweaks(model, image, target, (-most, most), candidates))
    shown = effects.topk(min(elements, len(effects))).indices.sort().values.tolist()
    moved = [candidates[number] for number in shown]
    grid = dimension_tweaks(model, image, target, offsets, moved)
    compared = test.subset(torch.arange(min(len(test), COMPARED)))
    own = share_nearest_own(model, compared.images, compared.labels)
    figure = tweak_figure(grid.numpy(), offsets, moved, image.numpy())
    return figure, {
        "note": f"The first test image, {test.classes[target]}. {own:.1%} of {len(compared)} test images are "
        "nearest to their own reconstruction.",
        "nearest_is_own_percent": 100 * own,
        "offsets": list(offsets),
        "elements": moved,
        "mean_change_by_element": dict(zip(candidates, effects.tolist(), strict=True)),
    }


_CHOSEN = "The network of each family with the lowest validation error; the thesis chooses by test error. "
_SPIKE = (
    "A spike: validation accuracy within two standard errors of chance, after it was once halfway from chance to 1. "
)
# By figure number: the type, its fields, the rest of the title, the budgets, and a note.
_PANELS: dict[int, tuple[type[PanelFigure], dict[str, Any], str, Budgets, str]] = {
    31: (Trend, {"in_paper": SET_IMAGES}, "accuracy by size of the training set", TABLE_BUDGETS, ""),
    32: (Trend, {"in_paper": SET_CLASSES}, "accuracy by number of classes", TABLE_BUDGETS, ""),
    33: (BestCurves, {}, "validation curves by training set", TABLE_BUDGETS, _CHOSEN),
    34: (RateCurves, {}, "learning rates of EM-NET 1", RATE_BUDGETS, _SPIKE),
    37: (DecoderCurves, {}, "CAPSNET 1 with and without decoder", DECODER_BUDGETS, ""),
}
# By figure number: the network, the largest offset, and the number of pose elements to show.
_PERTURBED = {35: ("capsnet1", 0.4, 3), 36: ("emnet1", 5.0, 4)}


def _figure(number: int, budget: BudgetName) -> Published:
    shared: dict[str, Any] = {"family": "forslov2018", "file": f"forslov2018-figure{number}"}
    shared["caveat_text"], start = few_images_caveat(budget), f"Forslöv 2018, Figure {number}: "
    if number in _PANELS:
        kind, fields, title, budgets, note = _PANELS[number]
        return kind(title=start + title, note=note + limits_note(budget, budgets), budget=budget, **fields, **shared)
    network, most, elements = _PERTURBED[number]
    return RunFigure(
        title=f"{start}class capsule of {NETWORKS[network]}, perturbed",
        note=limits_note(budget, DECODER_BUDGETS),
        rows=(ThesisItem(title="", budget=budget).with_decoder(network, True),),
        draw=partial(draw_perturbations, most, elements),
        **shared,
    )


FIGURES: dict[str, Callable[[BudgetName], Published]] = {
    f"forslov2018-{number}": partial(_figure, number) for number in (*_PANELS, *_PERTURBED)
}

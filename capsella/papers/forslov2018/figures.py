"""Figures 31 to 37 of Forslöv's thesis (2018): accuracy by set, validation curves, perturbed capsules."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from capsella.data import LabelledImages, load_data, single_images
from capsella.errors import pluralize
from capsella.experiments import Results, Row
from capsella.models import ImageClassifier
from capsella.papers.budget import BudgetName
from capsella.papers.figure_types import Drawn, Panel, RunFigure, Series, write_panels
from capsella.papers.forslov2018.paper import ACCURACY, FAMILIES, NETWORKS, SET_CLASSES, SET_IMAGES, SETS, family
from capsella.papers.forslov2018.runs import ThesisItem, accuracies_of, images_tested, mean_sd
from capsella.papers.table_types import Published, diverged_phrase, few_images, hardware_of, seeds_of, seeds_phrase
from capsella.report import dimension_tweaks, largest_elements
from capsella.report.image_figures import tweak_figure
from capsella.report.reconstructions import row_changes, share_nearest_own
from capsella.routing import EMRouting
from capsella.training import RunFolder
from capsella.training.progress import best_validation

FEWEST_CLASSES = 3  # for standardised costs: with two classes they are always ±1, and an EM-NET learns nothing
RATES = (3e-4, 3e-5, 3e-6)
COMPARED = 500  # test images among which a reconstruction's nearest one is searched
CANDIDATES = 16  # pose elements, the largest in magnitude, among which the figure shows the most effective


@dataclass(frozen=True)
class Drawing:
    """The content of a figure. measured: what the y values are. more: further values for its JSON."""

    panels: Sequence[Panel]
    note: str
    measured: str = "Validation accuracy"
    more: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class PanelFigure(ThesisItem):
    """A figure of line plots. trained: returns its rows. drawn: draws it from the results and the run folder."""

    trained: Callable[[ThesisItem], list[Row]]
    drawn: Callable[[ThesisItem, Results, Path], Drawing]

    def rows_to_train(self) -> list[Row]:
        """Return the rows of `trained`."""
        return self.trained(self)

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`."""
        drawing = self.drawn(self, results, folder)
        measured = f"{drawing.measured} on {images_tested(results)}; {seeds_phrase(results)}; {hardware_of(results)}."
        return write_panels(
            self.path(folder),
            drawing.panels,
            title=self.title,
            note=drawing.note,
            measured=measured + diverged_phrase(folder, results),
            command=command,
            more={"runs": results, **(drawing.more or {})},
        )


Points = Callable[[ThesisItem], tuple[dict[str, int], str]]  # returns the x value of each training set, and a note


def trend_rows(points: Points, item: ThesisItem) -> list[Row]:
    """Return every network on every set with enough classes for its routing."""
    return [row for row in item.grid([*points(item)[0]]) if _can_learn(row)]


def _can_learn(row: Row) -> bool:
    """Return False for standardised costs with too few classes."""
    routing, classes = row.recipe.complete().model.options.get("routing"), row.recipe.data.first_classes
    standardised = isinstance(routing, EMRouting) and routing.standardise_costs
    return not (standardised and classes is not None and classes < FEWEST_CLASSES)


def trends(
    points: Points, x_name: str, in_paper: Mapping[str, int], item: ThesisItem, results: Results, folder: Path
) -> Drawing:
    """Draw test accuracy against a property of the training sets (`points`), a panel per family of networks."""
    places, note = points(item)
    ticks: list[float] = []
    log = in_paper is SET_IMAGES
    for tick in sorted({*places.values(), *in_paper.values()}):
        if not ticks or not log or tick > 1.3 * ticks[-1]:  # ticks must not overlap
            ticks.append(tick)
    panels = []
    for kind in FAMILIES:
        series = []
        for network, init in (key for key in item.networks if family(key[0]) == kind):
            name = NETWORKS[network] + (f", INIT-NET {init}" if item.limits is None else "")
            slugs = {places[at]: item.row(at, network, init).slug for at in places}
            measured = {x: mean_sd(accuracies_of(results[s])) for x, s in sorted(slugs.items()) if results.get(s)}
            means, sds = tuple(mean for mean, _ in measured.values()), tuple(sd for _, sd in measured.values())
            series.append(Series(name, tuple(measured), means, sds if any(sd is not None for sd in sds) else None))
            paper = tuple(ACCURACY[network, init][SETS.index(at)] for at in in_paper)
            series.append(Series(name, tuple(in_paper.values()), paper, paper=True))
        panels.append(Panel(FAMILIES[kind], x_name, "test accuracy", tuple(series), tuple(ticks), log))
    return Drawing(panels, f"{item.describe()} {note}", "Test accuracy")


def set_sizes(item: ThesisItem) -> tuple[dict[str, int], str]:
    """Return the training images of each set of Figure 31, and a note. The last set has the most classes of all."""
    counts = item.images_by_set(SETS)
    whole = [name for name in ("hard", "medium", "basic") if name in counts][:1]
    sets = [name for name in ("mini", "small", "medium-size") if name in counts and name in item.sets] + whole
    return {name: counts[name] for name in sets}, item.describe_sets(counts)


def set_classes(item: ThesisItem) -> tuple[dict[str, int], str]:
    """Return the classes of each set of Figure 32, and a note: 5, 10 and all; with up to 5, every number from 2 on."""
    classes = len(load_data(item.options("hard")).classes)
    if classes > SET_CLASSES["basic"]:
        counts = item.images_by_set([*SET_CLASSES])
        return {name: min(classes, SET_CLASSES[name]) for name in counts}, item.describe_sets(counts)
    whole = {"basic" if classes == SET_CLASSES["basic"] else "hard": classes}
    note = f"The first 2 to {classes} classes of {item.source}, with all their images."
    if item.limits is None:
        note += " EM-NETs start at 3: of two classes, standardised costs are always +1 and −1 and teach nothing."
    return {f"classes{number}": number for number in range(2, classes)} | whole, note


def best_curves(item: ThesisItem, results: Results, folder: Path) -> Drawing:
    """Draw each family's network with the lowest validation error on each set; the thesis chooses by test error."""
    counts, classes, panels = item.images_by_set(), len(load_data(item.options("hard")).classes), []
    for name in counts:
        series = []
        for kind in FAMILIES:
            rows = {key: item.row(name, *key) for key in item.networks if family(key[0]) == kind}
            if trained := [key for key, row in rows.items() if results.get(row.slug)]:
                best = min(trained, key=lambda key: _validation_error(results[rows[key].slug]))
                series.append(_mean_curve(f"{NETWORKS[best[0]]}, INIT-NET {best[1]}", rows[best], results, folder))
        if series:
            panels.append(_curves(name, series, item.options(name).first_classes or classes))
    note = "The best network of each family on each set, by its best validation error. "
    return Drawing(panels, f"{note}{item.describe()} {item.describe_sets(counts)}")


def rate_curves(item: ThesisItem, results: Results, folder: Path) -> Drawing:
    """Draw EM-NET 1 at three learning rates, a panel per seed, since a mean over seeds would hide spikes."""
    rows = {rate: item.with_learning_rate(rate) for rate in RATES}
    validation = load_data(rows[RATES[0]].recipe.data).validation
    panels: list[Panel] = []
    spikes: list[dict[str, Any]] = []
    for seed in seeds_of(results):
        series = []
        for rate, row in rows.items():
            steps, accuracies = curve(row.folder(folder, seed))
            at = spikes_to_chance(steps, accuracies, len(validation.classes), len(validation))
            spikes.append({"seed": seed, "learning_rate": rate, "spikes_to_chance_at": at})
            series.append(Series(f"{rate:.0e}: {pluralize(len(at), 'spike')}", tuple(steps), tuple(accuracies)))
        panels.append(_curves(f"seed {seed}", series, len(validation.classes)))
    counts = [sum(len(s["spikes_to_chance_at"]) for s in spikes if s["learning_rate"] == rate) for rate in RATES]
    note = (
        "Learning rates of EM-NET 1 on mini. Spikes to chance over all seeds, "
        f"{'; '.join(f'{rate:.0e}: {count}' for rate, count in zip(RATES, counts, strict=True))}. A spike: validation "
        "accuracy within two standard errors of chance, after it was once halfway from chance to 1. "
    )
    return Drawing(panels, note + item.describe("rates"), more={"spikes": spikes})


def decoder_curves(item: ThesisItem, results: Results, folder: Path) -> Drawing:
    """Draw CAPSNET 1 with and without the reconstruction loss."""
    rows = {name: item.with_decoder("capsnet1", name == "with") for name in ("with", "without")}
    series = [_mean_curve(f"{name} reconstruction", row, results, folder) for name, row in rows.items()]
    data = rows["with"].recipe.data
    note = f"Trained on mini, images of {data.size}×{data.size}. {item.describe('decoder')}"
    return Drawing([_curves("CAPSNET 1, INIT-NET 1", series, len(load_data(data).classes))], note)


def _curves(title: str, series: Sequence[Series], classes: int) -> Panel:
    return Panel(title, "iterations", "validation accuracy", tuple(series), level=("chance", 1 / classes))


def curve(folder: Path) -> tuple[list[float], list[float]]:
    """Return the step and the validation accuracy (a proportion) of each epoch of a run."""
    metrics = RunFolder(folder).read_metrics()
    return metrics["step"].tolist(), (1 - metrics["validation_error"] / 100).tolist()


def spikes_to_chance(steps: Iterable[float], accuracies: Iterable[float], classes: int, images: int) -> list[int]:
    """Return the steps at which a network that had learnt fell back to chance; consecutive steps count once.

    Learnt: an earlier accuracy was at least halfway from chance to 1. At chance: at most two standard errors (for this
    number of images) above 1/classes.

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


def draw_perturbations(most: float, elements: int, model: ImageClassifier, images: LabelledImages) -> Drawn:
    """Draw a test image, its reconstruction, and reconstructions with one pose element of its class capsule changed.

    Of the `CANDIDATES` largest pose elements, the figure shows those that change the picture most.

    Args:
        most: largest of the nine offsets, which are symmetric about zero.
        elements: number of pose elements to show.
        model: a network with a decoder.
        images: test images, of which the first is drawn.
    """
    offsets = tuple(most * step / 4 for step in range(-4, 5))
    test = single_images(images, "figures of changed capsules")
    image, target = test.images[0].float() / 255, int(test.labels[0])
    candidates = largest_elements(model, image, target, CANDIDATES)
    effects = row_changes(dimension_tweaks(model, image, target, (-most, most), candidates))
    shown = effects.topk(min(elements, len(effects))).indices.sort().values.tolist()
    moved = [candidates[number] for number in shown]
    grid = dimension_tweaks(model, image, target, offsets, moved)
    compared = test.subset(torch.arange(min(len(test), COMPARED)))
    own = share_nearest_own(model, compared.images, compared.labels)
    figure = tweak_figure(grid.numpy(), offsets, moved, image.numpy())
    note = (
        f"The first test image, {test.classes[target]}. Shown are the numbers, of the {CANDIDATES} largest of the "
        f"capsule, that change the picture most. For {round(own * len(compared)):,} of {len(compared):,} test images, "
        "the nearest to the reconstruction, by pixels, is the image itself."
    )
    return figure, {
        "note": note,
        "offsets": list(offsets),
        "elements": moved,
        "mean_change_by_element": dict(zip(candidates, effects.tolist(), strict=True)),
        "nearest_is_own_percent": 100 * own,
    }


def _trend(points: Points, x_name: str, in_paper: Mapping[str, int]) -> dict[str, Any]:
    return {"trained": partial(trend_rows, points), "drawn": partial(trends, points, x_name, in_paper)}


# By figure number: the title, `requires_common_seeds`, and the fields `trained` and `drawn`.
_PANELS: dict[int, tuple[str, bool, dict[str, Any]]] = {
    31: ("accuracy by size of the training set", False, _trend(set_sizes, "training images", SET_IMAGES)),
    32: ("accuracy by number of classes", False, _trend(set_classes, "classes", SET_CLASSES)),
    33: (
        "validation curves by training set",
        False,
        {"trained": lambda item: item.grid([*item.images_by_set()]), "drawn": best_curves},
    ),
    34: (
        "learning rates of EM-NET 1",
        True,
        {"trained": lambda item: [item.with_learning_rate(rate) for rate in RATES], "drawn": rate_curves},
    ),
    37: (
        "CAPSNET 1 with and without decoder",
        True,
        {"trained": lambda item: [item.with_decoder("capsnet1", d) for d in (True, False)], "drawn": decoder_curves},
    ),
}
# By figure number: the network, the largest offset, and the number of pose elements to show.
_PERTURBED = {35: ("capsnet1", 0.4, 3), 36: ("emnet1", 5.0, 4)}


def _panels(number: int, budget: BudgetName) -> PanelFigure:
    title, common, functions = _PANELS[number]
    return PanelFigure(
        title=f"Forslöv 2018, Figure {number}: {title}",
        item=f"figure{number}",
        budget=budget,
        caveat_text=few_images(budget),
        requires_common_seeds=common,
        **functions,
    )


def _perturbed(number: int, budget: BudgetName) -> RunFigure:
    network, most, elements = _PERTURBED[number]
    runs = ThesisItem(title="", item="", budget=budget)
    return RunFigure(
        name=f"forslov2018-figure{number}",
        title=f"Forslöv 2018, Figure {number}: class capsule of {NETWORKS[network]}, perturbed",
        note=runs.describe("decoder"),
        family=runs.family,
        row=runs.with_decoder(network, True),
        draw=partial(draw_perturbations, most, elements),
        caveat_text=few_images(budget),
    )


FIGURES: dict[str, Callable[[BudgetName], Published]] = {
    **{f"forslov2018-{number}": partial(_panels, number) for number in _PANELS},
    **{f"forslov2018-{number}": partial(_perturbed, number) for number in _PERTURBED},
}

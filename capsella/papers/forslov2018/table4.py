"""Table 4: the test accuracy of the runs of Table 3's hardest set on moved, turned, coloured and noisy test images."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.data import load_once, single_images
from capsella.evaluation import PERTURBATIONS, measure_robustness
from capsella.files import write_json
from capsella.grid import BudgetName, Results, Row
from capsella.papers.forslov2018.base import TableFromRuns, images_tested, shown
from capsella.papers.forslov2018.paper import ACCURACY, NETWORKS, ROBUSTNESS, SETS
from capsella.papers.forslov2018.runs import ThesisRuns
from capsella.papers.forslov2018.supply import Supply, find_supply
from capsella.papers.kinds.published import NOT_RUN, hardware_of, seeds_phrase, table_values
from capsella.training import load_run

SHOWN = {"translation": 0.25, "rotation": 180.0, "noise": 0.1, "colour": 0.2}
"""The strength in the table, of each change; the thesis gives none. With translation by a quarter of the side its
networks lost about half of what they knew, as Table 4's did."""
IN_PAPER = ("translation", "rotation", "noise")
LARGEST_FIRST = ("hard", "medium", "basic", "medium-size", "small", "mini")
KEPT = "changed-images.json"
SEED = 0  # of what is drawn: every run sees the same changed images


@dataclass(frozen=True)
class RobustnessTable(TableFromRuns):
    """Table 4: a row a network with its INIT-NET, two columns a change of the images."""

    def trainings(self) -> list[Row]:
        """As `Published.trainings`."""
        return self.runs.grid([self._supply().sets[0]])

    def _supply(self) -> Supply:
        """The set with the most classes first, whose runs Table 3 has too; of equal ones the one with more images."""
        supply = find_supply(self.runs.options("hard"), [name for name in LARGEST_FIRST if name in self.runs.sets])
        largest = sorted(supply.counts, key=lambda name: (-supply.classes_of(name), LARGEST_FIRST.index(name)))
        return replace(supply, counts={name: supply.counts[name] for name in largest})

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`; a run's accuracies are kept as changed-images.json in its folder."""
        supply, plan = self._supply(), self.trainings()
        todo = [(run, result["seed"]) for run in plan for result in results.get(run.slug, [])]
        points: dict[str, list[list[dict[str, Any]]]] = {run.slug: [] for run in plan}
        for number, (run, seed) in enumerate(todo, start=1):
            if not (run.folder(folder, seed) / KEPT).exists():
                console.print(f"changed images {number} of {len(todo)}: {run.slug}, seed {seed}")
            points[run.slug].append(accuracies(run, run.folder(folder, seed), self._strengths()))
        tested = [result for runs in results.values() for result in runs]
        values = table_values(
            title=self.title,
            note=self._note(supply.sets[0], supply.classes_of(supply.sets[0])),
            measured=f"Test accuracy (1 is all right) on {supply.name}, {images_tested(tested[:1])}; "
            f"{seeds_phrase(results)}; {hardware_of(results)}.",
            command=command,
            folder=folder,
            labels=self.columns,
            mark=self.runs.mark,
            columns=[
                *("unchanged paper", "ours"),
                *(head for change in SHOWN for head in (f"{change} paper", f"{change} {SHOWN[change]:g} ours")),
            ],
            rows=[_row(*row, run.slug, points[run.slug]) for row, run in zip(self.rows, plan, strict=True)],
        )
        write_json(self.path(folder), values)
        return values

    def _strengths(self) -> dict[str, Sequence[float]]:
        """What is measured: what the table shows, and at the full budget whole curves."""
        if self.runs.budget != "full":
            return {change: (strength,) for change, strength in SHOWN.items()}
        return {change: sorted({strength, *PERTURBATIONS[change].strengths}) for change, strength in SHOWN.items()}

    def _note(self, name: str, classes: int) -> str:
        mirrored = "Training images were mirrored at random; the thesis changes none. " if self.runs.limit else ""
        units = "; ".join(f"{change}: {PERTURBATIONS[change].unit}" for change in SHOWN)
        return (
            f"{self.runs.describe()} {mirrored}Trained on {name}, {classes} classes; the thesis on hard, "
            "15 classes. It names the changes and gives no "
            f"strengths; ours are in the heads ({units}). Colour is in its text, not in its table."
        )


def accuracies(run: Row, folder: Path, strengths: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """The accuracies of a finished run on changed test images: a dict a point, as `Robustness.to_dict` has them.

    Read from changed-images.json in its folder where that has the same strengths; written there otherwise.
    """
    path = folder / KEPT
    asked = {change: list(given) for change, given in strengths.items()}
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if kept["strengths"] == asked and kept["seed"] == SEED:
            return list(kept["points"])
    trained = load_run(folder)
    splits = load_once(trained.recipe.data)
    result = measure_robustness(
        {run.slug: trained.model},
        single_images(splits.test, "tests of robustness"),
        strengths,
        data=splits.name,
        seed=SEED,
        batch_size=32,
    )
    write_json(path, {"strengths": asked, **result.to_dict()})
    return list(result.to_dict()["points"])


def table_4(budget: BudgetName) -> RobustnessTable:
    """Table 4: the runs of Table 3 on the set with the most classes, on changed test images."""
    return RobustnessTable(ThesisRuns(budget), "table4", "Forslöv 2018, Table 4")


def _row(network: str, init: int, slug: str, seeds: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    paper: dict[str, float | None] = {"unchanged": ACCURACY[network, init][SETS.index("hard")]}
    paper |= {
        change: ROBUSTNESS[network, init][IN_PAPER.index(change)] if change in IN_PAPER else None for change in SHOWN
    }
    found = {change: [_share(points, change) for points in seeds] for change in paper if seeds}
    cells = []
    for change, printed in paper.items():
        ours = shown(found[change]) if seeds else NOT_RUN
        cells += ["–" if printed is None else f"{printed:.3f}", ours]
    return {
        "cells": [NETWORKS[network], str(init), *cells],
        "slugs": [slug] * len(paper),
        "network": network,
        "init": init,
        "paper_accuracy": paper,
        "accuracy_by_seed": found,
        "points_by_seed": [list(points) for points in seeds],
    }


def _share(points: Sequence[dict[str, Any]], change: str) -> float:
    """Accuracy under a change at its strength in the table; of the unchanged images, strength 0 of any change."""
    strength = SHOWN.get(change, 0.0)
    accuracies = [
        point["accuracy_percent"] / 100
        for point in points
        if point["strength"] == strength and (change == "unchanged" or point["perturbation"] == change)
    ]
    return float(accuracies[0])

"""The league's table: a row a network and set of images, each with the best of three learning rates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console

from capsella.data import DataOptions, load_data, single_images
from capsella.evaluation import AttackOptions
from capsella.files import write_json
from capsella.grid import (
    BudgetName,
    Grid,
    Results,
    Searched,
    Validated,
    at_rate,
    check_seeds,
    evaluated_on,
    hits_of,
    result_of,
    still_learned,
)
from capsella.papers.kinds.published import hardware_of, table_values
from capsella.papers.league.cells import HEADS, Measured, cells, sure_error
from capsella.papers.league.fields import FIELDS, STOPS, Entrant, Field, entrants, fields_on
from capsella.papers.league.measure import measured, times
from capsella.papers.league.ranks import ranks

FACTORS = (1 / 3, 1.0, 3.0)
"""Of the recipe's learning rate, tried for every row alike."""
EPSILON = 0.03
ATTACKS = {"small": (AttackOptions((EPSILON,), steps=5, restarts=1), 20)}
USUAL_ATTACK = AttackOptions((EPSILON,), steps=20, restarts=2), 200
"""How hard is attacked, and how many images."""
NOTE = (
    "Every row has the same stem, nearly as many parameters, as many images seen and as many trials: three learning "
    "rates with the first seed, of which the validation images choose one. Test images choose nothing, but those of "
    "familiar elevations stop networks. Each routing has the layers around it that its own paper has, and reads its "
    "classes as there; inverted attention routes one layer after the other; cluster routing has a geometry of its own. "
    "In brackets: 95 % intervals over test images and, of several, seeds. A rank needs two seeds, none that diverged, "
    "and intervals of differences that part rows, each pair by itself. Attacked: what PGD at ε = 0.03 leaves of the "
    "first seed's network. Memory: what a step of 32 images keeps for its backward pass. Entropy: of the class "
    "capsules' couplings, 1 where all are even."
)


@dataclass(frozen=True)
class League:
    """The routings, and networks without any, on one or several sets of images.

    budget: of every training. fields: sets of images with their sources.
    """

    budget: BudgetName
    fields: tuple[tuple[Field, str], ...] = tuple((field, field.sources[0]) for field in FIELDS)
    title: str = "A league of routings"
    columns: tuple[str, ...] = ("data", "routing")
    family: str | None = None

    @property
    def rows(self) -> tuple[Entrant, ...]:
        """Every network on every set of images."""
        return tuple(row for field, source in self.fields for row in entrants(field, source, self.budget))

    @property
    def note(self) -> str:
        """What a reader of the numbers must know."""
        lengths = [
            f"{field.label}: {field.budgets[self.budget]}"
            + (f", stopped at {STOPS[self.budget]:g} % on familiar elevations" if field.stops else "")
            for field, _ in self.fields
            if self.budget in field.budgets
        ]
        return ". ".join([*lengths, NOTE])

    def on(self, sources: str) -> "League":
        """The same on other images: names of sources with commas between them.

        Raises:
            ValueError: the league has no such source.
        """
        return replace(self, fields=fields_on(sources))

    def path(self, folder: Path) -> Path:
        """Of the JSON."""
        return folder / f"{folder.name}.json"

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Train what is missing, test it, write `path(folder)` and return what the JSON holds.

        Raises:
            ValueError: no seed, or one twice.
            CapsellaError: a run of another recipe is in the folder, or images are not to be had.
        """
        check_seeds(seeds)
        for field, source in self.fields:  # what is missing shows before the hours of the first training
            data = field.base(self.budget, source).data
            load_data(data)
            if field.changed is not None:
                field.changed.images(data)
        rows: list[dict[str, Any]] = []
        results: Results = {}
        for field, source in self.fields:
            console.print(f"{field.label} ({source})", markup=False)
            held = _Held(field, self.budget, entrants(field, source, self.budget), folder, console)
            found = held.measured(seeds)
            rows += _values(found)
            results |= {one.row.slug: one.runs for one in found}
        values = table_values(
            title=self.title,
            note=self.note,
            measured=_measured(results),
            command=command,
            labels=self.columns,
            columns=HEADS,
            rows=rows,
        )
        write_json(self.path(folder), values)
        return values


@dataclass(frozen=True)
class _Held:
    """One set of images: its rows are trained, then tested, then measured."""

    field: Field
    budget: BudgetName
    rows: tuple[Entrant, ...]
    folder: Path
    console: Console

    def measured(self, seeds: Sequence[int]) -> list[Measured]:
        """All rows; whatever chooses among trainings is done before the first test."""
        searched = self._searched(seeds)
        runs = {one.row.slug: self._tested(one) for one in searched}
        changed = {one.row.slug: self._changed(one, runs[one.row.slug]) for one in searched}
        options, images = ATTACKS.get(self.budget, USUAL_ATTACK)
        first = {one.row.slug: self._folders(one)[0] for one in searched if runs[one.row.slug]}
        beside = {slug: measured(run, options, images) for slug, run in first.items()}
        shown = single_images(load_data(self.rows[0].recipe.data).test, "timings")
        milliseconds = times(self.folder / f"times-{self.rows[0].recipe.data.name}.json", first, shown) if first else {}
        return [
            Measured(
                row=cast(Entrant, one.row),
                head=self.field.changed.head if self.field.changed else "",
                rate=one.rate,
                tried={f"{rate:g}": run.error for rate, run in one.tried.items()},
                runs=runs[one.row.slug],
                changed=changed[one.row.slug],
                beside=beside.get(one.row.slug, {}),
                milliseconds=milliseconds.get(one.row.slug),
                diverged=tuple(seed for seed in one.by_seed if seed not in _whole(one)),
                unfinished=bool(runs[one.row.slug]) and not self.field.stops and still_learned(self._folders(one)),
            )
            for one in searched
        ]

    def _searched(self, seeds: Sequence[int]) -> list[Searched]:
        """Every row at its best rate, with every seed. Networks that stop at an error are trained again to stop there.

        Only they look at test images while they train, those of familiar elevations; no rate is chosen by that.
        """
        grid = Grid(self.folder, self.console)
        if not self.field.stops:
            return grid.search(self.rows, seeds, FACTORS)
        found = grid.search(self.rows, seeds[:1], FACTORS)
        rows = [_stopped(one, STOPS[self.budget]) for one in found]
        for one, row, by_seed in zip(found, rows, grid.validated(rows, seeds), strict=True):
            one.row, one.by_seed = row, by_seed
        return found

    def _tested(self, one: Searched) -> list[dict[str, Any]]:
        """The results of the seeds that did not diverge."""
        return [
            result_of(replace(_best(one).recipe, seed=seed), run.folder, one.row.recipe_name, self.console)
            for seed, run in _whole(one).items()
        ]

    def _changed(self, one: Searched, runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What the networks make of the changed images; nothing where there are none."""
        changed = self.field.changed
        if changed is None or not runs:
            return []
        data: DataOptions = one.row.recipe.data
        return [evaluated_on(run, "changed", lambda: changed.images(data)) for run in self._folders(one)]

    @staticmethod
    def _folders(one: Searched) -> list[Path]:
        return [run.folder for run in _whole(one).values()]


def _whole(one: Searched) -> dict[int, Validated]:
    """The runs at the best rate that did not diverge."""
    return {seed: run for seed, run in one.by_seed.items() if np.isfinite(run.error)}


def _best(one: Searched) -> Entrant:
    """The row as it was trained at its best rate."""
    return cast(Entrant, at_rate(one.row, one.rate))


def _stopped(one: Searched, error: float) -> Entrant:
    """The row at its best rate, to be trained until familiar test images have this error."""
    row = _best(one)
    return replace(row, slug=f"{row.slug}-stopped", recipe=replace(row.recipe, stop_at_error=error, stop_on="test"))


def _values(found: Sequence[Measured]) -> list[dict[str, Any]]:
    """The rows of one set of images, with their ranks; networks that missed the common error have none."""
    sound = [one for one in found if one.runs]
    whole = [one for one in sound if not one.diverged]
    by_error = ranks({one.row.slug: _hits(one.runs) for one in whole if not one.stops})
    by_change = ranks({one.row.slug: _hits(one.changed, "") for one in whole if one.changed and one.reached})
    return [
        {
            "cells": [*one.row.label, *cells(one, by_error, by_change)],
            "slugs": [one.row.slug] * 2,
            "label": list(one.row.label),
            "rate": one.rate,
            "diverged_seeds": list(one.diverged),
            "validation_error_by_rate": {k: e if np.isfinite(e) else "diverged" for k, e in one.tried.items()},
            "error": sure_error(_hits(one.runs)) if one.runs else None,
            "changed_error": sure_error(_hits(one.changed, "")) if one.changed else None,
            "milliseconds": one.milliseconds,
            "beside": one.beside,
            "changed": one.changed,
            "runs": one.runs,
        }
        for one in found
    ]


def _hits(tests: Sequence[Mapping[str, Any]], key: str = "test") -> np.ndarray:
    """[seeds images]."""
    return np.stack([hits_of(test[key] if key else test) for test in tests])


def _measured(results: Results) -> str:
    """On how many images of what, with how many seeds, where."""
    runs = [run for of_row in results.values() for run in of_row]
    tested = list(dict.fromkeys(f"{run['data']}, {run['test']['images']} images" for run in runs))
    seeds = len({run["seed"] for run in runs})
    return f"Test error on {' and '.join(tested)}; {seeds} seed{'s' * (seeds != 1)}; {hardware_of(results)}."

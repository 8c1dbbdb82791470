"""The league's table: a row a network and set of images, at the best of three rates or stopped at one error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from capsella.data import load_data, single_images
from capsella.environment import environment, hardware
from capsella.evaluation import AttackOptions
from capsella.files import write_json
from capsella.grid import (
    BudgetName,
    Grid,
    Hits,
    Results,
    Validated,
    check_seeds,
    evaluated_on,
    result_of,
)
from capsella.papers.kinds.published import hardware_of, table_values
from capsella.papers.league.cells import HEADS, Gains, Measured, cells, sure_error
from capsella.papers.league.fields import FIELDS, STOPS, Entrant, Field, entrants, fields_on
from capsella.papers.league.measure import measured, speeds
from capsella.papers.league.ranks import ranks
from capsella.papers.league.search import Chosen, choose_rates, own_rate, whole
from capsella.training import RunFolder

EPSILON = 0.03
ATTACKS = {"small": (AttackOptions((EPSILON,), steps=5, restarts=1), 20)}
USUAL_ATTACK = AttackOptions((EPSILON,), steps=20, restarts=2), 200
"""How hard is attacked, and how many images."""
NOTE = (
    "Ranks hold for this length of training alone. **Alike**: the stem but for the width of its last convolution, the "
    "parameters (128,000, within 1 %), the images seen where networks do not stop at one error, and the trials. "
    "**Rates**: three, each in short trainings, a fifth of a night, of seed 0, on two splits of the training images; "
    "the middle one stays unless another errs less on both (edge: the least or the greatest of the three). No such "
    "training is a result: every seed trains anew on nearly all "
    "training images. No interval covers the choice of the rate. Networks that stop at one error have the recipe's "
    "rate, which decides how soon they are there. In this table test images choose nothing, but those of familiar "
    "elevations stop networks. **Not alike**: the layers and the loss around a routing follow the kind of its "
    "activations, so ranks are of whole networks. A gain over even is of the routing alone: points of error less than "
    "the same network, trained at the same rate, with couplings that are even and stay so; each by itself. Where "
    "networks stop at one error, gains are of the changed images. Options were not searched; those of EM and "
    "variational routing were set beforehand by training errors on smallNORB, since with their papers' own "
    "they learn slowly here. Inverted attention routes one layer after the other; cluster routing has a geometry of "
    "its own; random couplings are one draw. **Intervals**, in brackets: 95 %, over test images and seeds; over toys "
    "or other groups of images where these are known. A rank needs two seeds, none that diverged, and differences "
    "that part rows, all pairs of a set of images together (Holm 1979). Training: the last epoch's error, on changed "
    "images. **Beside**, of the first seed: how many of the test images that were attacked are right before and after "
    "PGD at ε = 0.03, without an interval; entropy of the couplings of each layer, 1 where all are even (of "
    "self-attention without its learned part); forward, loss and backward of 32 images in float32 (EM's votes as it "
    "was trained), all networks timed in turn, by C++ kernels for every routing, and by PyTorch without one; what "
    "such a step keeps for its backward pass."
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
        return folder / f"{folder.resolve().name}.json"

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


Runs = dict[int, Validated]
"""By seed."""


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
        grid = Grid(self.folder, self.console)
        chosen = self._chosen(grid)
        trained: list[Runs] = grid.validated([one.row for one in chosen], seeds)
        even = self._even(chosen, grid, seeds)
        sound = [_sound(runs) for runs in trained]
        results = [self._tested(one.row, runs) for one, runs in zip(chosen, sound, strict=True)]
        changed = self._changed(sound)
        first = {row.slug: _folders(runs)[0] for row, runs in zip(self.rows, sound, strict=True) if runs}
        options, images = ATTACKS.get(self.budget, USUAL_ATTACK)
        beside = {slug: measured(run, options, images) for slug, run in first.items()}
        data = self.rows[0].recipe.data
        shown = single_images(load_data(data).test, "timings")
        speed = speeds(self.folder / f"speed-{data.name}.json", first, shown) if first else {}
        return [
            Measured(
                row=row,
                chosen=chosen[n],
                head=self.field.changed.head if self.field.changed else "",
                runs=results[n],
                changed=changed[n],
                beside=beside.get(row.slug, {}),
                speed=speed.get(row.slug),
                diverged=tuple(seed for seed in trained[n] if seed not in sound[n]),
                train_errors=[_train_error(run) for run in _folders(sound[n])],
                even=self._tested(*even[row.slug]) if row.slug in even else (),
            )
            for n, row in enumerate(self.rows)
        ]

    def _chosen(self, grid: Grid) -> list[Chosen]:
        """Every row at its rate. Those that are compared at an equal error stop there, and none has a search."""
        if not self.field.stops:
            self.console.print("short trainings, which choose the learning rates:")
            chosen = choose_rates(self.rows, grid)
            self.console.print("trainings at those rates:")
            return chosen
        return [self._stopped(own_rate(row)) for row in self.rows]

    def _stopped(self, one: Chosen) -> Chosen:
        recipe = replace(one.row.recipe, stop_at_error=STOPS[self.budget], stop_on="test")
        return replace(one, row=replace(one.row, slug=f"{one.row.slug}-stopped", recipe=recipe))

    def _even(self, chosen: Sequence[Chosen], grid: Grid, seeds: Sequence[int]) -> dict[str, tuple[Entrant, Runs]]:
        """By the routing's row: the same with even couplings at the rate of that row, where no seed diverged.

        Where both rows chose one rate, these runs are there already. Networks that stop at one error all have one rate:
        their rows with even couplings are what they are compared with (`Gains.of`).
        """
        if self.field.stops:
            return {}
        by_slug = {row.slug: row for row in self.rows}
        evens = {
            row.slug: whole(by_slug[row.even], one.rate)
            for row, one in zip(self.rows, chosen, strict=True)
            if row.even is not None and row.even in by_slug
        }
        trained = grid.validated(list(evens.values()), seeds)
        return {
            slug: (even, runs)
            for (slug, even), runs in zip(evens.items(), trained, strict=True)
            if _sound(runs) == runs
        }

    def _tested(self, row: Entrant, runs: Runs) -> list[dict[str, Any]]:
        """The results of the seeds that did not diverge."""
        return [
            result_of(replace(row.recipe, seed=seed), run.folder, row.recipe_name, self.console)
            for seed, run in runs.items()
        ]

    def _changed(self, trained: Sequence[Runs]) -> list[list[dict[str, Any]]]:
        """What the networks of every row make of the changed images, which are loaded once; nothing where none are."""
        if (changed := self.field.changed) is None:
            return [[] for _ in trained]
        images = cache(lambda: changed.images(self.rows[0].recipe.data))
        return [[evaluated_on(run, "changed", images) for run in _folders(runs)] for runs in trained]


def _sound(runs: Runs) -> Runs:
    """Those that did not diverge."""
    return {seed: run for seed, run in runs.items() if np.isfinite(run.error)}


def _folders(runs: Runs) -> list[Path]:
    return [run.folder for run in runs.values()]


def _train_error(run: Path) -> float:
    """Of the last epoch, in per cent."""
    return float(RunFolder(run).read_metrics()["train_error"][-1])


def _values(found: Sequence[Measured]) -> list[dict[str, Any]]:
    """The rows of one set of images by what they are compared on, with their ranks.

    Those that missed the common error have none.
    """
    sound = {one.row.slug: one for one in found if one.runs and not one.diverged}
    by_error = ranks({slug: _hits(one.runs) for slug, one in sound.items() if not one.stops})
    by_change = ranks({slug: _hits(one.changed, "") for slug, one in sound.items() if one.changed and one.reached})
    order = sorted(found, key=lambda one: sure_error(Hits.of(one.compared))["error_percent"] if one.runs else np.inf)
    return [_row(one, Gains.of(one, found), by_error, by_change) for one in order]


def _row(one: Measured, gains: Gains, by_error: Mapping[str, str], by_change: Mapping[str, str]) -> dict[str, Any]:
    """As the JSON holds it."""
    tried = {
        f"{rate:g}": [error if np.isfinite(error) else "diverged" for error in errors]
        for rate, errors in one.chosen.tried.items()
    }
    return {
        "cells": [*one.row.label, *cells(one, gains, by_error, by_change)],
        "slugs": [one.row.slug] * 2,
        "label": list(one.row.label),
        "rate": one.chosen.rate,
        "diverged_seeds": list(one.diverged),
        "validation_errors_by_rate": tried,
        "error": sure_error(_hits(one.runs)) if one.runs else None,
        "rank": by_error.get(one.row.slug),
        "train_errors_percent": one.train_errors,
        "gain_over_even": gains.over_even,
        "gain_over_cnn": gains.over_cnn,
        "changed_error": sure_error(_hits(one.changed, "")) if one.changed else None,
        "changed_rank": by_change.get(one.row.slug),
        "milliseconds": one.speed.milliseconds if one.speed else None,
        "training_images_per_second": one.speed.per_second if one.speed else None,
        "beside": one.beside,
        "changed": one.changed,
        "runs": one.runs,
        "even_runs": list(one.even),
    }


def _hits(tests: Sequence[Mapping[str, Any]], key: str = "test") -> Hits:
    return Hits.of([test[key] if key else test for test in tests])


def _measured(results: Results) -> str:
    """On how many images of what, with how many seeds, where."""
    runs = [run for of_row in results.values() for run in of_row]
    tested = list(dict.fromkeys(f"{run['data']}, {run['test']['images']} images" for run in runs))
    seeds = len({run["seed"] for run in runs})
    trained, timed = hardware_of(results), hardware(environment())
    here = "" if timed == trained else f" Times are of {timed}."
    return f"Test error on {' and '.join(tested)}; {seeds} seed{'s' * (seeds != 1)}; {trained}.{here}"

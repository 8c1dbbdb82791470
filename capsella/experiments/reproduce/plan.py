"""The plan of a reproduction: the tables and figures whose images are available, and their trainings by time."""

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from capsella.data import DataOptions, load_once
from capsella.environment import environment
from capsella.errors import CapsellaError, pluralize
from capsella.experiments import Results, Row, Task, common_seeds, format_duration
from capsella.files import read_json, write_json
from capsella.papers.budget import BudgetName
from capsella.papers.published import CLAIMS, FIGURES, REPEATED, STAND_INS, TABLES, paper_of
from capsella.papers.table_types import Published
from capsella.training import Recipe, RunFolder
from capsella.training.loop import StepTime, time_steps

# Fields of the data that a step's time depends on, and facts of the machine.
STEP_FIELDS = ("name", "of", "path", "domains", "size", "channels", "camera", "viewpoints", "first_classes", "cells")
MACHINE = ("cpu", "gpu", "threads", "torch", "capsella")


@dataclass(frozen=True, eq=False)
class Entry:
    """A table or figure to reproduce.

    name: its registered name. published: its definition, on the available images. budget: the budget of its trainings.
    rows: rows to train for it. folder: the folder of its runs. source: the images used in place of the paper's, if any.
    """

    name: str
    published: Published
    budget: BudgetName
    rows: tuple[Row, ...]
    folder: Path
    source: str | None = None

    @property
    def is_figure(self) -> bool:
        """True for a figure."""
        return self.name in FIGURES

    @property
    def numbers(self) -> Path:
        """The JSON file with the numbers of the table or figure."""
        return self.published.path(self.folder).with_suffix(".json")

    def pictures(self, values: Mapping[str, Any]) -> list[Path]:
        """Return a figure's PNG files, by the contents of its JSON; none for a table."""
        if not self.is_figure or not values:
            return []
        path = self.published.path(self.folder)
        names = [figure["picture"] for figure in values.get("figures", [])] or [path.name]
        return [path.parent / name for name in names]

    def command(self, seeds: int) -> str:
        """Return the command that makes only this table or figure."""
        words = f"capsella papers run {self.name} --budget {self.budget}"
        words += f" --seeds {seeds}" if self.rows else ""
        words += f" --data {self.source}" if self.source else ""
        return f"{words} --out {shlex.quote(str(self.folder))}"

    def results(self, seeds: int) -> Results:
        """Return the results of the tested runs, of common seeds if the entry requires that."""
        results = {row.slug: self.tested(row, seeds) for row in self.rows}
        return common_seeds(results) if self.published.requires_common_seeds else results

    def tested(self, row: Row, seeds: int) -> list[dict[str, Any]]:
        """Return the results of a row's first `seeds` seeds, as far as they are tested."""
        runs = [RunFolder(row.folder(self.folder, seed)) for seed in range(seeds)]
        return [run.read("result") for run in runs if run.is_tested]

    @property
    def compared(self) -> set[str]:
        """Slugs of the rows that a claim compares, which take several seeds."""
        if self.name in REPEATED:
            return {row.slug for row in self.rows}
        return {slug for claim in CLAIMS if claim.where == self.name for slug in claim.slugs}


class Measurements:
    """Numbers of images and times of training steps, measured once and cached in a folder.

    They are measured again if the file is damaged, and times also on another machine.
    """

    def __init__(self, folder: Path, measure: Callable[[Recipe], StepTime] = time_steps) -> None:
        made_with = environment()
        self.path, self.measure = folder / "measured.json", measure
        self.machine = ", ".join(str(made_with[name]) for name in MACHINE)
        self._present: set[str] = set()
        self._missing: dict[str, Exception] = {}
        try:
            self._values: dict[str, Any] = dict(read_json(self.path))
        except (CapsellaError, TypeError, ValueError):
            self._values = {}

    def check(self, published: Published) -> None:
        """Check that the images of a table or figure are available.

        Raises:
            CapsellaError: images are missing or broken.
        """
        for data in published.images():
            self.counts(data)

    def counts(self, data: DataOptions) -> tuple[int, int, int]:
        """Return the numbers of training, validation and test images.

        Raises:
            CapsellaError: images are missing or broken.
        """
        key = json.dumps(["images", data.to_dict()], default=str, sort_keys=True)
        if key not in self._values or data.source not in self._present:
            if (known := self._missing.get(data.source, self._missing.get(key))) is not None:
                raise known  # nobody waits twice for a failing download
            try:
                self._values[key] = [len(images) for images in load_once(data).named().values()]
            except (CapsellaError, OSError) as error:
                # If the source is there, only these options do not fit it.
                self._missing[key if data.source in self._present else data.source] = error
                raise
            self._present.add(data.source)
            write_json(self.path, self._values)
        training, validation, test = self._values[key]
        return training, validation, test

    def seconds(self, recipe: Recipe) -> float:
        """Estimate the seconds of a whole training with its validations and its test.

        Raises:
            CapsellaError: images are missing or broken.
        """
        training, validation, test = self.counts(recipe.data)
        others = {field.name: field.default for field in fields(recipe.data) if field.name not in STEP_FIELDS}
        one_epoch = replace(recipe, data=recipe.data.replace(**others), seed=0, epochs=1, epoch_images=None)
        values = replace(one_epoch, stop_at_error=None).to_dict()
        values["optimizer"] = {"ema": recipe.optimizer.ema is not None}
        key = json.dumps(["seconds", self.machine, values], default=str, sort_keys=True)
        if key not in self._values:
            self._values[key] = list(self.measure(recipe))
            write_json(self.path, self._values)
        step, image = self._values[key]
        steps = math.ceil((recipe.epoch_images or training) / recipe.batch_size)
        seen = validation + (test if recipe.stop_on == "test" and recipe.stop_at_error is not None else 0)
        return float(recipe.epochs * (steps * step + seen * image) + test * image)


def find_entries(
    paper: str | None, budget: BudgetName, folder: Path, measured: Measurements, *, stand_ins: bool
) -> tuple[list[Entry], dict[str, str]]:
    """Return every table and figure whose images are available, and why each of the others is left out.

    Args:
        paper: e.g. "sabour2017"; None takes all, and "findings" those that a claim needs.
        budget: budget of the trainings.
        folder: the parent of the folders of each family of runs.
        measured: cached numbers of images.
        stand_ins: use the images of `STAND_INS` if the paper's are not available.
    """
    entries, missing = [], {}
    claimed = {claim.where for claim in CLAIMS}
    for name, make in {**TABLES, **FIGURES}.items():
        if paper in (None, paper_of(name)) or (paper == "findings" and name in claimed):
            try:
                entries.append(_entry(name, make(budget), budget, folder, measured, stand_ins))
            except (CapsellaError, OSError) as error:
                missing[name] = str(error)
    return entries, missing


def _entry(
    name: str, published: Published, budget: BudgetName, folder: Path, measured: Measurements, stand_ins: bool
) -> Entry:
    source = None
    try:
        measured.check(published)
    except (CapsellaError, OSError) as error:
        if name not in STAND_INS:
            raise
        if not stand_ins:
            raise CapsellaError(f"{error}; --stand-ins takes similar images instead") from error
        source = STAND_INS[name]
        published = published.on(source)
        measured.check(published)
    runs = folder / "-".join([published.family or name, *([source] if source else [])])
    return Entry(name, published, budget, tuple(published.rows_to_train()), runs, source)


@dataclass(frozen=True, eq=False)
class Training:
    """One training. entries: names of the tables and figures that need it. seconds: its estimated duration."""

    task: Task
    entries: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def remaining(self) -> float:
        """The estimated seconds that are left."""
        done = 1.0 if self.task.is_finished else self.task.files.progress(self.task.recipe.epochs)
        return (1 - done) * self.seconds

    def __str__(self) -> str:
        return f"{self.task.cost}, seed {self.task.recipe.seed}"


@dataclass(frozen=True)
class Plan:
    """The trainings to run in order, those that do not fit into `hours`, and those that are finished (`over`)."""

    runs: tuple[Training, ...]
    left_out: tuple[Training, ...]
    over: tuple[Training, ...]
    hours: float | None = None

    @property
    def seconds(self) -> float:
        """The estimated seconds that all runs still take."""
        return sum(training.remaining for training in self.runs)


def trainings_of(entries: Sequence[Entry], seeds: int, seconds: Callable[[Recipe], float]) -> list[Training]:
    """Return every run of the entries once: `seeds` of rows that a claim compares, one of the others.

    Raises:
        CapsellaError: a run folder holds a run of another recipe.
    """
    users: dict[tuple[Path, str], list[Entry]] = {}
    rows: dict[tuple[Path, str], Row] = {}
    for entry in entries:
        for row in entry.rows:
            users.setdefault((entry.folder, row.slug), []).append(entry)
            rows.setdefault((entry.folder, row.slug), replace(row, cost=f"{entry.folder.name}/{row.slug}"))
    trainings = []
    for (folder, slug), of_row in users.items():
        row, names = rows[folder, slug], tuple(entry.name for entry in of_row)
        tasks = [row.task(folder, seed) for seed in range(seeds)]
        for task in tasks:
            task.files.check_recipe(task.recipe)
        whole = seconds(row.recipe)
        compared = any(slug in entry.compared for entry in of_row)
        trainings += [Training(task, names, whole) for task in (tasks if compared else tasks[:1])]
    return trainings


def make_plan(trainings: Sequence[Training], hours: float | None) -> Plan:
    """Order trainings: every row with its first seed, the quickest first; then all with the second, and so on.

    A run that does not fit into the hours is left out; a later, quicker one may still fit.
    """
    runs: list[Training] = []
    left_out: list[Training] = []
    left = math.inf if hours is None else 3600 * hours
    todo = [(run.task.recipe.seed, run.remaining, run) for run in trainings if not run.task.is_finished]
    for _, remaining, training in sorted(todo, key=lambda item: item[:2]):
        (runs if remaining <= left else left_out).append(training)
        left -= remaining if remaining <= left else 0.0
    return Plan(tuple(runs), tuple(left_out), tuple(run for run in trainings if run.task.is_finished), hours)


def plan_summary(plan: Plan, entries: Sequence[Entry]) -> Group:
    """Return a row for each table or figure, and the times; a shared run counts in the first that needs it."""
    table = Table("table or figure")
    for head in ("finished", "to come", "left out", "time"):
        table.add_column(head, justify="right")
    for entry in entries:
        groups = (plan.over, plan.runs, plan.left_out)
        counts = [str(sum(run.entries[0] == entry.name for run in runs)) for runs in groups]
        seconds = sum(run.remaining for run in plan.runs if run.entries[0] == entry.name)
        table.add_row(entry.name, *counts, format_duration(seconds) if seconds else "–")
    limit = "" if plan.hours is None else f" of {plan.hours:g} h"
    lines = [
        f"{pluralize(len(plan.runs), 'run')} to come, {len(plan.over)} finished. "
        f"Planned: {format_duration(plan.seconds)}{limit}, from a few steps of each network here. "
        "The first seed of every row comes before any second seed.",
        *(f"left out, {format_duration(run.remaining)}: {run}" for run in plan.left_out),
    ]
    return Group(table, *map(Text, lines))


def left_out(missing: Mapping[str, str]) -> list[str]:
    """Return a line for each reason, with all tables and figures that it concerns."""
    names: dict[str, list[str]] = {}
    for name, why in missing.items():
        names.setdefault(why, []).append(name)
    return [f"left out {', '.join(group)}: {why}" for why, group in names.items()]

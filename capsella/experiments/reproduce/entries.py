"""The tables and figures to reproduce: those whose images, or similar ones, are available."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from capsella.data import load_once
from capsella.errors import CapsellaError
from capsella.experiments import Results, Row, Task, common_seeds, format_duration
from capsella.papers.budget import BudgetName
from capsella.papers.published import CLAIMS, FIGURES, REPEATED, STAND_INS, TABLES, paper_of
from capsella.papers.table_types import Published
from capsella.training import Recipe
from capsella.training.loop import time_steps


@dataclass(frozen=True, eq=False)
class Entry:
    """A table or figure to reproduce.

    name: its registered name. published: its definition, on the available images. budget: the budget of its trainings.
    rows: rows to train for it. seeds: number of seeds of each row. folder: the folder of its runs. source: the images
    used in place of the paper's, if any.
    """

    name: str
    published: Published
    budget: BudgetName
    rows: tuple[Row, ...]
    seeds: int
    folder: Path
    source: str | None = None

    @property
    def numbers(self) -> Path:
        """The JSON file with the numbers of the table or figure."""
        return self.published.path(self.folder).with_suffix(".json")

    def pictures(self, values: Mapping[str, Any]) -> list[Path]:
        """Return a figure's PNG files, by the contents of its JSON; none for a table."""
        if self.name not in FIGURES or not values:
            return []
        path = self.published.path(self.folder)
        names = [figure["picture"] for figure in values.get("figures", [])] or [path.name]
        return [path.parent / name for name in names]

    @property
    def command(self) -> str:
        """The command that makes only this table or figure."""
        words = f"capsella papers run {self.name} --budget {self.budget}"
        words += f" --seeds {self.seeds}" if self.rows else ""
        words += f" --data {self.source}" if self.source else ""
        return f"{words} --out {shlex.quote(str(self.folder))}"

    def results(self) -> Results:
        """Return the results of the tested runs, of common seeds if the entry requires that."""
        results = {
            row.slug: [result for task in self.tasks(row) if (result := task.result()) is not None] for row in self.rows
        }
        return common_seeds(results) if self.published.requires_common_seeds else results

    def tasks(self, row: Row) -> list[Task]:
        """Return the trainings of a row."""
        return [row.task(self.folder, seed) for seed in range(self.seeds)]


def find_entries(
    paper: str | None, budget: BudgetName, seeds: int, folder: Path, *, stand_ins: bool
) -> tuple[list[Entry], dict[str, str]]:
    """Return every table and figure whose images are available, and why each of the others is left out.

    Args:
        paper: e.g. "sabour2017"; None takes all, and "findings" those that a claim needs.
        budget: budget of the trainings.
        seeds: number of seeds of tables that a claim needs; the others have one.
        folder: the parent of the folders of each family of runs.
        stand_ins: use the images of `STAND_INS` if the paper's are not available.
    """
    entries, missing = [], {}
    claimed = {claim.where for claim in CLAIMS}
    for name, make in {**TABLES, **FIGURES}.items():
        if paper not in (None, paper_of(name)) and not (paper == "findings" and name in claimed):
            continue
        published, source = make(budget), None
        problem = _missing_images(published)
        if problem and stand_ins and name in STAND_INS:
            source = STAND_INS[name]
            published = published.on(source)
            problem = _missing_images(published)
        if problem:
            has_similar = name in STAND_INS and not stand_ins
            missing[name] = f"{problem}; --stand-ins takes similar images instead" if has_similar else problem
            continue
        rows = tuple(published.rows_to_train())
        number = seeds if rows and (name in claimed or name in REPEATED) else 1
        runs = folder / "-".join([published.family or name, *([source] if source else [])])
        entries.append(Entry(name, published, budget, rows, number, runs, source))
    return entries, missing


def _missing_images(published: Published) -> str:
    """Load all images of a table or figure; return why some are not available, or an empty string."""
    try:
        for data in published.images():
            load_once(data)
    except (CapsellaError, OSError) as error:
        return str(error)
    return ""


def missing_lines(missing: Mapping[str, str]) -> list[str]:
    """Return a line for each reason, with all tables and figures that it concerns."""
    names: dict[str, list[str]] = {}
    for name, why in missing.items():
        names.setdefault(why, []).append(name)
    return [f"left out {', '.join(group)}: {why}" for why, group in names.items()]


def plan_summary(entries: Sequence[Entry]) -> Group:
    """Return a row for each table or figure: its runs, and their time from a few steps of each network here.

    A run that several tables share counts in the first.
    """
    table, total, counted = Table("table or figure"), 0.0, set[Path]()
    for head in ("finished", "to come", "time"):
        table.add_column(head, justify="right")
    for entry in entries:
        finished, to_come, seconds = 0, 0, 0.0
        for row in entry.rows:
            tasks = [task for task in entry.tasks(row) if task.folder not in counted]
            counted |= {task.folder for task in tasks}
            left = [task for task in tasks if not task.is_finished]
            finished, to_come = finished + len(tasks) - len(left), to_come + len(left)
            seconds += len(left) * estimate_seconds(row.recipe) if left else 0.0
        table.add_row(entry.name, f"{finished}", f"{to_come}", format_duration(seconds) if seconds else "–")
        total += seconds
    return Group(table, Text(f"About {format_duration(total)} in all."))


def estimate_seconds(recipe: Recipe) -> float:
    """Estimate the seconds of a whole training with its validations and its test, from a few steps."""
    splits = load_once(recipe.data)
    time = time_steps(recipe, seconds=1.0, splits=splits)
    steps = math.ceil((recipe.epoch_images or len(splits.train)) / recipe.batch_size)
    seen = len(splits.validation)
    if recipe.stop_at_error is not None and recipe.stop_on == "test":
        seen += len(splits.test)
    return float(recipe.epochs * (steps * time.step + seen * time.image) + len(splits.test) * time.image)

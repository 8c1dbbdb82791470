"""Run a reproduction: train one run after another, and write its tables and figures after each."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from capsella import ray_cluster
from capsella.errors import CapsellaError, NoMemoryError
from capsella.experiments import Stopwatch, Task, compute_tasks, format_duration
from capsella.experiments.reproduce.findings import Finding, judge
from capsella.experiments.reproduce.page import write_page
from capsella.experiments.reproduce.plan import Entry, Plan, Training
from capsella.files import alone_in, read_json


@dataclass
class Reproduction:
    """A reproduction in `folder`; interrupted runs continue from their checkpoints.

    entries: tables and figures to make. missing: why others are left out, by name. seeds: largest number of seeds of a
    row. command: the command that was called. began: start, by `time.monotonic`. problems: why an entry could not be
    made, by name. late: runs that no longer fit because others took longer than planned. too_large: runs that ran out
    of memory.
    """

    folder: Path
    entries: Sequence[Entry]
    missing: Mapping[str, str]
    plan: Plan
    seeds: int
    command: str
    console: Console
    began: float = field(default_factory=time.monotonic)
    problems: dict[str, str] = field(default_factory=dict)
    late: list[Training] = field(default_factory=list)
    too_large: list[Training] = field(default_factory=list)
    _begun: Training | None = None

    def run(self) -> Path:
        """Make what needs no training, then train run after run; return the path of the page.

        Raises:
            CapsellaError: another process uses the folder, a run folder holds a run of another recipe, or the disk is
                full.
        """
        with alone_in(self.folder):
            for entry in self.entries:
                self.make(entry)
            page = self.write()
            stopwatch = Stopwatch({training.task.cost: training.seconds for training in self.plan.runs})
            stopwatch.plan(training.task.cost for training in self.plan.runs)
            users = {training.task.folder: training.entries for training in self.plan.runs}
            for task in self._trained(stopwatch):
                for entry in self.entries:
                    if entry.name in users[task.folder]:
                        self.make(entry, again=True)
                page = self.write()
        return page

    def _trained(self, stopwatch: Stopwatch) -> Iterator[Task]:
        """Yield each finished run; record a run that is out of memory, and continue with the next."""
        due = self._due(stopwatch)
        while True:
            try:
                yield from compute_tasks(due, self.console, stopwatch)
                return
            except NoMemoryError as error:
                # On a cluster, the other runs were stopped, too.
                if self._begun is None or ray_cluster.current_cluster() is not None:
                    raise
                self.too_large.append(self._begun)
                stopwatch.cancel(self._begun.task.cost)
                self.console.print(f"not trained: {error}", markup=False, soft_wrap=True)

    def _due(self, stopwatch: Stopwatch) -> Iterator[Task]:
        """Yield run after run, except those that would end too late."""
        hours = self.plan.hours
        end = math.inf if hours is None else self.began + 3600 * hours
        for training in self.plan.runs:
            cost, expected, left = training.task.cost, training.remaining, end - time.monotonic()
            if cost in stopwatch.taken and training.seconds:  # measured times are better than the estimate
                expected *= stopwatch.seconds_by_cost()[cost] / training.seconds
            if expected <= left:
                self._begun = training
                yield training.task
                continue
            stopwatch.cancel(cost)
            self.late.append(training)
            text = f"left out, about {format_duration(expected)} of {format_duration(max(0.0, left))}: {training}"
            self.console.print(text, markup=False, soft_wrap=True)

    def make(self, entry: Entry, *, again: bool = False) -> None:
        """Write a table or figure from the finished runs; record the problem if it cannot be made.

        again: write it even if it is newer than its runs.
        """
        results = entry.results(self.seeds)
        if (entry.rows and not any(results.values())) or (self._is_made(entry) and not again):
            return
        try:
            entry.published.build(results, entry.folder, entry.command(self.seeds), self.console)
            self.problems.pop(entry.name, None)
        except (CapsellaError, ValueError) as error:
            self.problems[entry.name] = str(error)
            self.console.print(f"could not make {entry.name}: {error}", markup=False, soft_wrap=True)

    def _is_made(self, entry: Entry) -> bool:
        """Return whether an entry is newer than all of its runs; an earlier call may have ended before writing it."""
        try:
            values = read_json(entry.numbers)
        except CapsellaError:
            return False
        if not all(picture.exists() for picture in entry.pictures(values)):
            return False
        runs = [row.folder(entry.folder, seed) / "result.json" for row in entry.rows for seed in range(self.seeds)]
        return all(run.stat().st_mtime <= entry.numbers.stat().st_mtime for run in runs if run.exists())

    def findings(self) -> list[Finding]:
        """Judge every claim of the papers on the page."""
        return judge(self.entries, self.missing, self.seeds)

    def write(self) -> Path:
        """Write report.html and findings.json; return the path of the page."""
        return write_page(self)

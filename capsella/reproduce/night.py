"""The runs of a plan one after another, and after each what can be made of them."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from capsella import ray_cluster
from capsella.errors import CapsellaError, NoMemoryError
from capsella.experiments import Stopwatch, Task, compute_tasks, format_duration
from capsella.files import alone_in
from capsella.reproduce.entries import Entry, remembered
from capsella.reproduce.plan import Plan, Planned


@dataclass
class Night:
    """Trains a plan in `folder`. What was interrupted goes on from its checkpoint, what is finished is read.

    entries: that are made of the runs. seeds: of each row, at most. problems: why an entry could not be made, by name.
    late: runs that no longer fit, because others took longer than planned. too_large: runs for which the memory is not
    enough. now: the clock, in seconds.
    """

    folder: Path
    entries: Sequence[Entry]
    seeds: int
    console: Console
    now: Callable[[], float] = time.monotonic
    problems: dict[str, str] = field(default_factory=dict)
    late: list[Planned] = field(default_factory=list)
    too_large: list[Planned] = field(default_factory=list)
    began: float | None = None
    _begun: Planned | None = None

    def run(self, plan: Plan, after: Callable[[], object]) -> None:
        """Make what needs no training, then train run after run.

        Args:
            plan: what comes in which order.
            after: called after every run, as to write the page.

        Raises:
            CapsellaError: another process is at work in the folder; a run of another recipe is in the way; the disk is
                full.
        """
        with alone_in(self.folder):
            for entry in self.entries:
                self.make(entry)
            after()
            every = (*plan.runs, *plan.left_out)
            clock = Stopwatch(estimates={planned.job.row.cost: planned.whole for planned in every})
            clock.plan(planned.job.row.cost for planned in plan.runs)
            entries = {planned.job.run.path: planned.job.entries for planned in every}
            for task in self._trained(self._due(plan, clock), clock):
                for entry in self.entries:
                    if entry.name in entries[task.folder]:
                        self.make(entry, again=True)
                after()

    def _trained(self, due: Iterator[Task], clock: Stopwatch) -> Iterator[Task]:
        """Each run that is over; one for which the memory is not enough is noted, and the next begins."""
        while True:
            try:
                yield from compute_tasks(due, self.console, clock)
                return
            except NoMemoryError as error:
                if self._begun is None or ray_cluster.place() is not None:  # the others that had begun have ended, too
                    raise
                self.too_large.append(self._begun)
                clock.cancel(self._begun.job.row.cost)
                self.console.print(f"not trained: {error}", markup=False, soft_wrap=True)

    def _due(self, plan: Plan, clock: Stopwatch) -> Iterator[Task]:
        """Run after run, but those that would end too late; asked for the next when there is time for it.

        One that was left out is tried where others were quicker than planned.
        """
        began = self.now() if self.began is None else self.began
        end = float("inf") if plan.hours is None else began + 3600 * plan.hours
        for planned in (*plan.runs, *plan.left_out):
            job, was_left_out = planned.job, planned in plan.left_out
            cost = job.row.cost
            whole = clock.seconds_by_cost()[cost] if cost in clock.taken or was_left_out else planned.whole
            expected = planned.left * whole
            fits = self.now() + expected <= end
            if fits and was_left_out:
                clock.left[cost] += 1
            if fits:
                self._begun = planned
                yield job.row.task(job.folder, job.seed)
            elif not was_left_out:
                clock.cancel(cost)
                self.late.append(planned)
                left = format_duration(max(0.0, end - self.now()))
                text = f"left out, about {format_duration(expected)} of {left}: {job}"
                self.console.print(text, markup=False, soft_wrap=True)

    def _is_made(self, entry: Entry) -> bool:
        """Whether it was written after every run of it, of as many seeds: a call may have ended between the two."""
        if not entry.numbers.exists():
            return False
        values = remembered(entry.numbers)
        made_by = values.get("command")
        if not values or not all(picture.exists() for picture in entry.pictures(values)):
            return False
        if made_by is not None and _without_folder(made_by) != _without_folder(entry.command(self.seeds)):
            return False
        runs = [row.folder(entry.folder, seed) / "result.json" for row in entry.rows for seed in range(self.seeds)]
        return all(run.stat().st_mtime <= entry.numbers.stat().st_mtime for run in runs if run.exists())

    def make(self, entry: Entry, *, again: bool = False) -> None:
        """Write a table or figure of the runs that are there; what goes wrong is kept as its problem.

        again: also where it has been written since.
        """
        results = entry.results(self.seeds)
        if (entry.rows and not any(results.values())) or (self._is_made(entry) and not again):
            return
        try:
            entry.published.build(results, entry.folder, entry.command(self.seeds), self.console)
            self.problems.pop(entry.name, None)
        except (CapsellaError, ValueError) as error:
            self.problems[entry.name] = str(error)
            self.console.print(f"{entry.name} is not made: {error}", markup=False, soft_wrap=True)


def _without_folder(command: str) -> str:
    """A folder that was moved holds the same."""
    return command.partition(" --out ")[0]

"""Which runs come when, and which do not fit into the time: cheapest information first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from capsella.reproduce.jobs import Job


class Planned(NamedTuple):
    """A run, the seconds of the whole of it, and the share of it that is left."""

    job: Job
    whole: float
    left: float

    @property
    def seconds(self) -> float:
        """That are left of it."""
        return self.left * self.whole


@dataclass(frozen=True)
class Plan:
    """runs: in the order in which they come. left_out: that do not fit into the hours. over: finished before."""

    runs: tuple[Planned, ...]
    left_out: tuple[Planned, ...]
    over: int
    hours: float | None

    @property
    def seconds(self) -> float:
        """Of all runs that come."""
        return sum(planned.seconds for planned in self.runs)


def make_plan(jobs: Sequence[Job], seconds: Callable[[Job], float], hours: float | None) -> Plan:
    """Every row with its first seed, the quickest first; then all with the second, and so on.

    A run that does not fit into what is left of the hours is left out; a later, quicker one may still fit.

    Args:
        jobs: all runs, those that are over among them.
        seconds: of a whole run.
        hours: None sets no limit.
    """
    todo = [Planned(job, seconds(job), 1 - job.progress) for job in jobs if not job.is_over]
    todo.sort(key=lambda planned: (planned.job.seed, planned.seconds))
    runs: list[Planned] = []
    left_out: list[Planned] = []
    left = float("inf") if hours is None else 3600 * hours
    for planned in todo:
        if planned.seconds <= left:
            runs.append(planned)
            left -= planned.seconds
        else:
            left_out.append(planned)
    return Plan(tuple(runs), tuple(left_out), len(jobs) - len(todo), hours)

"""How long the runs that are left will take."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

TRUST = 0.1
"""What an estimate weighs against measurements, as a share of the whole: a first run that is short says little."""


@dataclass
class Clock:
    """Counts runs, and tells the time that is left from the seconds of those that are finished.

    Runs of the same `cost`, a name, are expected to take equally long. estimates: seconds by cost, where there are any
    before the first run; the finished runs correct them.

    >>> clock = Clock()
    >>> clock.plan(["a", "a", "a", "b"])
    >>> clock.finish("a", 14.0)
    >>> clock.seconds_left()
    42.0
    >>> clock.line("the last a")
    'run 2 of 4: the last a; about 42 s left'
    >>> clock.line("the last a", "a", 0.5)
    'run 2 of 4: the last a; about 35 s left'
    """

    estimates: Mapping[str, float] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)
    taken: dict[str, list[float]] = field(default_factory=dict)
    done: int = 0

    def plan(self, costs: Iterable[str]) -> None:
        """Runs to come. Those of a cost that were planned before are not counted twice."""
        self.left |= Counter(costs)

    def finish(self, cost: str, seconds: float | None = None) -> None:
        """One planned run is over, in so many seconds; None where it was finished before."""
        self.left[cost] -= 1
        self.done += 1
        if seconds is not None:
            self.remember(cost, seconds)

    def remember(self, cost: str, seconds: float) -> None:
        """A run of that cost took so long."""
        self.taken.setdefault(cost, []).append(seconds)

    def leave_out(self, cost: str) -> None:
        """One planned run is not to come."""
        self.left[cost] -= 1

    def known(self) -> dict[str, float]:
        """Seconds of a run by cost: of those that are finished, and what was estimated of the others, corrected."""
        known = {cost: sum(seconds) / len(seconds) for cost, seconds in self.taken.items()}
        return known | {cost: self._pace() * self.estimates[cost] for cost in self.estimates if cost not in known}

    def seconds_left(self, begun: str = "", share: float = 0.0) -> float | None:
        """For all planned runs; None where nothing is known. An unknown cost takes the mean of the others.

        begun, share: the cost of one that goes on, and how much of it is done.
        """
        known = self.known()
        if not known:
            return None
        usual = sum(known.values()) / len(known)
        left = {cost: float(number) for cost, number in self.left.items()}
        left[begun] = left.get(begun, share) - share
        return sum(number * known.get(cost, usual) for cost, number in left.items())

    def line(self, what: str, begun: str = "", share: float = 0.0) -> str:
        """Which run begins, or goes on, of how many, and the time left; begun, share: as for `seconds_left`."""
        seconds = self.seconds_left(begun, share)
        left = "" if seconds is None else f"; about {duration(seconds)} left"
        return f"run {self.done + 1} of {self.done + self.left.total()}: {what}{left}"

    def _pace(self) -> float:
        """How much longer the finished runs took than was estimated."""
        estimated = sum(len(seconds) * self.estimates.get(cost, 0.0) for cost, seconds in self.taken.items())
        measured = sum(sum(seconds) for cost, seconds in self.taken.items() if cost in self.estimates)
        whole = estimated + sum(number * self.estimates.get(cost, 0.0) for cost, number in self.left.items())
        trust = TRUST * whole
        return (measured + trust) / (estimated + trust) if whole else 1.0


def duration(seconds: float) -> str:
    """Hours and minutes, or seconds where it is less than two minutes.

    >>> duration(45), duration(600), duration(9000)
    ('45 s', '10 min', '2 h 30 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"

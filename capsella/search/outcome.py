"""What a study found: its finalists over all seeds, the front, and whether one of them beats the recipe."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import scipy

from capsella.evaluation import over_seeds
from capsella.evaluation.wilson import CONFIDENCE
from capsella.search.front import front, is_better
from capsella.search.schedule import BASE, Record, Rules, finalists
from capsella.search.space import Label

FIRST_SEED = 0
"""The seed that candidates are chosen by."""


@dataclass(frozen=True)
class Finalist:
    """A candidate that was trained to the end. by_seed: its errors on the validation images; costs: the other
    objectives, by name.
    """

    candidate: int
    point: Mapping[str, Label]
    by_seed: Mapping[int, float]
    costs: Mapping[str, float]

    @property
    def errors(self) -> tuple[float, ...]:
        """Of each seed."""
        return tuple(self.by_seed.values())

    def with_seeds(self, seeds: Collection[int]) -> "Finalist":
        """With the errors of these seeds alone, where it has them."""
        return replace(self, by_seed={seed: error for seed, error in self.by_seed.items() if seed in seeds})

    @property
    def error(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.errors)

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds; 0 of one."""
        return statistics.stdev(self.errors) if len(self.errors) > 1 else 0.0

    @property
    def error_text(self) -> str:
        """The mean error for people, with its spread where there are several seeds."""
        return over_seeds(self.errors)

    @property
    def cost_texts(self) -> list[str]:
        """The other objectives for people."""
        return [f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}" for value in self.costs.values()]

    @property
    def name(self) -> str:
        """For people."""
        return "the recipe" if self.candidate == BASE else f"candidate {self.candidate}"


@dataclass(frozen=True)
class Outcome:
    """What a study found.

    objectives, rules, records, points: of the study. finalists: the best first, with the errors of the most seeds that
    two of them have both. over: which limit the recipe is over, which is trained all the same, or nothing.
    """

    objectives: tuple[str, ...]
    rules: Rules
    records: Sequence[Record]
    points: Mapping[int, Mapping[str, Label]]
    finalists: tuple[Finalist, ...]
    over: str = ""

    @classmethod
    def of(
        cls,
        objectives: Sequence[str],
        rules: Rules,
        records: Sequence[Record],
        points: Mapping[int, Mapping[str, Label]],
        over: str = "",
    ) -> "Outcome":
        """From the trials of a study, finished or not."""
        found = [_finalist(number, objectives, rules, records, points) for number in finalists(records, rules)]
        pairs = combinations([one.by_seed.keys() for one in found], 2)
        seeds = max((one & other for one, other in pairs), key=len, default={0, *range(rules.seeds)})
        found = [one.with_seeds(seeds) for one in found]
        found.sort(key=lambda one: (len(one.errors) < len(seeds), one.error, *one.costs.values()))
        return cls(tuple(objectives), rules, records, points, tuple(found), over)

    @property
    def allowed(self) -> tuple[Finalist, ...]:
        """The finalists within the limits."""
        return tuple(one for one in self.finalists if not (self.over and one.candidate == BASE))

    @property
    def whole(self) -> tuple[Finalist, ...]:
        """The finalists with as many seeds as any has."""
        most = max((len(one.errors) for one in self.finalists), default=0)
        return tuple(one for one in self.finalists if len(one.errors) == most)

    @property
    def winner(self) -> Finalist | None:
        """The lowest error among those with all seeds, within the limits; None where none was trained to the end."""
        return self.allowed[0] if self.allowed else None

    @property
    def base(self) -> Finalist | None:
        """The recipe itself."""
        return next((one for one in self.finalists if one.candidate == BASE), None)

    @property
    def front(self) -> tuple[Finalist, ...]:
        """The finalists within the limits that no other one is better than in all objectives."""
        whole = [one for one in self.whole if one in self.allowed]
        return tuple(whole[n] for n in front([(one.error, *one.costs.values()) for one in whole]))

    @property
    def verdict(self) -> str:
        """Whether the recipe was beaten, by validation images, in a sentence; and whether it is over a limit."""
        over = f" The recipe is over a limit: {self.over}." if self.over else ""
        return f"{self._against_the_recipe}{over}"

    @property
    def _against_the_recipe(self) -> str:
        best, base = self.winner, self.base
        if best is None:
            return "No candidate was trained to the end yet."
        if base is None:
            return (
                f"The recipe was not trained to the end, so nothing is compared with it. The best is {best.name}: "
                f"validation error {best.error_text} %."
            )
        if len(self.finalists) == 1 and best is base:
            return f"No candidate but the recipe was trained to the end: validation error {base.error_text} %."
        if best is base:
            return f"Nothing beats the recipe: its validation error is {base.error_text} %, the lowest of all."
        best, base = best.with_seeds(base.by_seed), base.with_seeds(best.by_seed)  # a seed may have been given up
        numbers = f"validation error {best.error_text} %, the recipe's {base.error_text} %"
        # The first seed chose the finalists, so its error is too good: the others judge.
        judges = set(best.by_seed) - {FIRST_SEED}
        if len(judges) < 2:
            where = "ahead of" if base.error >= best.error else "behind"
            few = "one seed" if len(best.errors) < 2 else "the seed that chose it and one more"
            return f"{best.name.capitalize()} is {where} the recipe with {few}, which may be luck: {numbers}."
        best, base = best.with_seeds(judges), base.with_seeds(judges)
        gain = base.error - best.error
        if abs(gain) <= half_interval(best.errors, base.errors):
            return f"{best.name.capitalize()} is not told apart from the recipe over these seeds: {numbers}."
        verb = "beats" if gain > 0 else "is worse than"
        return f"{best.name.capitalize()} {verb} the recipe on these validation images: {numbers}."

    @property
    def front_verdict(self) -> str:
        """Whether the front beats the recipe in all objectives, in a sentence; empty of one objective."""
        base, whole = self.base, self.whole
        if len(self.objectives) == 1 or base not in whole or base is None:
            return ""
        own, names = (base.error, *base.costs.values()), ", ".join(self.objectives)
        better = [one.name for one in whole if is_better((one.error, *one.costs.values()), own)]
        if better:
            return f"Nowhere worse than the recipe in {names}, and somewhere better: {', '.join(better)}."
        return f"None is better than the recipe without being worse in one of {names}."

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        on_front = {one.candidate for one in self.front}
        return {
            "verdict": self.verdict,
            "front_verdict": self.front_verdict,
            "objectives": list(self.objectives),
            "rungs_epochs": list(self.rules.rungs),
            "finalists": [
                {
                    "candidate": one.candidate,
                    "validation_errors_percent": list(one.errors),
                    **one.costs,
                    "on_the_front": one.candidate in on_front,
                    "point": dict(one.point),
                }
                for one in self.finalists
            ],
        }


def half_interval(one: Sequence[float], other: Sequence[float]) -> float:
    """Half the 95 % interval of the difference of two means over seeds, at least two each (Welch 1947).

    Infinite where all seeds of both agree, as they may on few images: these say nothing of how seeds differ.

    >>> round(half_interval([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), 2)
    2.27
    """
    parts = [(statistics.variance(errors) / len(errors), len(errors)) for errors in (one, other)]
    variance = sum(part for part, _ in parts)
    if not variance:
        return math.inf
    degrees = variance**2 / sum(part**2 / (count - 1) for part, count in parts)
    return float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) * math.sqrt(variance)


def _finalist(
    number: int,
    objectives: Sequence[str],
    rules: Rules,
    records: Sequence[Record],
    points: Mapping[int, Mapping[str, Label]],
) -> Finalist:
    mine: dict[int, Record] = {}
    for record in records:
        if record.state == "done" and record.job.candidate == number and record.job.rung == rules.top:
            mine.setdefault(record.job.seed, record)
    first = mine[0].values
    costs = {name: value for name, value in zip(objectives, first, strict=True) if name != "error"}
    by_seed = {seed: mine[seed].values[rules.error] for seed in sorted(mine)}
    return Finalist(number, points[number], by_seed, costs)

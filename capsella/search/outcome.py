"""What a study found: its finalists over all seeds, the front, and whether one of them beats the recipe."""

import math
import statistics
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import scipy

from capsella.evaluation import over_seeds
from capsella.evaluation.wilson import CONFIDENCE
from capsella.search.front import front
from capsella.search.schedule import BASE, Record, Rules, finalists
from capsella.search.space import Label

FIRST_SEED = 0
"""The seed that candidates are chosen by."""


def name_of(candidate: int) -> str:
    """Of a candidate, for people."""
    return "the recipe" if candidate == BASE else f"candidate {candidate}"


@dataclass(frozen=True)
class Finalist:
    """A candidate that was trained to the end.

    by_seed: its errors on the validation images. costs: the other objectives, by name. Its mean error and its spread
    are of all seeds but the one that chose it, with which it was lucky; of all where that leaves fewer than two.
    """

    candidate: int
    point: Mapping[str, Label]
    by_seed: Mapping[int, float]
    costs: Mapping[str, float]

    @property
    def errors(self) -> tuple[float, ...]:
        """Of each seed."""
        return tuple(self.by_seed.values())

    @property
    def is_judged(self) -> bool:
        """Whether there are two seeds or more that did not choose it."""
        return len(self.by_seed.keys() - {FIRST_SEED}) > 1

    @property
    def judges(self) -> frozenset[int]:
        """The seeds that count."""
        return frozenset(self.by_seed) - ({FIRST_SEED} if self.is_judged else set())

    @property
    def judged(self) -> tuple[float, ...]:
        """The errors that count."""
        return self.with_seeds(self.judges).errors

    def with_seeds(self, seeds: Collection[int]) -> "Finalist":
        """With the errors of these seeds alone, where it has them."""
        return replace(self, by_seed={seed: error for seed, error in self.by_seed.items() if seed in seeds})

    @property
    def error(self) -> float:
        """Mean over the seeds that count."""
        return statistics.fmean(self.judged)

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds that count; 0 of one."""
        return statistics.stdev(self.judged) if len(self.judged) > 1 else 0.0

    @property
    def error_text(self) -> str:
        """The mean error for people, with its spread where there are several seeds."""
        return over_seeds(self.judged)

    @property
    def cost_texts(self) -> list[str]:
        """The other objectives for people."""
        return [f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}" for value in self.costs.values()]

    @property
    def name(self) -> str:
        """For people."""
        return name_of(self.candidate)


@dataclass(frozen=True)
class Outcome:
    """What a study found.

    objectives, rules, records, points: of the study. finalists: the best first, with the errors of the most seeds that
    two of them have both. over: which limit the recipe is over, which is trained all the same, or nothing. balanced:
    whether errors are means over classes, as rare ones were balanced.
    """

    objectives: tuple[str, ...]
    rules: Rules
    records: Sequence[Record]
    points: Mapping[int, Mapping[str, Label]]
    finalists: tuple[Finalist, ...]
    over: str = ""
    balanced: bool = False

    @classmethod
    def of(
        cls,
        objectives: Sequence[str],
        rules: Rules,
        records: Sequence[Record],
        points: Mapping[int, Mapping[str, Label]],
        over: str = "",
        balanced: bool = False,
    ) -> "Outcome":
        """From the trials of a study, finished or not."""
        found = [_finalist(number, objectives, rules, records, points) for number in finalists(records, rules)]
        pairs = combinations([one.by_seed.keys() for one in found], 2)
        seeds = max((one & other for one, other in pairs), key=len, default={0, *range(rules.seeds)})
        found = [one.with_seeds(seeds) for one in found]
        found.sort(key=lambda one: (len(one.errors) < len(seeds), one.error, *one.costs.values()))
        return cls(tuple(objectives), rules, records, points, tuple(found), over, balanced)

    @property
    def error_name(self) -> str:
        """What the candidates are judged by, for people."""
        return "balanced validation error" if self.balanced else "validation error"

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
                f"{self.error_name} {best.error_text} %."
            )
        if len(self.finalists) == 1 and best is base:
            return f"No candidate but the recipe was trained to the end: {self.error_name} {base.error_text} %."
        if best is base:
            return f"Nothing beats the recipe: its {self.error_name} is {base.error_text} %, the lowest of all."
        best, base = best.with_seeds(base.by_seed), base.with_seeds(best.by_seed)  # a seed may have been given up
        numbers = f"{self.error_name} {best.error_text} %, the recipe's {base.error_text} %"
        if not best.is_judged:
            where = "level with" if base.error == best.error else "ahead of" if base.error > best.error else "behind"
            few = "one seed" if len(best.errors) < 2 else "the seed that chose it and one more"
            return f"{best.name.capitalize()} is {where} the recipe with {few}, which may be luck: {numbers}."
        low, high = self._gains(base)[best.candidate]
        if low <= 0 <= high:
            return f"{best.name.capitalize()} is not told apart from the recipe over these seeds: {numbers}."
        verb = "beats" if low > 0 else "is worse than"
        return f"{best.name.capitalize()} {verb} the recipe on these validation images: {numbers}."

    def _gains(self, base: Finalist) -> dict[int, tuple[float, float]]:
        """By candidate, the interval of how much less it errs than the recipe, of all that have the recipe's seeds.

        Where too few seeds are left to judge by, it is the plain difference.
        """
        rivals = [one for one in self.finalists if one.candidate != BASE and base.judges <= one.by_seed.keys()]
        errors = [one.with_seeds(base.judges).errors for one in rivals]
        if not base.is_judged:
            gains = [(base.error - statistics.fmean(one),) * 2 for one in errors]
        else:
            gains = gain_intervals(errors, base.judged)
        return dict(zip((one.candidate for one in rivals), gains, strict=True))

    @property
    def front_verdict(self) -> str:
        """Which finalists are better than the recipe in an objective and worse in none; empty of one objective."""
        base = self.base
        if len(self.objectives) == 1 or base is None or base not in self.whole:
            return ""
        gains, names = self._gains(base), ", ".join(base.costs)
        others = [one for one in self.whole if one.candidate in gains]
        rivals = [one for one in others if all(one.costs[name] <= base.costs[name] for name in base.costs)]
        errs_less = [one.name for one in rivals if gains[one.candidate][0] > 0]
        cheaper = [one for one in rivals if one.costs != base.costs]
        alike = [one.name for one in cheaper if gains[one.candidate][0] <= 0 <= gains[one.candidate][1]]
        parts = []
        if errs_less:
            parts.append(f"Errs less than the recipe and is nowhere worse in {names}: {', '.join(errs_less)}.")
        if alike:
            error = "with an error that is not told apart from the recipe's"
            parts.append(f"Nowhere worse in {names} and somewhere better, {error}: {', '.join(alike)}.")
        if not parts:
            return f"None is better than the recipe without being worse in one of error, {names}."
        return " ".join([*parts, *(["With so few seeds this may be luck."] if not base.is_judged else [])])

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


def gain_intervals(errors: Sequence[Sequence[float]], base: Sequence[float]) -> list[tuple[float, float]]:
    """How much less each candidate errs than the recipe, as a mean over seeds: 95 % intervals that hold together.

    Of many candidates that are no better, the best looks better: with Dunnett's intervals (1955), in one search of
    twenty. They take all candidates to differ alike from seed to seed. Where all seeds of all agree, as they may on few
    images, these say nothing of how seeds differ, and the intervals are infinite.

    >>> [(round(low, 1), round(high, 1)) for low, high in gain_intervals([[1.0, 2.0, 3.0]], [4.0, 5.0, 6.0])]
    [(0.7, 5.3)]
    """
    if not errors or all(len(set(one)) == 1 for one in (*errors, base)):
        return [(-math.inf, math.inf)] * len(errors)
    with warnings.catch_warnings():
        # Of moments, which the intervals do not use, where a candidate errs alike with all seeds.
        warnings.filterwarnings("ignore", message="Precision loss occurred in moment calculation")
        interval = scipy.stats.dunnett(*errors, control=base, rng=0).confidence_interval(CONFIDENCE)
    return [(-high, -low) for low, high in zip(interval.low.tolist(), interval.high.tolist(), strict=True)]


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

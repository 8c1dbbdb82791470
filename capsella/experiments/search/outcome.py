"""The outcome of a search as data: the finalists, and whether one of them beats the recipe."""

import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import scipy

from capsella.evaluation import over_seeds
from capsella.evaluation.statistics import CONFIDENCE
from capsella.experiments.search.options import SearchOptions
from capsella.experiments.search.space import Label

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

BASE = 0  # the candidate that is the recipe itself
# How a finalist compares with the recipe, by an interval over seeds; "one seed" if there are too few seeds to judge.
Comparison = Literal["better", "worse", "unclear", "one seed"]


@dataclass(frozen=True)
class Finalist:
    """A candidate that was trained to the end.

    errors: validation errors in per cent, by seed. costs: what the limits are about, e.g. ms. The first seed selected
    the candidate, so that its error is biased and only the other seeds count, unless fewer than two are left.
    """

    candidate: int
    point: Mapping[str, Label]
    errors: Mapping[int, float]
    costs: Mapping[str, float]

    @property
    def is_judged(self) -> bool:
        """True if there are at least two seeds that did not choose it."""
        return len(self.errors) > 2

    @property
    def judged(self) -> list[float]:
        """The errors of the seeds that count."""
        return [error for seed, error in self.errors.items() if seed or not self.is_judged]

    @property
    def error(self) -> float:
        """The mean error."""
        return statistics.fmean(self.judged)

    @property
    def error_text(self) -> str:
        """The mean error as text, with its standard deviation if there are several seeds."""
        return over_seeds(self.judged)

    @property
    def name(self) -> str:
        """The name of the candidate in reports."""
        return "the recipe" if self.candidate == BASE else f"candidate {self.candidate}"


@dataclass(frozen=True)
class Outcome:
    """The results of a search so far.

    trials: all trials. finalists: the best first, by the seeds that all of them have. base_excess: the limits that the
    recipe itself exceeds, and by which fraction.
    """

    trials: "Sequence[FrozenTrial]"
    finalists: tuple[Finalist, ...]
    base_excess: Mapping[str, float]

    @property
    def base(self) -> Finalist | None:
        """The recipe itself, if it was trained to the end."""
        return next((finalist for finalist in self.finalists if finalist.candidate == BASE), None)

    @property
    def winner(self) -> Finalist | None:
        """The finalist with the lowest error within the limits."""
        return next((each for each in self.finalists if each.candidate != BASE or not self.base_excess), None)

    @property
    def comparison(self) -> Comparison | None:
        """The winner against the recipe, by an interval that holds for all finalists together.

        None if either is missing, or the recipe wins.
        """
        winner, base = self.winner, self.base
        if winner is None or base is None or winner is base:
            return None
        if not base.is_judged:
            return "one seed"
        rivals = [other for other in self.finalists if other is not base]
        low, high = gain_intervals([other.judged for other in rivals], base.judged)[rivals.index(winner)]
        return "better" if low > 0 else "worse" if high < 0 else "unclear"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "winner": None if self.winner is None else self.winner.candidate,
            "winner_against_recipe": self.comparison,
            "recipe_over_limits": dict(self.base_excess),
            "finalists": [
                {
                    "candidate": finalist.candidate,
                    "validation_errors_percent": list(finalist.errors.values()),
                    **finalist.costs,
                    "point": dict(finalist.point),
                }
                for finalist in self.finalists
            ],
        }


def outcome_of(
    trials: "Sequence[FrozenTrial]", further: Callable[[int], Mapping[int, float]], options: SearchOptions
) -> Outcome:
    """Return the outcome of a study, finished or not.

    Args:
        trials: the trials of the study.
        further: a function from a candidate to its errors with further seeds; infinite if a training diverged.
        options: options of the search.
    """
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    ranked = {trial.user_attrs["candidate"]: trial for trial in sorted(complete, key=lambda trial: trial.values[0])}
    errors = {candidate: {0: trial.values[0], **further(candidate)} for candidate, trial in ranked.items()}
    whole = [candidate for candidate in ranked if math.isfinite(sum(errors[candidate].values()))]
    chosen = [BASE] * (BASE in whole) + [c for c in whole if c != BASE][: options.number_of_finalists]
    common = set.intersection(*(set(errors[candidate]) for candidate in chosen)) if chosen else set()
    finalists = []
    for candidate in chosen:
        costs = {name: ranked[candidate].user_attrs[name] for name in options.limits}
        by_seed = {seed: error for seed, error in errors[candidate].items() if seed in common}
        finalists.append(Finalist(candidate, ranked[candidate].params, by_seed, costs))
    finalists.sort(key=lambda finalist: finalist.error)
    costs = ranked[BASE].user_attrs if BASE in ranked else {}
    excess = {name: costs[name] / limit - 1 for name, limit in options.limits.items() if costs.get(name, 0) > limit}
    return Outcome(trials, tuple(finalists), excess)


def gain_intervals(errors: Sequence[Sequence[float]], base: Sequence[float]) -> list[tuple[float, float]]:
    """Return simultaneous 95 % intervals of how much lower each candidate's mean error is than the recipe's.

    The best of many equal candidates looks better than the recipe; Dunnett's intervals (1955) allow for that. They
    assume that all candidates vary alike from seed to seed. If no error varies at all, as may happen with few
    images, nothing is known about other seeds, and the intervals are infinite.

    >>> [(round(low, 1), round(high, 1)) for low, high in gain_intervals([[1.0, 2.0, 3.0]], [4.0, 5.0, 6.0])]
    [(0.7, 5.3)]
    """
    if not errors or all(len(set(row)) == 1 for row in (*errors, base)):
        return [(-math.inf, math.inf)] * len(errors)
    with warnings.catch_warnings():
        # The intervals do not use the moments that SciPy warns about.
        warnings.filterwarnings("ignore", message="Precision loss occurred in moment calculation")
        interval = scipy.stats.dunnett(*errors, control=base, rng=0).confidence_interval(CONFIDENCE)
    return [(-high, -low) for low, high in zip(interval.low.tolist(), interval.high.tolist(), strict=True)]

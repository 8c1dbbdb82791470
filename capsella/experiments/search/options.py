"""Options of a search."""

import math
from dataclasses import dataclass
from pathlib import Path

from capsella.errors import check_argument, check_minimum

TRIALS = 30  # if neither a number of trials nor a time is given
FEW_TRIALS = 12  # with fewer, a search is a first try, whose finalists have two seeds
FACTOR = 3  # one candidate in three passes a rung; the next rung is three times as long


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of a search.

    Raises:
        ArgumentError: a field is outside its range.
    """

    minutes: float | None = None
    """Search for about this long, finalists included. Set --epochs, too, if that is short."""
    trials: int | None = None
    """Number of candidates, over all processes. Default: 30, or with --minutes as many as there is time for."""
    limit_ms: float | None = None
    """Reject candidates that take more milliseconds per image on this processor, before they are trained."""
    limit_parameters: int | None = None
    """Reject candidates with more parameters; a decoder does not count."""
    finalists: int | None = None
    """Number of best candidates that are trained with every seed, in addition to the recipe. Default: one for every six
    trials, at most 5."""
    seeds: int | None = None
    """Number of seeds of the finalists. Default: 3, or 2 with fewer than 12 trials."""
    tune: tuple[str, ...] = ()
    """Change only these fields of the space, e.g. `learning_rate shift`. Default: all."""
    out: Path | None = None
    """Folder of the study. Default: runs/search-NAME. An existing study is continued."""
    storage: str | None = None
    """URL of a database for the study, as Optuna takes it, if several machines search. Default: study.log in the
    folder."""
    final: bool = True
    """Test the winner once at the end."""

    def __post_init__(self) -> None:
        check_minimum(1, trials=self.trials, limit_parameters=self.limit_parameters)
        check_minimum(1, finalists=self.finalists, seeds=self.seeds)
        for name in ("minutes", "limit_ms"):
            number = getattr(self, name)
            check_argument(number is None or 0 < number < math.inf, "be above 0 and finite", **{name: number})

    @property
    def number_of_trials(self) -> int | None:
        """The number of candidates; None if the time decides."""
        return TRIALS if self.trials is None and self.minutes is None else self.trials

    @property
    def number_of_finalists(self) -> int:
        """The number of finalists besides the recipe."""
        return self.finalists or max(1, min(5, (self.number_of_trials or TRIALS) // 6))

    @property
    def number_of_seeds(self) -> int:
        """The number of seeds of the finalists."""
        return self.seeds or (2 if (self.number_of_trials or TRIALS) < FEW_TRIALS else 3)

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by the name of what they limit."""
        limits = {"parameters": self.limit_parameters, "ms": self.limit_ms}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def rungs(self, epochs: int, warm_up: float = 0.0) -> tuple[int, ...]:
        """Return the epochs at which candidates are judged; the last one ends the training.

        Rungs that end within the warm-up (epochs) are left out.

        >>> SearchOptions().rungs(30), SearchOptions().rungs(2), SearchOptions().rungs(30, 3.0)
        ((3, 10, 30), (1, 2), (10, 30))
        """
        ends = sorted({max(1, round(epochs / FACTOR**k)) for k in range(3)})
        return tuple(end for end in ends if end > warm_up or end == epochs)

    def expected_epochs(self, rungs: tuple[int, ...]) -> float:
        """Return how many epochs the search takes in all, finalists included.

        A candidate passes a rung if it is in the best third of those that have reached it so far, or the best of them.
        """
        trials, before, total = float(self.number_of_trials or TRIALS), 0, 0.0
        for end in rungs:
            total += trials * (end - before)
            complete, before = trials, end
            trials = sum(max(1, n // FACTOR) / n for n in range(1, round(trials) + 1))
        finalists = min(self.number_of_finalists + 1, complete)
        return total + finalists * (self.number_of_seeds - 1) * rungs[-1]

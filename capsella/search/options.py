"""`SearchOptions`: how long, for what, within which limits; the fields are flags of `capsella search`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from capsella.errors import check_argument, check_minimum

Objective = Literal["error", "ms", "parameters"]
"""error: on the validation images, in per cent. ms: milliseconds an image takes in the best backend here. parameters:
of the network without a decoder."""
TRIALS = 30
"""Candidates where neither their number nor a time is asked for."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a search is done.

    Raises:
        ValueError: a field is outside its range.
    """

    minutes: float | None = None
    """Search for so long, over all calls, the last repetitions included; the final training comes on top. Where it is
    too little for 30 candidates, all of them train for fewer epochs."""
    trials: int | None = None
    """Candidates in all, over all processes; default: 30, or with --minutes as many as there is time for."""
    objectives: tuple[Objective, ...] = ("error",)
    """What is to be small: error, of validation images; ms, milliseconds an image in the best backend, measured;
    parameters. With several, no candidate is best in all: the page shows the front."""
    limit_ms: float | None = None
    """Refuse candidates that take more milliseconds an image, before they are trained."""
    limit_parameters: int | None = None
    """Refuse candidates with more parameters, a decoder not counted."""
    finalists: int = 5
    """So many of the best are trained to the end with every seed, against luck; the recipe itself is, too."""
    seeds: int = 3
    """Seeds of the finalists and of the final training."""
    tune: tuple[str, ...] = ()
    """Change these fields of the space alone, as `learning_rate shift`; default: all of it."""
    out: Path | None = None
    """Folder of the study; default: runs/search-NAME. A study that is there goes on."""
    storage: str | None = None
    """URL of a database for the study, as Optuna takes it, where several machines search; default: study.db in the
    folder."""
    save_recipe: Path | None = None
    """Write the winner as a recipe to this JSON file, which `capsella train` takes."""
    final: bool = True
    """At the end, train the winner with every seed on nearly all images but the test's, and test it once."""

    def __post_init__(self) -> None:
        check_minimum(1, trials=self.trials, limit_parameters=self.limit_parameters, finalists=self.finalists)
        check_minimum(1, seeds=self.seeds)
        for name in ("minutes", "limit_ms"):
            number = getattr(self, name)
            check_argument(number is None or 0 < number < math.inf, "be above 0 and finite", **{name: number})
        known = bool(self.objectives) and len(set(self.objectives)) == len(self.objectives)
        check_argument(known, "be at least one, and each only once", objectives=self.objectives)
        check_argument("error" in self.objectives, "have error among them", objectives=self.objectives)

    @property
    def all_trials(self) -> int | None:
        """The number of candidates; None where the time decides."""
        return TRIALS if self.trials is None and self.minutes is None else self.trials

    def over(self, costs: Mapping[str, float]) -> tuple[str, float] | None:
        """The first limit that these costs are over, in words, and by which part of it; None within all limits."""
        limits = (("parameters", self.limit_parameters, ",.0f"), ("ms", self.limit_ms, ".3g"))
        for name, limit, form in limits:
            if limit is not None and costs.get(name, 0.0) > limit:
                return f"{costs[name]:{form}} {name}, more than {limit:{form}}", costs[name] / limit - 1.0
        return None

    @property
    def times(self) -> bool:
        """Whether candidates are timed."""
        return "ms" in self.objectives or self.limit_ms is not None

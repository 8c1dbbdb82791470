"""The cells of the league's rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from capsella.evaluation import accuracy_interval
from capsella.grid import hits_of
from capsella.papers.league.fields import Entrant

HEADS = (
    *("parameters", "rate", "error, ours %", "rank", "changed images, ours %", "rank, changed", "attacked, right %"),
    *("training, images/s", "ms an image", "memory MiB", "entropy"),
)


@dataclass(frozen=True)
class Measured:
    """A row with all that was found of it.

    head: what the changed images are. rate, tried: the best learning rate, and the validation errors of all. runs:
    results of the seeds that did not diverge. changed: their tests on changed images. beside: as of `measured`, of the
    first seed. unfinished: whether the trainings ended while the networks still learned. diverged: seeds without a
    result.
    """

    row: Entrant
    head: str
    rate: float
    tried: Mapping[str, float]
    runs: list[dict[str, Any]]
    changed: list[dict[str, Any]]
    beside: Mapping[str, Any]
    milliseconds: float | None
    unfinished: bool
    diverged: tuple[int, ...] = ()

    @property
    def stops(self) -> bool:
        """Whether it was to stop at an error."""
        return self.row.recipe.stop_at_error is not None

    @property
    def reached(self) -> bool:
        """Whether all seeds reached the error at which they were to stop; so does what need not stop."""
        return not self.stops or all(run["training"]["stopped"]["reached"] for run in self.runs)


def cells(one: Measured, by_error: Mapping[str, str], by_change: Mapping[str, str]) -> list[str]:
    """What `HEADS` names."""
    if not one.runs:
        return ["–", f"{one.rate:g}", "diverged", *("–" for _ in HEADS[3:])]
    slug, beside = one.row.slug, one.beside
    state = "" if one.reached else " (not reached)"
    state += " (still learning)" if one.unfinished else ""
    state += f" ({len(one.diverged)} of {len(one.diverged) + len(one.runs)} seeds diverged)" if one.diverged else ""
    changed = f"{error_cell(one.changed)} ({one.head}){state}" if one.changed else "–"
    attack = beside["attack"]
    pgd = next(curve for curve in attack["attacks"] if curve["attack"] == "PGD")
    speeds = [run["training"]["images_per_second"] for run in one.runs]
    entropy = beside["coupling_entropy"]
    return [
        f"{beside['parameters']:,}",
        f"{one.rate:g}",
        error_cell([run["test"] for run in one.runs]) + state,
        by_error.get(slug, "–"),
        changed,
        by_change.get(slug, "–"),
        f"{pgd['accuracy_percent'][0]:.1f}" + (" (masked)" if attack["masked"] else ""),
        f"{np.mean(speeds):.0f}",
        "–" if one.milliseconds is None else f"{one.milliseconds:.2f}",
        f"{beside['step_memory_mib']:.0f}",
        f"{entropy[-1]:.2f}" if entropy else "–",
    ]


def error_cell(tests: Sequence[Mapping[str, Any]]) -> str:
    """The mean error in per cent with its interval."""
    error = sure_error(np.stack([hits_of(test) for test in tests]))
    low, high = error["interval_95_percent"]
    return f"{error['error_percent']:.2f} [{low:.1f}, {high:.1f}]"


def sure_error(hits: Bool[np.ndarray, "seeds images"]) -> dict[str, Any]:
    """Mean error over seeds in per cent, with its 95 % interval over test images and seeds."""
    right = accuracy_interval(hits)
    low, high = 100 - 100 * right.high, 100 - 100 * right.low
    return {"error_percent": 100 - 100 * right.estimate, "interval_95_percent": [low, high]}

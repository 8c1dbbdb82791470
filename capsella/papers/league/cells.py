"""The cells of the league's rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from capsella.evaluation import accuracy_interval, difference_interval, wilson_interval
from capsella.grid import hits_of
from capsella.papers.league.fields import Entrant
from capsella.papers.league.measure import Speed
from capsella.papers.league.search import Chosen

HEADS = (
    *("parameters", "rate", "error, ours %", "rank", "gain over even, points", "changed images, ours %"),
    *("rank, changed", "attacked, right %", "training, images/s", "ms an image", "memory MiB", "entropy"),
)


@dataclass(frozen=True)
class Measured:
    """A row with all that was found of it.

    row: as it was registered. chosen: its learning rate, and the row as it was trained. head: what the changed images
    are. runs: results of the seeds that did not diverge. changed: their tests on changed images. beside: as of
    `measured`, of the first seed. speed: of that network. unfinished: whether the trainings ended while the networks
    still learned. diverged: seeds without a result.
    """

    row: Entrant
    chosen: Chosen
    head: str
    runs: list[dict[str, Any]]
    changed: list[dict[str, Any]]
    beside: Mapping[str, Any]
    speed: Speed | None
    unfinished: bool
    diverged: tuple[int, ...] = ()

    @property
    def stops(self) -> bool:
        """Whether it was to stop at an error."""
        return self.chosen.row.recipe.stop_at_error is not None

    @property
    def reached(self) -> bool:
        """Whether all seeds reached the error at which they were to stop; so does what need not stop."""
        return not self.stops or all(run["training"]["stopped"]["reached"] for run in self.runs)


def cells(one: Measured, even: Measured | None, by_error: Mapping[str, str], by_change: Mapping[str, str]) -> list[str]:
    """What `HEADS` names. even: the row that is the same with even couplings."""
    rate = f"{one.chosen.rate:g}" + (" (edge)" if one.chosen.at_edge else "")
    if not one.runs:
        return ["–", rate, "diverged", *("–" for _ in HEADS[3:])]
    slug, beside = one.row.slug, one.beside
    state = "" if one.reached else " (not reached)"
    state += " (still learning)" if one.unfinished else ""
    state += f" ({len(one.diverged)} of {len(one.diverged) + len(one.runs)} seeds diverged)" if one.diverged else ""
    changed = f"{error_cell(one.changed)} ({one.head}){state}" if one.changed else "–"
    entropy, speed = beside["coupling_entropy"], one.speed
    return [
        f"{beside['parameters']:,}",
        rate,
        error_cell([run["test"] for run in one.runs]) + state,
        by_error.get(slug, "–"),
        "–" if (gain := gain_over(one, even)) is None else gain_cell(gain),
        changed,
        by_change.get(slug, "–"),
        attack_cell(beside["attack"]),
        "–" if speed is None else f"{speed.per_second:.0f}",
        "–" if speed is None else f"{speed.milliseconds:.2f}",
        f"{beside['step_memory_mib']:.0f}",
        f"{entropy[-1]:.2f}" if entropy else "–",
    ]


def gain_over(one: Measured, even: Measured | None) -> dict[str, Any] | None:
    """How many points less error a row has than the same with even couplings; None where either has no equal part."""
    if even is None or one.stops or not (one.runs and even.runs) or one.diverged or even.diverged:
        return None
    gain = difference_interval(*(np.stack([hits_of(run["test"]) for run in row.runs]) for row in (one, even)))
    return {"points": 100 * gain.estimate, "interval_95_points": [100 * gain.low, 100 * gain.high]}


def gain_cell(gain: Mapping[str, Any]) -> str:
    """Points, more than 0 where routing errs less, with their interval."""
    low, high = gain["interval_95_points"]
    return f"{gain['points']:.2f} [{low:.1f}, {high:.1f}]"


def attack_cell(attack: Mapping[str, Any]) -> str:
    """How many of the attacked images PGD leaves right, in per cent, with the interval over images."""
    (share,) = next(curve["accuracy_percent"] for curve in attack["attacks"] if curve["attack"] == "PGD")
    images = attack["options"]["images"]
    low, high = wilson_interval(round(images * share / 100), images)
    return f"{share:.1f} [{100 * low:.0f}, {100 * high:.0f}]" + (" (masked)" if attack["masked"] else "")


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

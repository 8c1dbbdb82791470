"""The cells of the league's rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from capsella.evaluation import accuracy_interval
from capsella.grid import Hits
from capsella.papers.league.fields import Entrant
from capsella.papers.league.measure import Speed
from capsella.papers.league.ranks import FEWEST_SEEDS
from capsella.papers.league.search import Chosen

HEADS = (
    *("rate", "error, ours %", "rank", "seeds %", "training %"),
    *("gain over even, points", "gain over CNN, points"),
    *("changed images, ours %", "rank, changed"),
    *("unattacked, right %", "attacked, right %", "entropy", "training, images/s", "ms an image", "memory MiB"),
)


@dataclass(frozen=True)
class Measured:
    """A row with all that was found of it.

    row: as it was registered. chosen: its learning rate, and the row as it was trained. head: what the changed images
    are. runs: results of the seeds that did not diverge. train_errors: theirs, of the last epoch, in per cent.
    changed: their tests on changed images. beside: as of `measured`, of the first seed. speed: of that network.
    diverged: seeds without a result. even: results of the same network with even couplings, trained at the rate of this
    row; nothing where there is no such network, or one of its seeds diverged.
    """

    row: Entrant
    chosen: Chosen
    head: str
    runs: list[dict[str, Any]]
    train_errors: list[float]
    changed: list[dict[str, Any]]
    beside: Mapping[str, Any]
    speed: Speed | None
    diverged: tuple[int, ...] = ()
    even: Sequence[Mapping[str, Any]] = ()

    @property
    def stops(self) -> bool:
        """Whether it was to stop at an error."""
        return self.chosen.row.recipe.stop_at_error is not None

    @property
    def reached(self) -> bool:
        """Whether all seeds reached the error at which they were to stop; so does what need not stop."""
        return not self.stops or all(run["training"]["stopped"]["reached"] for run in self.runs)

    @property
    def compared(self) -> Sequence[Mapping[str, Any]]:
        """The tests that gains compare: on the test images, or on changed ones where all stop at one error."""
        return self.changed if self.stops else [run["test"] for run in self.runs]

    @property
    def seed_errors(self) -> list[float]:
        """Test errors of the seeds in per cent."""
        return [run["test"]["error_percent"] for run in self.runs]


class Gains(NamedTuple):
    """How many points less error than the same network with even couplings, and than the CNN; None: cannot be told."""

    over_even: Mapping[str, Any] | None
    over_cnn: Mapping[str, Any] | None

    @classmethod
    def of(cls, one: Measured, others: Sequence[Measured]) -> "Gains":
        """Of a row among all of its images.

        What routing brings is at the rate of the row: `even` of the row, or where all stop at one error the row
        itself that has even couplings. What the whole network brings is at the rate of each.
        """
        twin = next((other for other in others if other.row.slug == one.row.even), None)
        cnn = next((other for other in others if other.row.label[1] == "CNN" and other is not one), None)
        over_even = _gain_over(one, twin) if one.stops else _gain(one, [run["test"] for run in one.even])
        return cls(over_even, _gain_over(one, cnn))


def cells(one: Measured, gains: Gains, by_error: Mapping[str, str], by_change: Mapping[str, str]) -> list[str]:
    """What `HEADS` names."""
    rate = f"{one.chosen.rate:g}" + (" (edge)" if one.chosen.at_edge else "")
    if not one.runs:
        return [rate, "diverged", *("–" for _ in HEADS[2:])]
    slug, beside = one.row.slug, one.beside
    state = "" if one.reached else " (not reached)"
    state += f" ({len(one.diverged)} of {len(one.diverged) + len(one.runs)} seeds diverged)" if one.diverged else ""
    changed = f"{error_cell(one.changed)} ({one.head}){state}" if one.changed else "–"
    entropy, speed = beside["coupling_entropy"], one.speed
    return [
        rate,
        error_cell([run["test"] for run in one.runs]) + state,
        by_error.get(slug, "–"),
        ", ".join(f"{error:.2f}" for error in one.seed_errors),
        ", ".join(f"{error:.1f}" for error in one.train_errors),
        gain_cell(gains.over_even),
        gain_cell(gains.over_cnn),
        changed,
        by_change.get(slug, "–"),
        f"{beside['attack']['clean_accuracy_percent']:.1f}",
        f"{attacked_right(beside['attack']):.1f}" + (" (masked)" if beside["attack"]["masked"] else ""),
        ", ".join(f"{layer:.3f}" for layer in entropy) or "–",
        "–" if speed is None else f"{speed.per_second:.0f}",
        "–" if speed is None else f"{speed.milliseconds:.2f}",
        f"{beside['step_memory_mib']:.0f}",
    ]


def _gain_over(one: Measured, other: Measured | None) -> dict[str, Any] | None:
    """`_gain` over a row that is sound and, as this one, at the error where all should stop."""
    if other is None or other.diverged or not (one.reached and other.reached):
        return None
    return _gain(one, other.compared)


def _gain(one: Measured, others: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How many points less error a row has than other tests, and what such a comparison finds four times in five.

    None where the two have no equal part, or a seed alone.
    """
    if one.diverged or min(len(one.compared), len(others)) < FEWEST_SEEDS:
        return None
    gain = Hits.of(one.compared).gain_over(Hits.of(others))
    return {
        "points": 100 * gain.estimate,
        "interval_95_points": [100 * gain.low, 100 * gain.high],
        "detectable_points": 100 * gain.detectable,
    }


def gain_cell(gain: Mapping[str, Any] | None) -> str:
    """Points, more than 0 where the row errs less, with their interval."""
    if gain is None:
        return "–"
    low, high = gain["interval_95_points"]
    return f"{gain['points']:.2f} [{low:.1f}, {high:.1f}]"


def attacked_right(attack: Mapping[str, Any]) -> float:
    """How many of the attacked images PGD leaves right, in per cent."""
    (share,) = next(curve["accuracy_percent"] for curve in attack["attacks"] if curve["attack"] == "PGD")
    return float(share)


def error_cell(tests: Sequence[Mapping[str, Any]]) -> str:
    """The mean error in per cent with its interval."""
    error = sure_error(Hits.of(tests))
    low, high = error["interval_95_percent"]
    return f"{error['error_percent']:.2f} [{low:.1f}, {high:.1f}]"


def sure_error(hits: Hits) -> dict[str, Any]:
    """Mean error over seeds in per cent, with its 95 % interval over test images, or groups of them, and seeds."""
    right = accuracy_interval(*hits)
    low, high = 100 - 100 * right.high, 100 - 100 * right.low
    return {"error_percent": 100 - 100 * right.estimate, "interval_95_percent": [low, high]}

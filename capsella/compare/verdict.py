"""The verdict of a comparison in plain words, from what the best network of each kind got right."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool

from capsella.evaluation.intervals import Interval, McNemar, difference_interval, mcnemar

Winner = Literal["capsules", "CNN"]
MOST_IMAGES = 1_000_000
"""More test images than that are no advice."""


@dataclass(frozen=True, eq=False)
class Side:
    """The best network of a kind.

    hits: which test images each seed has right. shipped: the row of the seed that would be shipped. latency: the 50th
    and 95th percentile of the milliseconds an image takes. changed: accuracy in per cent on changed test images, by
    change, a number a seed. smaller: the largest share of the training images below 1, and the hits of training on it.
    """

    network: str
    hits: Bool[np.ndarray, "seeds images"]
    shipped: int
    latency: tuple[float, float]
    parameters: int
    changed: Mapping[str, tuple[float, ...]]
    smaller: tuple[float, Bool[np.ndarray, "seeds images"]] | None = None


@dataclass(frozen=True)
class Verdict:
    """winner: None where the difference is within noise. ship: the network to take, None where none is fast enough.

    difference: capsules less CNN. headline: one sentence. sentences: the rest, by what they are about.
    """

    winner: Winner | None
    ship: str | None
    difference: Interval
    shipped_pair: McNemar
    headline: str
    sentences: dict[str, str]


def judge(capsules: Side, cnn: Side, limit: float) -> Verdict:
    """Who wins, by how much, and what to do next.

    The best network of each kind must have been chosen on other images than these.

    Args:
        capsules, cnn: the two.
        limit: milliseconds that an image may take.

    Raises:
        ValueError: hits of different images, a limit that is not above 0.
    """
    if not limit > 0:
        raise ValueError(f"limit: must be above 0 milliseconds, got {limit}")
    difference = difference_interval(capsules.hits, cnn.hits)
    pair = mcnemar(capsules.hits[capsules.shipped], cnn.hits[cnn.shipped])
    winner: Winner | None = "capsules" if difference.low > 0 else "CNN" if difference.high < 0 else None
    ship, speed = _speed(capsules, cnn, winner, limit)
    sentences = {
        "accuracy": _accuracy(capsules, cnn, difference, pair),
        "speed and size": speed,
        "changed images": _changed(capsules, cnn),
        "what to do next": _next(capsules, cnn, winner, difference),
    }
    return Verdict(winner, ship, difference, pair, _headline(capsules, cnn, winner, difference), sentences)


def points(share: float) -> str:
    """A difference of shares as percentage points, with its sign."""
    return f"{100 * share:+.1f}".replace("-", "−")


def _headline(capsules: Side, cnn: Side, winner: Winner | None, difference: Interval) -> str:
    seeds, images = capsules.hits.shape
    if winner is None:
        s = "" if seeds == 1 else "s"
        return f"No difference that these {images} test images and {seeds} seed{s} could show."
    best, other, sign = (capsules, cnn, 1) if winner == "capsules" else (cnn, capsules, -1)
    low, high = sorted((sign * difference.low, sign * difference.high))
    kind = "The capsule network" if winner == "capsules" else "The CNN"
    return (
        f"{kind} wins: {best.network} is right {100 * sign * difference.estimate:.1f} points more often than "
        f"{other.network} (95 % interval {100 * low:.1f} to {100 * high:.1f})."
    )


def _accuracy(capsules: Side, cnn: Side, difference: Interval, pair: McNemar) -> str:
    seeds = (
        "With a single seed the interval covers the choice of test images alone: another seed may turn the result. "
        if difference.seed_error is None
        else "The interval covers the choice of test images and of seeds. "
    )
    return (
        f"{capsules.network} has {100 * capsules.hits.mean():.1f} % of the test images right, {cnn.network} "
        f"{100 * cnn.hits.mean():.1f} %: a difference of {points(difference.estimate)} points, 95 % interval "
        f"{points(difference.low)} to {points(difference.high)}. {seeds}"
        f"The smallest true difference that this comparison would find four times in five is "
        f"{100 * difference.detectable:.1f} points. Of the two networks to be shipped, {pair.only_first} images are "
        f"right by the capsules alone and {pair.only_second} by the CNN alone (McNemar's exact test: "
        f"p = {pair.p_value:.2g})."
    )


def _speed(capsules: Side, cnn: Side, winner: Winner | None, limit: float) -> tuple[str | None, str]:
    """Which network to ship, and why: the winner if it is fast enough, of equals the faster."""
    sides = (capsules, cnn)
    facts = "; ".join(
        f"{one.network} takes {one.latency[0]:.1f} ms an image (95 % of calls within {one.latency[1]:.1f} ms) and has "
        f"{one.parameters:,} parameters"
        for one in sides
    )
    fast = [one for one in sides if one.latency[1] <= limit]
    best = None if winner is None else capsules if winner == "capsules" else cnn
    if not fast:
        return None, (
            f"{facts}. Neither stays within {limit:g} ms on this machine; `capsella bench` tells whether "
            "ONNX Runtime or int8 does."
        )
    ship = best if best is not None and best in fast else min(fast, key=lambda one: one.latency[0])
    if best is None:
        why = "of two that cannot be told apart, the faster" if len(fast) == 2 else "the only one within the limit"
    elif ship is best:
        why = "the more accurate, and fast enough"
    else:
        why = "the winner is too slow as it is; see `capsella bench` before giving it up"
    return ship.network, f"{facts}. Within {limit:g} ms, ship {ship.network}: {why}."


def _changed(capsules: Side, cnn: Side) -> str:
    """A network holds better only where each of its seeds beats each of the other's."""
    better: dict[str, list[str]] = {capsules.network: [], cnn.network: [], "": []}
    for change, ours in capsules.changed.items():
        theirs = cnn.changed[change]
        holds = capsules.network if min(ours) > max(theirs) else cnn.network if min(theirs) > max(ours) else ""
        better[holds].append(f"{change} ({np.mean(ours):.1f} and {np.mean(theirs):.1f} %)")
    if not capsules.changed:
        return "Not measured."
    parts = [f"{name} holds better under {', '.join(changes)}" for name, changes in better.items() if name and changes]
    if better[""]:
        parts.append(f"seeds do not agree on {', '.join(better[''])}")
    return (
        "Mean accuracy over the strengths of each change, capsules and CNN; one holds better where each of its seeds "
        f"beats each of the other's: {'; '.join(parts)}."
    )


def _next(capsules: Side, cnn: Side, winner: Winner | None, difference: Interval) -> str:
    advice = [_slope(one, *one.smaller) for one in (capsules, cnn) if one.smaller is not None]
    images = capsules.hits.shape[1]
    needed = difference.images_needed(images)
    if winner is None and needed is not None and images < needed <= MOST_IMAGES:
        advice.append(
            f"To show a difference as small as the one measured, {100 * abs(difference.estimate):.1f} points, would "
            f"take about {needed:,} test images, and more seeds."
        )
    if winner is None:
        advice.append("Until then choose by speed, size and what the errors cost, not by this difference.")
    elif difference.seed_error is None:
        advice.append("Confirm it with more seeds.")
    else:
        advice.append("Confirm it on images from another day, patient or instrument before relying on it.")
    return " ".join(advice)


def _slope(one: Side, share: float, hits: Bool[np.ndarray, "seeds images"]) -> str:
    """What the last step of the data-size curve brought."""
    gain = difference_interval(one.hits, hits)
    low, high = points(gain.low), points(gain.high)
    step = f"{one.network}: from {100 * share:g} % of the training images to all, {points(gain.estimate)} points"
    if gain.low > 0:
        return f"{step} ({low} to {high}): it still learns from more images; collect more."
    if gain.high < 0:
        return f"{step} ({low} to {high}): more images made it worse; look for wrong labels or train longer."
    return f"{step} ({low} to {high}), within noise: this test cannot show that more images help."

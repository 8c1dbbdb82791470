"""The verdict of a comparison in plain words, from what the best network of each kind got right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from capsella.compare.by_class import ByClass, by_class
from capsella.compare.sides import Side, Yardstick
from capsella.compare.words import Either, Winner, not_asked, still_learning, trained_long, winner_of, wins
from capsella.errors import pluralize
from capsella.evaluation import (
    Interval,
    KeptAccuracy,
    McNemar,
    balanced_interval,
    difference_interval,
    kept_accuracies,
    mcnemar,
    points,
)

MOST_IMAGES = 1_000_000
"""More test images than that are no advice."""
_MORE = "of two equally accurate ones, the one that finds more of a class"


@dataclass(frozen=True)
class Verdict:
    """winner: None where the difference is within noise. ship: the network to take, None where none is fit.

    difference: capsules less CNN. classes: what they find of each. useful: the networks that are better than chance.
    unfinished: those that still learned. kept: by change, what capsules and CNN keep. headline: one sentence.
    sentences: the rest, by what they are about.
    """

    winner: Winner | None
    ship: str | None
    difference: Interval
    classes: ByClass
    shipped_pair: McNemar
    useful: tuple[str, ...]
    unfinished: tuple[str, ...]
    kept: Mapping[str, KeptAccuracy]
    headline: str
    sentences: dict[str, str]


@dataclass(frozen=True)
class AgainstChance:
    """A network beside two that look at no image, with 95 % intervals.

    largest: the class of the most test images. ahead: accuracy less that of always saying that class. found: the mean
    over classes of the share that the network finds. guess: the same of guessing.
    """

    network: str
    largest: str
    ahead: Either
    found: Either
    guess: float

    @property
    def is_beaten(self) -> bool:
        """Whether the network is shown to be better than both."""
        return self.ahead.low > 0 and self.found.low > self.guess

    @property
    def sentence(self) -> str:
        """The same in words."""
        ahead, found = self.ahead, self.found
        return (
            f"{self.network} {'is' if self.is_beaten else 'is not shown to be'} better than chance: it is right "
            f"{points(ahead.estimate)} points ({points(ahead.low)} to {points(ahead.high)}) more often than always "
            f"saying {self.largest}, and finds {100 * found.estimate:.1f} % ({100 * found.low:.1f} to "
            f"{100 * found.high:.1f}) of a class on average, where guessing finds {100 * self.guess:.1f} %."
        )


def judge(capsules: Side, cnn: Side, by: Yardstick) -> Verdict:
    """Who wins, by how much, whether it is worth shipping, and what to do next.

    The best network of each kind must have been chosen on other images than these.

    Raises:
        ValueError: hits of different images, or labels of others.
    """
    difference = difference_interval(capsules.hits, cnn.hits, by.groups)
    pair = mcnemar(capsules.hits[capsules.shipped], cnn.hits[cnn.shipped])
    winner = winner_of(difference)
    chances = [_against_chance(one, by) for one in (capsules, cnn)]
    useful = [one for one, chance in zip((capsules, cnn), chances, strict=True) if chance.is_beaten]
    classes = by_class(capsules, cnn, by)
    left = {}
    if len(useful) == 2 and capsules.changed is not None and cnn.changed is not None:
        left = {} if capsules.changed.has_two_groups else kept_accuracies(capsules.changed, cnn.changed, by.chance)
    ship, speed = _speed(capsules, cnn, winner, useful, classes, by.limit)
    sentences = {
        "accuracy": _accuracy(capsules, cnn, difference, pair, by),
        "classes": classes.sentence,
        "better than chance": " ".join(chance.sentence for chance in chances),
        "training": _training(by),
        "speed and size": speed,
        "changed images": _changed(capsules, cnn, left, by),
        "what to do next": _next(capsules, cnn, winner, difference, useful, by),
    }
    return Verdict(
        winner,
        ship,
        difference,
        classes,
        pair,
        tuple(one.network for one in useful),
        tuple(by.unfinished),
        left,
        _headline(capsules, cnn, winner, difference, useful, by) + (classes.addition(winner) if useful else ""),
        sentences,
    )


def _headline(
    capsules: Side, cnn: Side, winner: Winner | None, difference: Interval, useful: Sequence[Side], by: Yardstick
) -> str:
    if not useful:
        return (
            f"Neither is to be shipped yet: these test images do not show that {capsules.network} or {cnn.network} is "
            f"better than chance. Always saying {by.classes[by.largest]} is right for {100 * by.chance:.1f} %, and "
            f"guessing finds {100 * by.guess:.1f} % of a class on average."
        )
    best = None if winner is None else capsules if winner == "capsules" else cnn
    text = _winner(capsules, cnn, winner, difference)
    if best is not None and best not in useful:
        text += " But it is not shown to be better than chance."
    if best is not None and difference.seed_error is None:
        text += " But by one seed: another may turn it."
    return text + still_learning((capsules.network, cnn.network), by.unfinished)


def _winner(capsules: Side, cnn: Side, winner: Winner | None, difference: Interval) -> str:
    seeds, images = capsules.hits.shape
    if winner is None:
        s = "" if seeds == 1 else "s"
        return f"No difference that these {images} test images and {seeds} seed{s} could show."
    return wins(winner, capsules.network, cnn.network, difference)


def _accuracy(capsules: Side, cnn: Side, difference: Interval, pair: McNemar, by: Yardstick) -> str:
    seeds = (
        f"With a single seed the interval covers the choice of {by.drawn} alone: another seed may turn the result. "
        if difference.seed_error is None
        else f"The interval covers the choice of {by.drawn} and of seeds. "
    )
    return (
        f"{capsules.network} has {100 * capsules.hits.mean():.1f} % of the test images right, {cnn.network} "
        f"{100 * cnn.hits.mean():.1f} %: a difference of {points(difference.estimate)} points, 95 % interval "
        f"{points(difference.low)} to {points(difference.high)}. {seeds}"
        f"The smallest true difference that this comparison would find four times in five is "
        f"{100 * difference.detectable:.1f} points. Of the best seed of each, {pair.only_first} images are "
        f"right by the capsules alone and {pair.only_second} by the CNN alone (McNemar's exact test"
        f"{'' if by.groups is None else ', of images as if none were alike'}: p = {pair.p_value:.2g})."
    )


def _against_chance(one: Side, by: Yardstick) -> AgainstChance:
    ahead = difference_interval(one.hits, by.labels[None] == by.largest, by.groups)
    found = balanced_interval(one.hits, by.labels, by.groups)
    return AgainstChance(one.network, by.classes[by.largest], ahead, found, by.guess)


def _training(by: Yardstick) -> str:
    if not by.unfinished:
        return trained_long(by.asked, by.not_asked, by.epochs)
    return (
        f"Not trained to the end: {', '.join(by.unfinished)}. The training loss or error still fell clearly in the "
        f"last third of {pluralize(by.epochs, 'epoch')}; longer training may change the "
        f"result.{not_asked(by.not_asked)}"
    )


def _speed(
    capsules: Side, cnn: Side, winner: Winner | None, useful: Sequence[Side], classes: ByClass, limit: float
) -> tuple[str | None, str]:
    """Which network to ship, and why: the winner, or else who finds more by class, if fast enough; else the faster.

    None that guesses, and none that misses a whole class.
    """
    facts = "; ".join(
        f"{one.network} takes {one.latency[0]:.1f} ms an image (95 % of calls within {one.latency[1]:.1f} ms) and has "
        f"{one.parameters:,} parameters"
        for one in (capsules, cnn)
    )
    if not useful:
        return None, f"{facts}. Ship neither: fast or not, they are not shown to be better than chance."
    fit = [one for one in useful if not classes.never[one.network]]
    if not fit:
        blind = " and ".join(one.network for one in useful)
        return None, f"{facts}. Ship neither: {blind} never found a class of the test images."
    fast = [one for one in fit if one.latency[1] <= limit]
    alone = "which alone beats chance" if len(useful) == 1 else "which alone finds every class"
    if not fast:
        none = "Neither stays" if len(fit) == 2 else f"{fit[0].network}, {alone}, does not stay"
        return None, (
            f"{facts}. {none} within {limit:g} ms on this machine; `capsella bench` tells whether "
            "ONNX Runtime or int8 does."
        )
    best = winner or classes.ahead
    ahead = None if best is None else capsules if best == "capsules" else cnn
    ship = ahead if ahead is not None and ahead in fast else min(fast, key=lambda one: one.latency[0])
    if ship is ahead:
        why = f"{'the more accurate' if winner else _MORE}, and fast enough"
    elif len(fit) == 1:
        why = "the only one that is better than chance" if len(useful) == 1 else "the only one that finds every class"
    elif ahead is None:
        why = "of two that cannot be told apart, the faster" if len(fast) == 2 else "the only one within the limit"
    else:
        why = "the winner is too slow as it is; see `capsella bench` before giving it up"
    return ship.network, f"{facts}. Within {limit:g} ms, ship {ship.network}: {why}."


def _changed(capsules: Side, cnn: Side, left: Mapping[str, KeptAccuracy], by: Yardstick) -> str:
    """A network holds better only where the interval of the difference of what is kept excludes 0."""
    if not left:
        measured = capsules.changed is not None and cnn.changed is not None
        if capsules.changed is not None and capsules.changed.has_two_groups:
            return "The changed images are of two groups, which say next to nothing of a third."
        return "A network that is not better than chance has nothing to keep." if measured else "Not measured."
    better: dict[str, list[str]] = {capsules.network: [], cnn.network: [], "": []}
    for change, one in left.items():
        apart = one.difference
        holds = capsules.network if apart.low > 0 else cnn.network if apart.high < 0 else ""
        better[holds].append(
            f"{change} ({100 * one.first.estimate:.0f} and {100 * one.second.estimate:.0f} %, difference "
            f"{points(apart.low)} to {points(apart.high)} points)"
        )
    parts = [f"{name} holds better under {', '.join(changes)}" for name, changes in better.items() if name and changes]
    parts += [f"no difference is shown under {', '.join(better[''])}"] if better[""] else []
    alone = min(len(capsules.hits), len(cnn.hits)) == 1
    return (
        f"What capsules and CNN keep of the accuracy that they have above {100 * by.chance:.1f} % on unchanged images, "
        f"a mean over the strengths of each change: {'; '.join(parts)}."
        + (" With a single seed this is of these two trainings alone: another seed may turn it." if alone else "")
    )


def _next(
    capsules: Side, cnn: Side, winner: Winner | None, difference: Interval, useful: Sequence[Side], by: Yardstick
) -> str:
    advice = [_slope(one, *one.smaller, by) for one in (capsules, cnn) if one.smaller is not None]
    if by.unfinished:
        advice.append(f"Train longer: --epochs {2 * by.epochs}, with another --out.")
    if not useful:
        advice.append(
            "Look at the learning curves, at the labels, and at the images at the size that the networks see; train "
            "longer or collect more images, and compare again."
        )
        return " ".join(advice)
    number = capsules.hits.shape[1] if by.groups is None else len(np.unique(by.groups))
    needed = difference.images_needed(number)
    if winner is None and needed is not None and number < needed <= MOST_IMAGES:
        units = "test images" if by.groups is None else "groups of test images, as patients,"
        advice.append(
            f"To show a difference as small as the one measured, {100 * abs(difference.estimate):.1f} points, would "
            f"take about {needed:,} {units} and more seeds."
        )
    if winner is None:
        advice.append("Until then choose by speed, size and what the errors cost, not by this difference.")
    elif difference.seed_error is None:
        advice.append("Confirm it with more seeds.")
    else:
        advice.append("Confirm it on images from another day, patient or instrument before relying on it.")
    return " ".join(advice)


def _slope(one: Side, share: float, hits: Bool[np.ndarray, "seeds images"], by: Yardstick) -> str:
    """What the last step of the data-size curve brought."""
    rows = list(one.smaller_seeds) or range(len(one.hits))
    gain = difference_interval(one.hits[rows], hits, by.groups)
    low, high = points(gain.low), points(gain.high)
    step = f"{one.network}: from {100 * share:g} % of the training images to all, {points(gain.estimate)} points"
    step += "" if len(rows) == len(one.hits) else f" over {len(rows)} of {len(one.hits)} seeds (the others diverged)"
    if gain.low > 0:
        return f"{step} ({low} to {high}): it still learns from more images; collect more."
    if gain.high < 0:
        return f"{step} ({low} to {high}): more images made it worse; look for wrong labels or train longer."
    return f"{step} ({low} to {high}), within noise: this test cannot show that more images help."

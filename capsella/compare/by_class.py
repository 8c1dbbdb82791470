"""What a verdict says of single classes: who finds more of a class on average, and which are never found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from capsella.compare.sides import Side, Yardstick
from capsella.compare.words import Either, Winner, winner_of
from capsella.evaluation import balanced_difference_interval, points

FEWEST = 5
"""Test images of a class of which none is found: of fewer, a good network may miss all by chance."""


@dataclass(frozen=True)
class ByClass:
    """Of the best capsules and the best CNN, by their names.

    found: the share of a class that each finds, on average over classes. difference: capsules less CNN, a share.
    never: by network, the classes with at least `FEWEST` test images of which no seed found any, with their numbers.
    """

    found: Mapping[str, float]
    difference: Either
    never: Mapping[str, Sequence[tuple[str, int]]]

    @property
    def ahead(self) -> Winner | None:
        """The kind that finds more of a class on average; None where the interval holds 0."""
        return winner_of(self.difference)

    @property
    def sentence(self) -> str:
        """All of it."""
        apart = self.difference
        (first, one), (second, other) = self.found.items()
        text = (
            f"On average over the classes, {first} finds {100 * one:.1f} % of a class and {second} "
            f"{100 * other:.1f} %: a difference of {points(apart.estimate)} points, 95 % interval "
            f"{points(apart.low)} to {points(apart.high)}."
        )
        return text + self._blindness

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; shares."""
        return {
            "found": dict(self.found),
            "difference": {name: getattr(self.difference, name) for name in ("estimate", "low", "high")},
            "never_found": {network: dict(classes) for network, classes in self.never.items()},
        }

    def addition(self, winner: Winner | None) -> str:
        """What a headline must not leave out: another kind is ahead by class, or a class is never found."""
        apart = ""
        if self.ahead not in (None, winner):
            name = list(self.found)[0 if self.ahead == "capsules" else 1]
            sign = 1 if self.ahead == "capsules" else -1
            low, high = sorted((sign * self.difference.low, sign * self.difference.high))
            apart = (
                f" But {name} finds {points(sign * self.difference.estimate, signed=False)} points more of a class on "
                f"average (95 % interval {points(low, signed=False)} to {points(high, signed=False)})."
            )
        return apart + self._blindness

    @property
    def _blindness(self) -> str:
        return "".join(
            f" {network} never found {' or '.join(f'{name} ({images} test images)' for name, images in classes)}."
            for network, classes in self.never.items()
            if classes
        )


def by_class(capsules: Side, cnn: Side, by: Yardstick) -> ByClass:
    """Of two networks tested on the same images."""
    sides = (capsules, cnn)
    found = {one.network: _found(one.hits, by.labels) for one in sides}
    never = {one.network: never_found(one.hits, by.labels, by.classes) for one in sides}
    return ByClass(found, balanced_difference_interval(capsules.hits, cnn.hits, by.labels, by.groups), never)


def never_found(
    hits: Bool[np.ndarray, "seeds images"], labels: Int[np.ndarray, " images"], classes: Sequence[str]
) -> list[tuple[str, int]]:
    """The classes of which no seed found any of at least `FEWEST` images, with their numbers."""
    counts = {label: int((labels == label).sum()) for label in np.unique(labels)}
    return [
        (classes[label], count)
        for label, count in counts.items()
        if count >= FEWEST and not hits[:, labels == label].any()
    ]


def _found(hits: Bool[np.ndarray, "seeds images"], labels: Int[np.ndarray, " images"]) -> float:
    return float(np.mean([hits[:, labels == label].mean() for label in np.unique(labels)]))

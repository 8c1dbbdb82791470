"""What a verdict judges: the best network of each kind, and by what."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from capsella.errors import ArgumentError
from capsella.evaluation import Changed, Groups


@dataclass(frozen=True, eq=False)
class Side:
    """The best network of a kind.

    hits: which test images each seed has right. shipped: the row of the seed that would be shipped. latency: the 50th
    and 95th percentile of the milliseconds an image takes. changed: what it makes of changed test images, where that
    was measured. smaller: the largest share of the training images below 1, and the hits of training on it.
    smaller_seeds: the rows of `hits` whose seeds did not diverge on it.
    """

    network: str
    hits: Bool[np.ndarray, "seeds images"]
    shipped: int
    latency: tuple[float, float]
    parameters: int
    changed: Changed | None = None
    smaller: tuple[float, Bool[np.ndarray, "some_seeds images"]] | None = None
    smaller_seeds: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Yardstick:
    """By what two networks are judged.

    labels, classes: of the test images. groups: the number of each one's patient or the like, where known. limit:
    milliseconds that an image may take. epochs: of the training. unfinished: all networks of the comparison that still
    learned when their training ended. not_asked: those whose curves cannot tell (`curves_tell`).
    asked: whether those of any network can.

    Raises:
        ValueError: a limit that is not above 0.
    """

    labels: Int[np.ndarray, " images"]
    classes: Sequence[str]
    limit: float
    epochs: int
    unfinished: Sequence[str] = ()
    groups: Groups | None = None
    not_asked: Sequence[str] = ()
    asked: bool = True

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise ArgumentError("limit", "be above 0 milliseconds", self.limit)

    @property
    def drawn(self) -> str:
        """What another test would draw anew: "test images", or the groups that they are of."""
        return "test images" if self.groups is None else f"groups of test images ({len(np.unique(self.groups))} here)"

    @property
    def largest(self) -> int:
        """The class of the most test images."""
        return int(np.bincount(self.labels).argmax())

    @property
    def chance(self) -> float:
        """What a network that always says the largest class has right."""
        return float((self.labels == self.largest).mean())

    @property
    def guess(self) -> float:
        """What guessing finds of a class, on average over the classes that have test images."""
        return 1 / len(np.unique(self.labels))

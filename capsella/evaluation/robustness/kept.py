"""What is left of a network's accuracy on changed images: its share of what it had on the unchanged ones.

A network that was better to begin with is better on changed images too, without holding better. So what counts is

    kept = (accuracy on changed images − chance) / (accuracy on the same images unchanged − chance)

With chance, a network that hardly knows more than to say the largest class has little to keep, and its interval is
wide. Intervals are percentiles of a bootstrap (Efron 1979) over images, which two networks share, and over seeds, which
they do not. Where images are of groups, whole groups are drawn. A few seeds or groups, drawn from themselves, vary too
little, three by two thirds of what they should: their draws are spread by that, and by Student's quantile. One seed
says nothing of others, and one group neither.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float

from capsella.evaluation.groups import Groups
from capsella.evaluation.wilson import CONFIDENCE

DRAWS = 2000


@dataclass(frozen=True, eq=False)
class Changed:
    """What a network makes of changed images.

    clean: which of the unchanged images each seed has right. by_change: the share of a change's strengths at which each
    seed has each image right. groups: the number of each image's patient or the like, where known.
    """

    clean: Bool[np.ndarray, "seeds images"]
    by_change: dict[str, Float[np.ndarray, "seeds images"]] = field(default_factory=dict)
    groups: Groups | None = None

    @property
    def has_two_groups(self) -> bool:
        """Whether the images are of two groups: too few to draw from. One alone is as none."""
        return self.groups is not None and len(np.unique(self.groups)) == 2


class Share(NamedTuple):
    """A share, or a difference of two, with its 95 % interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class KeptAccuracy:
    """What two networks keep under a change, and by how much the first keeps more."""

    first: Share
    second: Share
    difference: Share

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Ready for JSON; shares."""
        return {name: value._asdict() for name, value in vars(self).items()}


def kept_accuracies(first: Changed, second: Changed, chance: float) -> dict[str, KeptAccuracy]:
    """By change, what two networks keep of their accuracy above `chance` on the same images.

    Raises:
        ValueError: other images or changes of one than of the other; a chance outside [0, 1); images of two groups,
            which say next to nothing of a third.
    """
    images = first.clean.shape[1]
    if second.clean.shape[1] != images or first.by_change.keys() != second.by_change.keys() or not 0 <= chance < 1:
        raise ValueError(
            f"first, second, chance: must be of the same images and changes, and a share below 1, got {images} and "
            f"{second.clean.shape[1]} images, {[*first.by_change]} and {[*second.by_change]}, {chance}"
        )
    if first.has_two_groups:
        raise ValueError("first, second: must be of three groups of images or more, or of none that are known, got two")
    random = np.random.default_rng(0)
    drawn = _image_weights(images, first.groups, random)
    numbers = len(first.clean), len(second.clean)
    seeds = [_drawn(number, random) for number in numbers]
    alone = [_spread(draws, number - 1) for draws, number in zip(seeds, numbers, strict=True)]
    together = [_spread(draws, sum(numbers) - 2) for draws in seeds]
    found = {}
    for change in first.by_change:
        pairs = [(one.clean, one.by_change[change]) for one in (first, second)]
        plain = [float(_ratio(clean.mean(), changed.mean(), chance, images)) for clean, changed in pairs]
        each, apart = (
            [
                _ratio((weights @ clean * drawn).sum(1), (weights @ changed * drawn).sum(1), chance, images)
                for weights, (clean, changed) in zip(by_seed, pairs, strict=True)
            ]
            for by_seed in (alone, together)
        )
        found[change] = KeptAccuracy(
            _share(plain[0], each[0]), _share(plain[1], each[1]), _share(plain[0] - plain[1], apart[0] - apart[1])
        )
    return found


def _image_weights(
    images: int, groups: Groups | None, random: np.random.Generator
) -> Float[np.ndarray, "draws images"]:
    """What each image weighs in each draw, of whole groups where there are several."""
    count, numbers = images, np.arange(images)
    if groups is not None and len(np.unique(groups)) > 1:
        names, numbers = np.unique(groups, return_inverse=True)
        count = len(names)
    each = _drawn(count, random)[:, numbers]
    return _spread(each / each.sum(1, keepdims=True), count - 1, count)


def _drawn(number: int, random: np.random.Generator) -> Float[np.ndarray, "draws number"]:
    """What each of so many weighs in each draw of as many of them."""
    chosen = random.integers(number, size=(DRAWS, number)) + number * np.arange(DRAWS)[:, None]
    drawn: np.ndarray = np.bincount(chosen.ravel(), minlength=DRAWS * number).reshape(DRAWS, number) / number
    return drawn


def _spread(
    drawn: Float[np.ndarray, "draws n"], degrees: int, number: int | None = None
) -> Float[np.ndarray, "draws n"]:
    """Draws of `number` seeds or groups (default: n), spread around equal weights as the mean of so few is."""
    number, level = number or drawn.shape[1], (1 + CONFIDENCE) / 2
    student = float(scipy.stats.t.ppf(level, max(1, degrees)) / scipy.stats.norm.ppf(level))
    spread: np.ndarray = 1 / drawn.shape[1] + student * (number / max(1, number - 1)) ** 0.5 * (
        drawn - 1 / drawn.shape[1]
    )
    return spread


def _ratio(clean: np.ndarray, changed: np.ndarray, chance: float, images: int) -> np.ndarray:
    """Kept; a network that has nothing above chance is given one image, so that the ratio is finite, and wild."""
    ratio: np.ndarray = (changed - chance) / np.maximum(clean - chance, 1 / images)
    return ratio


def _share(estimate: float, draws: Float[np.ndarray, " draws"]) -> Share:
    low, high = np.quantile(draws, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)).tolist()
    return Share(estimate, min(low, estimate), max(high, estimate))

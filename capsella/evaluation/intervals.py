"""How sure a number is: intervals over seeds and test images.

What was measured is a table of hits, [seeds images]: whether the network trained with each seed has each test image
right. Another laboratory would have drawn other test images and other seeds, so an interval covers both: the variance
of a mean over the table is that of two crossed random effects,

    images: variance over images of their mean over seeds / images    seeds: variance of the seeds' accuracies / seeds

The noise of single answers is in both: on the safe side, because the second is estimated from a few seeds. The quantile
is Student's, with the degrees of freedom of Satterthwaite (1946): few seeds that differ much make a wide interval.
Where groups of images are given, the first part is that of groups, never less than that of images, and with the
groups' degrees of freedom: see `groups.py`.
Near 0 and 1, and where two networks agree on every image, a plain variance would be 0; so pseudo
images are added, for an accuracy two right and two wrong ones (Agresti and Coull 1998), for a difference half an image
for each outcome of the pair (Agresti and Min 2005).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from capsella.errors import ArgumentError
from capsella.evaluation.groups import Groups, Part, deviations, over_groups
from capsella.evaluation.wilson import CONFIDENCE

POWER = 0.8


@dataclass(frozen=True)
class Interval:
    """A share, or a difference of two, with its 95 % interval over test images and seeds.

    image_error, seed_error: the standard errors that the choice of test images and of seeds bring. The second is None
    where a side has a single seed, whose spread nothing tells: the interval covers the test images, and the seeds of
    the other side if it has several. degrees: of freedom of Student's quantile.
    """

    estimate: float
    low: float
    high: float
    image_error: float
    seed_error: float | None
    degrees: float

    @property
    def standard_error(self) -> float:
        """Of both together."""
        return float(np.hypot(self.image_error, self.seed_error or 0.0))

    @property
    def detectable(self) -> float:
        """The smallest true difference that such a comparison finds four times in five (power 0.8)."""
        quantiles = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, self.degrees) + scipy.stats.norm.ppf(POWER)
        return float(quantiles) * self.standard_error

    def images_needed(self, images: int) -> int | None:
        """Test images that would show a difference as small as the estimate, if seeds made none; None for 0.

        Of groups: their number in place of that of images gives the groups that would.
        """
        if self.estimate == 0:
            return None
        quantiles = scipy.stats.norm.ppf((1 + CONFIDENCE) / 2) + scipy.stats.norm.ppf(POWER)
        return int(np.ceil(images * (quantiles * self.image_error / self.estimate) ** 2))

    def to_dict(self) -> dict[str, float | None]:
        """Ready for JSON."""
        return asdict(self)


class FoldInterval(NamedTuple):
    """Mean of a share, or of a difference of two, over folds, with its 95 % interval."""

    estimate: float
    low: float
    high: float


def points(share: float, *, signed: bool = True) -> str:
    """A difference of shares as percentage points, to one decimal; to more where it would read 0 and is not.

    >>> points(0.021), points(-0.00049), points(0.0), points(0.0004, signed=False)
    ('+2.1', '−0.05', '+0.0', '0.04')
    """
    value = 100 * share + 0.0  # no −0.0
    places = -math.floor(math.log10(abs(value))) if 1e-4 < abs(value) < 0.05 else 1
    return f"{value:{'+' if signed else ''}.{places}f}".replace("-", "−")


def accuracy_interval(hits: Bool[np.ndarray, "seeds images"], groups: Groups | None = None) -> Interval:
    """The accuracy of a network, as a mean over seeds, with its 95 % interval.

    Raises:
        ValueError: not a table of hits, or of fewer than two images; another number of groups.
    """
    _check("hits", hits)
    values = hits.mean(0)
    mean, image_variance = _padded(values, added=4, total=2, squares=2)
    images = over_groups(deviations(values), groups, (image_variance, len(values)))
    return _interval(float(hits.mean()), mean, images, [_over_seeds(hits.mean(1))])


def balanced_interval(
    hits: Bool[np.ndarray, "seeds images"], labels: Int[np.ndarray, " images"], groups: Groups | None = None
) -> Interval:
    """The mean over classes of the share of each that is found, as a mean over seeds, with its 95 % interval.

    Guessing has one over the number of classes, however uneven they are. Classes without images do not count.

    Raises:
        ValueError: not a table of hits, or another number of labels or groups.
    """
    _check("hits", hits)
    _check_labels(labels, hits)
    # The pseudo images widen the interval, but must not move it: a rare class would be half right by them alone.
    values = hits.mean(0)
    alone = _over_classes(values, labels, added=4, total=2, squares=2)
    images = over_groups(deviations(values, labels), groups, alone, labels)
    by_seed = _of_classes(hits, labels)
    return _interval(float(by_seed.mean()), float(by_seed.mean()), images, [_over_seeds(by_seed)])


def balanced_difference_interval(
    first: Bool[np.ndarray, "seeds images"],
    second: Bool[np.ndarray, "other_seeds images"],
    labels: Int[np.ndarray, " images"],
    groups: Groups | None = None,
) -> Interval:
    """What `first` finds of a class, on average over classes, less what `second` does, with its 95 % interval.

    Images are paired, seeds are not. Classes without images do not count.

    Raises:
        ValueError: not tables of hits on the same images, or another number of labels or groups.
    """
    _check_pair(first, second)
    _check_labels(labels, first)
    values = first.mean(0) - second.mean(0)
    alone = _over_classes(values, labels, added=2, total=0, squares=1)
    images = over_groups(deviations(values, labels), groups, alone, labels)
    by_seed = [_of_classes(one, labels) for one in (first, second)]
    apart = float(by_seed[0].mean() - by_seed[1].mean())
    return _interval(apart, apart, images, [_over_seeds(one) for one in by_seed], least=-1.0)


def difference_interval(
    first: Bool[np.ndarray, "seeds images"],
    second: Bool[np.ndarray, "other_seeds images"],
    groups: Groups | None = None,
) -> Interval:
    """The accuracy of `first` less that of `second`, image by image, with its 95 % interval.

    Images are paired, seeds are not: the same number means other weights in another network.

    Raises:
        ValueError: not tables of hits on the same images, or another number of groups.
    """
    _check_pair(first, second)
    apart = first.mean(0) - second.mean(0)
    mean, image_variance = _padded(apart, added=2, total=0, squares=1)
    images = over_groups(deviations(apart), groups, (image_variance, len(apart)))
    seeds = [_over_seeds(first.mean(1)), _over_seeds(second.mean(1))]
    return _interval(float(apart.mean()), mean, images, seeds, least=-1.0)


def fold_interval(
    values: Sequence[float], tested: int, others: int, image_error: float = 0.0, least: float = 0.0
) -> FoldInterval:
    """The mean of shares, or of differences of shares, over the folds of a cross-validation, with its 95 % interval.

    The corrected resampled t interval of Nadeau and Bengio 2003 (Machine Learning 52, §4): any two folds train on
    mostly the same images, so their values are alike, and their variance is not divided by their number k alone but
    multiplied by 1/k + tested/others; Student's quantile has k − 1 degrees of freedom. It was derived for random
    splits; folds are those that do not overlap. It is never narrower than the test images alone make it, for folds that
    happen to agree would know everything.

    Args:
        values: of each fold.
        tested, others: images of all folds together that are tested, and that are not; their ratio counts.
        image_error: standard error of the mean by the choice of test images, as `Interval` has it.
        least: the smallest possible value, as -1 for a difference; the largest is 1.

    Raises:
        ValueError: fewer than two folds, or no images.

    >>> fold_interval([0.7, 0.8, 0.9], tested=30, others=60)
    FoldInterval(estimate=0.8, low=0.4072..., high=1.0)
    """
    if len(values) < 2:
        raise ArgumentError("values", "be of at least 2 folds", len(values))
    if tested < 1 or others < 1:
        raise ValueError(f"tested, others: must be at least 1 image each, got {tested} and {others}")
    mean, variance = statistics.mean(values), statistics.variance(values) * (1 / len(values) + tested / others)
    error = max(variance**0.5, image_error)
    half = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
    return FoldInterval(mean, max(least, mean - half), min(1.0, mean + half))


def _check(name: str, hits: np.ndarray) -> None:
    if hits.dtype != bool or hits.ndim != 2 or hits.shape[0] < 1 or hits.shape[1] < 2:
        raise ValueError(
            f"{name}: must be hits [seeds images] of at least one seed and two images, got {hits.dtype} {hits.shape}"
        )


def _check_pair(first: np.ndarray, second: np.ndarray) -> None:
    _check("first", first)
    _check("second", second)
    if first.shape[1] != second.shape[1]:
        raise ArgumentError("second", f"be of the same {first.shape[1]} images as first", second.shape[1])


def _check_labels(labels: np.ndarray, hits: np.ndarray) -> None:
    if labels.shape != hits.shape[1:]:
        raise ArgumentError("labels", f"be one for each of the {hits.shape[1]} images", labels.shape)


def _of_classes(hits: np.ndarray, labels: np.ndarray) -> Float[np.ndarray, " seeds"]:
    """The mean over classes of the share that each seed finds."""
    shares: Float[np.ndarray, " seeds"] = np.mean([hits[:, labels == label].mean(1) for label in np.unique(labels)], 0)
    return shares


def _over_classes(
    values: Float[np.ndarray, " images"], labels: np.ndarray, added: int, total: float, squares: float
) -> Part:
    """What the choice of images adds to the variance of a mean over classes, and the number that its degrees are of.

    As the centre stays where it is, each class's variance is that of its own number of images; the rare ones have few
    degrees.
    """
    classes = [values[labels == label] for label in np.unique(labels)]
    counts = [len(one) for one in classes]
    padded = [_padded(one, added, total, squares)[1] for one in classes]
    variances = [one * (number + added) / number for one, number in zip(padded, counts, strict=True)]
    parts = sum(one**2 / (number + added - 1) for one, number in zip(variances, counts, strict=True))
    return sum(variances) / len(classes) ** 2, sum(variances) ** 2 / parts + 1


def _padded(values: Float[np.ndarray, " images"], added: int, total: float, squares: float) -> tuple[float, float]:
    """Mean over images and its variance, with pseudo images: how many, their sum and their sum of squares."""
    count = len(values) + added
    mean = (values.sum() + total) / count
    return float(mean), float(((values**2).sum() + squares) / count - mean**2) / count


def interval_over_seeds(
    accuracies: Float[np.ndarray, " seeds"], others: Float[np.ndarray, " others"]
) -> tuple[float, float]:
    """The 95 % interval of the difference of two means over seeds alone (Welch 1947), whatever the test images do.

    >>> [round(bound, 4) for bound in interval_over_seeds(np.array([0.96, 0.97]), np.array([0.94, 0.95]))]
    [-0.0104, 0.0504]
    """
    difference = float(accuracies.mean() - others.mean())
    parts = [part for part in (_over_seeds(accuracies), _over_seeds(others)) if part[0] > 0]
    half = _half_width(parts)[0] if parts else 0.0
    return difference - half, difference + half


def _over_seeds(accuracies: Float[np.ndarray, " seeds"]) -> Part:
    """What seeds add to the variance of the mean, 0 where there is one; and how many they are."""
    seeds = len(accuracies)
    return float(accuracies.var(ddof=1)) / seeds if seeds > 1 else 0.0, seeds


def _interval(
    estimate: float, centre: float, over_images: Part, over_seeds: Sequence[Part], least: float = 0.0
) -> Interval:
    """Student's interval around `centre`, from `least` to 1 and with the estimate in it.

    Degrees of freedom are of the parts that are not 0.
    """
    parts = [over_images, *(part for part in over_seeds if part[0] > 0)]
    half, degrees = _half_width(parts)
    several = min(seeds for _, seeds in over_seeds) > 1
    seed_error = sum(part for part, _ in over_seeds) ** 0.5 if several else None
    low, high = max(least, centre - half), min(1.0, centre + half)
    return Interval(estimate, min(low, estimate), max(high, estimate), over_images[0] ** 0.5, seed_error, degrees)


def _half_width(parts: Sequence[Part]) -> tuple[float, float]:
    """Of Student's interval with the variance of all parts together, and its degrees of freedom by Satterthwaite."""
    variance = sum(part for part, _ in parts)
    degrees = variance**2 / sum(part**2 / (count - 1) for part, count in parts)
    return float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) * variance**0.5, degrees

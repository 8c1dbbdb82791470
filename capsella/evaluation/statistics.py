"""Confidence intervals and tests: over test images, over groups of images, over seeds and over folds.

Measurements are tables of correctness, [seeds images]: whether the network trained with each seed classifies each test
image correctly. Another laboratory would have drawn other test images and other seeds, so an interval covers both. The
variance of a mean over the table is that of two crossed random effects,

    images: variance over images of their mean over seeds / images    seeds: variance of the seeds' accuracies / seeds

The noise of single answers is part of both, which is conservative. The quantile is Student's, with the degrees of
freedom of Satterthwaite (1946). Near 0 and 1, and where two networks agree on every image, a plain variance would be 0.
So pseudo-images are added: two correct and two wrong ones for an accuracy (Agresti and Coull 1998), half an image for
each outcome of a pair for a difference (Agresti and Min 2005).

A hundred images of five patients say little about a sixth patient. Groups are therefore treated as sampled whole: the
variance of a mean is that of the groups' summed influences (Korn and Graubard 1999, Analysis of Health Surveys, §2.2
and §3.2). A large group pulls the mean towards itself, so its own sum is too small; the correction of the sums and the
degrees of freedom are those of Bell and McCaffrey 2002 (Survey Methodology 28). For g groups of equal size this is the
factor g / (g − 1) and g − 1 degrees of freedom.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from capsella.errors import ArgumentError

CONFIDENCE = 0.95
POWER = 0.8

Groups = Int[np.ndarray, " images"]  # the index of each image's group
FoldNumbers = Int[np.ndarray, " images"]  # the index of the fold that tested each image
Correct = Bool[np.ndarray, "seeds images"]


class VarianceComponent(NamedTuple):
    """A part of the variance of a mean, and its degrees of freedom."""

    variance: float
    dof: float


@dataclass(frozen=True)
class Interval:
    """A proportion, or a difference of two, with its 95 % interval over test images and seeds.

    Attributes:
        image_error: standard error from the choice of test images.
        seed_error: standard error from the choice of seeds; of one side alone if the other has a single seed, None if
            each side has.
        degrees: degrees of freedom of Student's quantile.
    """

    estimate: float
    low: float
    high: float
    image_error: float
    seed_error: float | None
    degrees: float

    @property
    def standard_error(self) -> float:
        """The standard error from images and seeds together."""
        return float(np.hypot(self.image_error, self.seed_error or 0.0))

    @property
    def detectable(self) -> float:
        """The smallest true difference that such a comparison detects with a power of 0.8."""
        quantiles = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, self.degrees) + scipy.stats.norm.ppf(POWER)
        return float(quantiles) * self.standard_error

    @property
    def p_value(self) -> float:
        """The two-sided p-value of a t-test against 0; 1 without any variance."""
        error = self.standard_error
        return 2 * float(scipy.stats.t.sf(abs(self.estimate) / error, self.degrees)) if error else 1.0

    def to_dict(self) -> dict[str, float | None]:
        """Return plain numbers for JSON."""
        return asdict(self)


def over_seeds(values: Sequence[float]) -> str:
    """Format a number over seeds; a single seed has no spread.

    >>> over_seeds([0.2, 0.3, 0.4]), over_seeds([0.25])
    ('0.30 ± 0.10', '0.25')
    """
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def points(difference: float, *, signed: bool = True) -> str:
    """Format a difference of proportions as percentage points, with more decimals if it would read 0 and is not.

    >>> points(0.021), points(-0.00049), points(0.0), points(0.0004, signed=False)
    ('+2.1', '−0.05', '+0.0', '0.04')
    """
    value = 100 * difference + 0.0  # no −0.0
    places = -math.floor(math.log10(abs(value))) if 1e-4 < abs(value) < 0.05 else 1
    return f"{value:{'+' if signed else ''}.{places}f}".replace("-", "−")


# Score intervals of one network over test images


def wilson_interval(hits: float, number: float) -> tuple[float, float]:
    """Return the 95 % interval of a proportion of `hits` in `number` (Wilson 1927).

    Both may be fractions: correlated images count as fewer independent ones.

    >>> wilson_interval(0, 100)
    (0.0, 0.03699...)
    """
    if not 0 <= hits <= number or number == 0:
        raise ArgumentError("hits", f"be among {number} images", hits)
    squared = scipy.stats.norm.ppf((1 + CONFIDENCE) / 2) ** 2
    proportion, scale = hits / number, 1 + squared / number
    centre = (proportion + squared / (2 * number)) / scale
    half = (squared * (proportion * (1 - proportion) / number + squared / (4 * number**2))) ** 0.5 / scale
    return 0.0 if hits == 0 else float(centre - half), 1.0 if hits == number else float(centre + half)


def proportion_interval(values: Bool[np.ndarray, " images"], groups: Groups | None) -> tuple[float, float]:
    """Return the 95 % Wilson interval of the proportion of True, over groups if there are any."""
    fraction = effective_sample_fraction(values, groups)
    return wilson_interval(fraction * int(values.sum()), fraction * len(values))


def auc_interval(auc: float, negatives: float, positives: float) -> tuple[float, float]:
    """Return the 95 % interval of an area under the ROC curve (Newcombe 2006, Statistics in Medicine 25, method 5).

    A score interval with Hanley and McNeil's variance at the mean of both numbers, so that even an area of 1 shows how
    little a few images prove. The numbers of images may be fractions.

    >>> auc_interval(1.0, 50, 50)
    (0.960..., 1.0)
    """
    if not (0 <= auc <= 1 and min(negatives, positives) > 0):
        raise ArgumentError("auc", "be in [0, 1], of at least one image of each kind", (auc, negatives, positives))
    quantile = scipy.stats.norm.ppf((1 + CONFIDENCE) / 2)
    less_one = (negatives + positives) / 2 - 1

    def beyond(area: float) -> float:
        spread = 1 + less_one * ((1 - area) / (2 - area) + area / (1 + area))
        return float(abs(area - auc) - quantile * (area * (1 - area) * spread / (negatives * positives)) ** 0.5)

    # 0 and 1 are roots themselves.
    low = 0.0 if auc == 0 else float(scipy.optimize.brentq(beyond, 0, min(auc, 1 - 1e-12)))
    return low, 1.0 if auc == 1 else float(scipy.optimize.brentq(beyond, max(auc, 1e-12), 1))


# Groups of images


def influence(
    values: Float[np.ndarray, " images"], labels: Int[np.ndarray, " images"] | None = None
) -> Float[np.ndarray, " images"]:
    """Return how far each image moves the mean of `values`, or with labels the mean over classes. The sum is 0."""
    if labels is None:
        return (values - values.mean()) / len(values)
    _, label, counts = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.bincount(label, weights=values) / counts
    moves: Float[np.ndarray, " images"] = (values - means[label]) / (len(counts) * counts[label])
    return moves


def cluster_variance(
    moves: Float[np.ndarray, " images"],
    groups: Groups | None,
    independent: VarianceComponent,
    labels: Int[np.ndarray, " images"] | None = None,
) -> VarianceComponent:
    """Return the variance of a mean over grouped images, never below that of independent images.

    A few groups may agree by luck: then the images set the variance, and the groups the degrees of freedom. For a mean
    over classes the groups of each class count: with one diagnosis per patient, the few patients of a rare class.

    Args:
        moves: `influence` of each image.
        groups: None if images are independent. A single group is ignored.
        independent: the component that independent images would have.
        labels: for a mean over classes.
    """
    if groups is None:
        return independent
    if groups.shape != moves.shape:
        raise ArgumentError("groups", f"be one for each of the {len(moves)} images", groups.shape)
    labels = np.zeros(len(moves), int) if labels is None else labels
    sums, weights = _by_group_and_class(moves, groups, labels)
    if len(sums) < 2:
        return independent
    several = np.all(weights < 1, axis=0)  # in a class of one group, images count as independent
    each = [_bell_mccaffrey(sums[:, [k]], weights[:, [k]]) for k in np.flatnonzero(several)]
    single = [_independent(moves[labels == label]) for label in np.unique(labels)[~several]]
    joint = [_bell_mccaffrey(sums[:, several], weights[:, several])] if several.any() else []
    variance = sum(component.variance for component in joint + single)
    # Where all values agree, the degrees of freedom follow from the sizes of the groups alone.
    degrees = (
        [_satterthwaite(each + single), _satterthwaite(joint + single)]
        if variance
        else [component.dof for component in joint or single]
    )
    return VarianceComponent(max(variance, independent.variance), min(*degrees, len(sums) - 1.0))


def effective_sample_fraction(
    values: Bool[np.ndarray, " images"] | Float[np.ndarray, " images"], groups: Groups | None
) -> float:
    """Return how many independent images an image is worth for the mean of `values`: 1 / design effect, at most 1.

    Student's quantiles reduce it further for few groups (Korn and Graubard 1998, Survey Methodology 24). If all values
    agree, the design effect is unknown and taken as 1, which may be too small.

    >>> effective_sample_fraction(np.array([True, True, False, False] * 8), np.arange(32) // 2 % 4)
    0.0...
    """
    if groups is None or len(np.unique(groups)) < 2:
        return 1.0
    moves = influence(values.astype(float))
    alone = float((moves**2).sum()) if np.ptp(moves) > 0 else 0.0
    variance, dof = cluster_variance(moves, groups, VarianceComponent(alone, len(moves) - 1))
    effect = variance / alone if alone else 1.0
    quantiles = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, [len(values) - 1, dof])
    return float((quantiles[0] / quantiles[1]) ** 2 / effect)


def _by_group_and_class(
    moves: Float[np.ndarray, " images"], groups: Groups, labels: Int[np.ndarray, " images"]
) -> tuple[Float[np.ndarray, "groups classes"], Float[np.ndarray, "groups classes"]]:
    """Return each group's summed influence on each class, and its fraction of the class's images."""
    group = np.unique(groups, return_inverse=True)[1]
    label = np.unique(labels, return_inverse=True)[1]
    shape = int(group.max()) + 1, int(label.max()) + 1
    cell = group * shape[1] + label
    counts = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    sums = np.bincount(cell, weights=moves, minlength=counts.size).reshape(shape)
    return sums, counts / counts.sum(0)


def _bell_mccaffrey(
    sums: Float[np.ndarray, "groups classes"], weights: Float[np.ndarray, "groups classes"]
) -> VarianceComponent:
    """Return the variance of a sum over classes of several groups each (Bell and McCaffrey 2002).

    If all images of group h were off by e_h, the corrected sums would be B e, and the mean off by `weights` · e. The
    squared sums are too small by the ratio of both, and have tr(BBᵀ)² / tr((BBᵀ)²) degrees of freedom. B is a diagonal
    `weights` minus P · weightsᵀ; BBᵀ is never written out, because it would be large for many groups.
    """
    P = weights / np.sqrt(1 - weights)
    diagonal = P.sum(1)
    classes = weights.shape[1]
    factors = np.concatenate([P, diagonal[:, None] * weights], 1)  # BBᵀ = diagonal² + factors · inner · factorsᵀ
    inner = np.zeros((2 * classes, 2 * classes))
    inner[:classes, :classes] = weights.T @ weights
    inner[:classes, classes:] = inner[classes:, :classes] = -np.eye(classes)
    moved = inner @ (factors.T @ factors)
    trace = float((diagonal**2).sum() + np.trace(moved))
    crossed = np.trace(inner @ (factors.T @ (factors * diagonal[:, None] ** 2)))
    squared = float((diagonal**4).sum() + 2 * crossed + np.trace(moved @ moved))
    lost = float((weights.sum(1) ** 2).sum()) / trace
    variance = lost * float(((sums / np.sqrt(1 - weights)).sum(1) ** 2).sum())
    return VarianceComponent(variance, max(trace**2 / squared, 1.0))


def _independent(moves: Float[np.ndarray, " images"]) -> VarianceComponent:
    dof = max(len(moves) - 1, 1)
    return VarianceComponent(len(moves) / dof * float((moves**2).sum()), dof)


def _satterthwaite(components: Sequence[VarianceComponent]) -> float:
    """Return the degrees of freedom of a sum of variances (Satterthwaite 1946)."""
    total = sum(component.variance for component in components)
    return total**2 / sum(component.variance**2 / component.dof for component in components)


# Intervals over images and seeds


def accuracy_interval(
    correct: Correct,
    groups: Groups | None = None,
    folds: FoldNumbers | None = None,
    *,
    labels: Int[np.ndarray, " images"] | None = None,
) -> Interval:
    """Return the accuracy of a network, as a mean over seeds, with its 95 % interval.

    Args:
        correct: for each seed and image, whether the network classifies it correctly.
        groups: the index of each image's group.
        folds: the fold that tested each image, in a cross-validation: each fold and seed is a training of its own.
        labels: for the balanced accuracy, which is the mean recall over the classes that have images.
    """
    _check_correct("correct", correct, labels)
    values, by_seed = correct.mean(0), _means(correct, labels)
    centre, alone = _with_pseudo_images(values, labels, added=4, total=2, squares=2)
    moves = influence(values, labels)
    images = cluster_variance(moves, groups, alone, labels)
    return _interval(float(by_seed.mean()), centre, images, _trainings([by_seed], moves, folds, images))


def difference_interval(
    first: Correct,
    second: Bool[np.ndarray, "other_seeds images"],
    groups: Groups | None = None,
    folds: FoldNumbers | None = None,
    *,
    labels: Int[np.ndarray, " images"] | None = None,
    paired_seeds: bool = False,
    seed_variance: VarianceComponent | None = None,
) -> Interval:
    """Return the accuracy of `first` minus that of `second`, paired over images, with its 95 % interval.

    Seeds are not paired by default, because the same seed gives unrelated weights in another network. Set
    `paired_seeds` if each seed also drew the training images of both networks. `seed_variance` is the variance of one
    seed's accuracy, pooled over similar rows (`pooled_seed_variance`); it replaces that of each side. `groups`, `folds`
    and `labels` are as in `accuracy_interval`.
    """
    _check_pair(first, second, labels)
    apart = first.mean(0) - second.mean(0)
    by_seed = [_means(correct, labels) for correct in (first, second)]
    centre, alone = _with_pseudo_images(apart, labels, added=2, total=0, squares=1)
    moves = influence(apart, labels)
    images = cluster_variance(moves, groups, alone, labels)
    if paired_seeds:
        trainings = [_seed_component(by_seed[0] - by_seed[1])]
    elif seed_variance is not None and seed_variance.dof:
        variance = seed_variance.variance * (1 / len(first) + 1 / len(second))
        trainings = [VarianceComponent(variance, seed_variance.dof)]
    else:
        trainings = _trainings(by_seed, moves, folds, images)
    return _interval(float(by_seed[0].mean() - by_seed[1].mean()), centre, images, trainings, least=-1.0)


def slope_interval(
    first: Correct,
    second: Bool[np.ndarray, "other_seeds images"],
    covariate: Float[np.ndarray, " images"],
    groups: Groups | None = None,
) -> Interval:
    """Return how much the accuracy of `first` minus that of `second` rises per standard deviation of a covariate.

    The slope of least squares, paired over images, with its 95 % interval over images (or their groups) and seeds.

    Raises:
        ArgumentError: a covariate of another shape or with one value only; arrays that do not fit.
    """
    _check_pair(first, second)
    if covariate.shape != first.shape[1:] or not np.ptp(covariate):
        rule = f"be one number for each of the {first.shape[1]} images, not all equal"
        raise ArgumentError("covariate", rule, covariate.shape)
    z = (covariate - covariate.mean()) / covariate.std()
    by_seed = [(correct * z).mean(1) for correct in (first, second)]
    slope = float(by_seed[0].mean() - by_seed[1].mean())
    apart = first.mean(0) - second.mean(0)
    moves = z * (apart - apart.mean() - slope * z) / len(z)
    dof = len(z) - 2
    alone = VarianceComponent(len(z) / dof * float((moves**2).sum()), dof)
    images = cluster_variance(moves, groups, alone)
    return _interval(slope, None, images, [_seed_component(slopes) for slopes in by_seed], least=-math.inf)


def detectable_difference(
    labels: Int[np.ndarray, " images"], disagreement: float, *, balanced: bool, units: int | None = None
) -> float:
    """Return the smallest true difference of two networks that a test detects with a power of 0.8.

    Args:
        labels: the classes of the test images.
        disagreement: the expected proportion of images that only one of the two classifies correctly.
        balanced: compare balanced accuracies, in which images of rare classes weigh more.
        units: the number of independent units, e.g. patients; default: every image is one.

    >>> round(detectable_difference(np.zeros(800, int), 0.06, balanced=False), 4)
    0.0243
    """
    counts = np.unique(labels, return_counts=True)[1] if balanced else np.array([len(labels)])
    variance = disagreement * float((1 / counts).sum()) / len(counts) ** 2 * len(labels) / (units or len(labels))
    return float(scipy.stats.norm.ppf((1 + CONFIDENCE) / 2) + scipy.stats.norm.ppf(POWER)) * variance**0.5


def pooled_seed_variance(rows: Iterable[Correct]) -> VarianceComponent:
    """Return the variance of one seed's accuracy, pooled over similar rows: two or three seeds of one row say little.

    No degrees of freedom if all rows have a single seed.

    >>> pooled_seed_variance([np.array([[True, True], [True, False]])])
    VarianceComponent(variance=0.125, dof=1)
    """
    variances = [(row.mean(1).var(ddof=1), len(row) - 1) for row in rows if len(row) > 1]
    dof = sum(seeds for _, seeds in variances)
    return VarianceComponent(float(sum(variance * seeds for variance, seeds in variances)) / max(dof, 1), dof)


def rank_test(first: Correct, second: Bool[np.ndarray, "other_seeds images"], groups: Groups) -> float:
    """Return the p-value of Wilcoxon's signed-rank test over groups of images, e.g. objects.

    A few hard objects can carry a mean; here each object counts by its rank. 1 if both are equal on all objects.
    """
    _check_pair(first, second)
    labels = np.unique(groups, return_inverse=True)[1]
    apart = np.bincount(labels, weights=first.mean(0) - second.mean(0)) / np.bincount(labels)
    return float(scipy.stats.wilcoxon(apart).pvalue) if apart.any() else 1.0


def _check_correct(name: str, correct: np.ndarray, labels: np.ndarray | None = None) -> None:
    if correct.dtype != bool or correct.ndim != 2 or correct.shape[0] < 1 or correct.shape[1] < 2:
        rule = "be booleans [seeds images] of at least one seed and two images"
        raise ArgumentError(name, rule, (str(correct.dtype), correct.shape))
    if labels is not None and labels.shape != correct.shape[1:]:
        raise ArgumentError("labels", f"be one for each of the {correct.shape[1]} images", labels.shape)


def _check_pair(first: np.ndarray, second: np.ndarray, labels: np.ndarray | None = None) -> None:
    _check_correct("first", first, labels)
    _check_correct("second", second)
    if first.shape[1] != second.shape[1]:
        raise ArgumentError("second", f"be of the same {first.shape[1]} images as first", second.shape[1])


def _means(correct: np.ndarray, labels: np.ndarray | None) -> Float[np.ndarray, " seeds"]:
    """Return each seed's accuracy, or with labels its mean recall over classes."""
    columns = [correct] if labels is None else [correct[:, labels == label] for label in np.unique(labels)]
    means: Float[np.ndarray, " seeds"] = np.mean([column.mean(1) for column in columns], 0)
    return means


def _with_pseudo_images(
    values: Float[np.ndarray, " images"], labels: np.ndarray | None, added: int, total: float, squares: float
) -> tuple[float | None, VarianceComponent]:
    """Return the centre of an interval, and the variance of a mean over independent images.

    Pseudo-images are added, given by their number, sum and sum of squares. In a mean over classes they widen the
    interval but must not move it, because they alone would make a rare class half correct: the centre is then None.
    """
    if labels is None:
        mean, variance = _padded(values, added, total, squares)
        return mean, VarianceComponent(variance, len(values) - 1)
    classes = [values[labels == label] for label in np.unique(labels)]
    counts = [len(own) for own in classes]
    padded = [_padded(own, added, total, squares)[1] for own in classes]
    # Each class's variance is that of its own number of images; a rare class brings few degrees of freedom.
    variances = [variance * (count + added) / count for variance, count in zip(padded, counts, strict=True)]
    parts = sum(variance**2 / (count + added - 1) for variance, count in zip(variances, counts, strict=True))
    return None, VarianceComponent(sum(variances) / len(classes) ** 2, sum(variances) ** 2 / parts)


def _padded(values: Float[np.ndarray, " images"], added: int, total: float, squares: float) -> tuple[float, float]:
    """Return the mean over images and its variance, with pseudo-images."""
    count = len(values) + added
    mean = (values.sum() + total) / count
    return float(mean), float(((values**2).sum() + squares) / count - mean**2) / count


def _trainings(
    by_seed: Sequence[Float[np.ndarray, " seeds"]],
    moves: Float[np.ndarray, " images"],
    folds: FoldNumbers | None,
    images: VarianceComponent,
) -> list[VarianceComponent]:
    """Return the variance due to training: a component for the seeds of each network, or one for the folds.

    The images of a fold share its training. So the sums of their influences vary over folds by more than single images
    explain, and the rest is due to training.
    """
    if folds is None or len(np.unique(folds)) < 2:
        return [_seed_component(accuracies) for accuracies in by_seed]
    sums = np.bincount(np.unique(folds, return_inverse=True)[1], weights=moves)
    degrees = len(sums) - 1
    variance = len(sums) / degrees * float((sums**2).sum())
    rest = variance - images.variance
    # The rest is as uncertain as the variance over folds that it comes from.
    return [VarianceComponent(rest, degrees * (rest / variance) ** 2) if rest > 0 else VarianceComponent(0.0, degrees)]


def _seed_component(accuracies: Float[np.ndarray, " seeds"]) -> VarianceComponent:
    """Return the variance of a mean over seeds; 0 for a single seed."""
    seeds = len(accuracies)
    return VarianceComponent(float(accuracies.var(ddof=1)) / seeds if seeds > 1 else 0.0, seeds - 1)


def _interval(
    estimate: float,
    centre: float | None,
    images: VarianceComponent,
    seeds: Sequence[VarianceComponent],
    least: float = 0.0,
) -> Interval:
    """Return Student's interval around `centre`, clipped to [least, 1] and widened to include the estimate."""
    components = [images, *(part for part in seeds if part.variance > 0)]
    degrees, variance = _satterthwaite(components), sum(component.variance for component in components)
    half = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) * variance**0.5
    several = max(part.dof for part in seeds) > 0
    seed_error = sum(part.variance for part in seeds) ** 0.5 if several else None
    centre = estimate if centre is None else centre
    low, high = max(least, centre - half), min(1.0, centre + half)
    return Interval(estimate, min(low, estimate), max(high, estimate), images.variance**0.5, seed_error, degrees)


# Tests


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for a family of tests (Holm 1979).

    >>> [round(p, 6) for p in holm_adjusted([0.04, 0.001, 0.03])]
    [0.06, 0.003, 0.06]
    """
    adjusted, largest = [1.0] * len(p_values), 0.0
    for done, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - done) * p_values[at]))
        adjusted[at] = largest
    return adjusted

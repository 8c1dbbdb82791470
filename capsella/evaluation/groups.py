"""Groups: images that are alike, as those of a patient or of a toy, and what they prove of others.

A hundred views of five toys say little of a sixth. Groups are therefore taken as drawn whole, as surveys take
villages: the variance of a mean is that of the groups' sums of deviations (Korn and Graubard 1999, Analysis of Health
Surveys, §2.2 and §3.2). A large group draws the mean to itself, so its own sum is too small, and a mean of one large
and many small groups rests on few: the correction of sums and the degrees of freedom are those of Bell and McCaffrey
2002 (Survey Methodology 28), as where all images of a group are alike. For g groups of one size this is the factor
g / (g − 1) and g − 1 degrees.
"""

from collections.abc import Sequence

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from capsella.errors import ArgumentError
from capsella.evaluation.wilson import CONFIDENCE, wilson_interval

Groups = Int[np.ndarray, " images"]
"""The number of each image's group."""
Part = tuple[float, float]
"""Of the variance of a mean: how much by images, or by seeds, and how many they are; here also its degrees."""


def deviations(
    values: Float[np.ndarray, " images"], labels: Int[np.ndarray, " images"] | None = None
) -> Float[np.ndarray, " images"]:
    """What each image adds to the mean beyond its share of it; with labels, to the mean over classes. The sum is 0."""
    if labels is None:
        return (values - values.mean()) / len(values)
    _, label, counts = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.bincount(label, weights=values) / counts
    added: Float[np.ndarray, " images"] = (values - means[label]) / (len(counts) * counts[label])
    return added


def over_groups(
    added: Float[np.ndarray, " images"],
    groups: Groups | None,
    images: Part,
    labels: Int[np.ndarray, " images"] | None = None,
) -> Part:
    """What the choice of groups adds to the variance of a mean, at least what that of single images would.

    Few groups may be alike by luck: then the images tell how large the variance is, and the groups how sure that is.
    A mean over classes rests on the groups that each class has: where a patient has one diagnosis, on few patients of
    the rare one.

    Args:
        added: by each image, as `deviations` has it.
        groups: None where every image stands for itself. A single group says nothing of others, so it is as none.
        images: what the choice of images would add if all were independent.
        labels: of a mean over classes, as for `deviations`.

    Raises:
        ValueError: not a group for each image.
    """
    if groups is None:
        return images
    if groups.shape != added.shape:
        raise ArgumentError("groups", f"be one for each of the {len(added)} images", groups.shape)
    labels = np.zeros(len(added), int) if labels is None else labels
    sums, shares = _by_class(added, groups, labels)
    if len(sums) < 2:
        return images
    several = np.all(shares < 1, axis=0)  # in a class of one group, each image stands for itself
    parts = [_of_groups(sums[:, [one]], shares[:, [one]]) for one in np.flatnonzero(several)]
    alone = _of_single_groups(added, labels, ~several)
    together = [_of_groups(sums[:, several], shares[:, several])] if several.any() else []
    variance = sum(part for part, _ in together + alone)
    # Where nothing differs, how much counts of what is not known, and the groups' sizes alone tell the degrees.
    sure = [_degrees(parts + alone), _degrees(together + alone)] if variance else [one for _, one in together or alone]
    return max(variance, images[0]), min(*sure, len(sums) - 1.0) + 1


def _by_class(
    added: Float[np.ndarray, " images"], groups: Groups, labels: Int[np.ndarray, " images"]
) -> tuple[Float[np.ndarray, "groups classes"], Float[np.ndarray, "groups classes"]]:
    """The sum of what each group adds to the mean of each class, and its share of the class's images."""
    group = np.unique(groups, return_inverse=True)[1]
    label = np.unique(labels, return_inverse=True)[1]
    shape = int(group.max()) + 1, int(label.max()) + 1
    cell = group * shape[1] + label
    counts = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    sums = np.bincount(cell, weights=added, minlength=counts.size).reshape(shape)
    return sums, counts / counts.sum(0)


def _of_groups(sums: Float[np.ndarray, "groups classes"], shares: Float[np.ndarray, "groups classes"]) -> Part:
    """The variance of the sum of classes, each of several groups, and its degrees of freedom (Bell, McCaffrey 2002).

    Were all images of group h off by e_h, the corrected sums would be B e, and the mean off by `weights` · e. So the
    squares of the sums are too small by what is lost between both, and have tr(BBᵀ)² / tr((BBᵀ)²) degrees. B is a
    diagonal `weights` less P · sharesᵀ, and BBᵀ is never written down: of many groups it would be large.
    """
    P = shares / np.sqrt(1 - shares)
    diagonal = P.sum(1)
    classes = shares.shape[1]
    factors = np.concatenate([P, diagonal[:, None] * shares], 1)  # BBᵀ = diagonal² + factors · inner · factorsᵀ
    inner = np.zeros((2 * classes, 2 * classes))
    inner[:classes, :classes] = shares.T @ shares
    inner[:classes, classes:] = inner[classes:, :classes] = -np.eye(classes)
    moved = inner @ (factors.T @ factors)
    trace = float((diagonal**2).sum() + np.trace(moved))
    crossed = np.trace(inner @ (factors.T @ (factors * diagonal[:, None] ** 2)))
    squared = float((diagonal**4).sum() + 2 * crossed + np.trace(moved @ moved))
    lost = float((shares.sum(1) ** 2).sum()) / trace
    return lost * float(((sums / np.sqrt(1 - shares)).sum(1) ** 2).sum()), max(trace**2 / squared, 1.0)


def _of_single_groups(
    added: Float[np.ndarray, " images"], labels: Int[np.ndarray, " images"], single: Bool[np.ndarray, " classes"]
) -> list[Part]:
    """The variance that the images of each such class add, and its degrees."""
    of_class = [added[labels == label] for label in np.unique(labels)[single]]
    return [(len(own) / max(len(own) - 1, 1) * float((own**2).sum()), max(len(own) - 1, 1)) for own in of_class]


def _degrees(parts: Sequence[Part]) -> float:
    """Degrees of freedom of a sum of variances (Satterthwaite 1946), each with its own."""
    return sum(one for one, _ in parts) ** 2 / sum(one**2 / number for one, number in parts)


def worth(
    values: Bool[np.ndarray, " images"] | Float[np.ndarray, " images"],
    groups: Groups | None,
    labels: Int[np.ndarray, " images"] | None = None,
) -> float:
    """How many independent images an image is worth for the mean of `values`, at most 1: one over the design effect.

    Less the fewer the groups, by Student's quantiles (Korn and Graubard 1998, Survey Methodology 24). Where all values
    are the same, nothing tells how alike a group is: the design effect is taken for 1, which may be too small.

    labels: for the mean over classes in place of the mean over images.

    >>> worth(np.array([True, True, False, False] * 8), np.arange(32) // 2 % 4)
    0.0...
    """
    if groups is None or len(np.unique(groups)) < 2:
        return 1.0
    differ = np.ptp(values.astype(float)) > 0
    added = deviations(values.astype(float), labels) if differ else np.zeros(len(values))
    alone = float((added**2).sum())
    variance, count = over_groups(added, groups, (alone, len(added)), labels)
    effect = variance / alone if alone else 1.0
    quantiles = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, [len(values) - 1, count - 1])
    return float((quantiles[0] / quantiles[1]) ** 2 / effect)


def share_interval(hits: Bool[np.ndarray, " images"], groups: Groups | None) -> tuple[float, float]:
    """The 95 % interval of the share of hits (Wilson 1927), over groups where there are any.

    Images of one group count as fewer than they are: see `worth`.

    Raises:
        ValueError: no images; not a group for each image.
    """
    each = worth(hits, groups)
    return wilson_interval(each * int(hits.sum()), each * len(hits))

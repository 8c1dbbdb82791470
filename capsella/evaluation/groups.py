"""Groups: images that are alike, as those of a patient or of a toy, and what they prove of others.

A hundred views of five toys say little of a sixth. Groups are therefore taken as drawn whole, as surveys take
villages: the variance of a mean is that of the groups' sums of deviations, times g / (g − 1), with g − 1 degrees of
freedom (Korn and Graubard 1999, Analysis of Health Surveys, §2.2 and §3.2).
"""

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from capsella.evaluation.wilson import CONFIDENCE, wilson_interval

Groups = Int[np.ndarray, " images"]
"""The number of each image's group."""
Part = tuple[float, float]
"""Of the variance of a mean: how much by images, or by seeds, and how many they are."""


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
    the rare one. Its variance is the larger, and its degrees the smaller, of all groups together and of each class's.

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
        raise ValueError(f"groups: must be one for each of the {len(added)} images, got {groups.shape}")
    sums = np.bincount(np.unique(groups, return_inverse=True)[1], weights=added)
    count = len(sums)
    if count < 2:
        return images
    together: Part = (count / (count - 1) * float((sums**2).sum()), count)
    parts = [together] if labels is None else [together, _by_class(added, groups, labels)]
    variance, number = max(part[0] for part in parts), min(part[1] for part in parts)
    return max(variance, images[0]), number


def _by_class(added: Float[np.ndarray, " images"], groups: Groups, labels: Int[np.ndarray, " images"]) -> Part:
    """What groups add to the variance of a mean over classes, where each class has its own number of them.

    A group's sum is smaller by what it moved its class's mean itself: by √(1 − n_gc / n_c). Degrees by Satterthwaite.
    In a class of one group, each image stands for itself.
    """
    group = np.unique(groups, return_inverse=True)[1]
    sums, alone = np.zeros(group.max() + 1), 0.0
    variances, degrees = [], []
    for label in np.unique(labels):
        own, number = added[labels == label], int((labels == label).sum())
        shares = np.bincount(group[labels == label], minlength=len(sums)) / number
        several = int((shares > 0).sum())
        if several > 1:
            moved = np.bincount(group[labels == label], weights=own, minlength=len(sums)) / np.sqrt(1 - shares)
            sums += moved
            variances.append(float((moved**2).sum()))
            degrees.append(several - 1)
        else:
            variances.append(number / max(number - 1, 1) * float((own**2).sum()))
            degrees.append(max(number - 1, 1))
            alone += variances[-1]
    weighed = sum(one**2 / number for one, number in zip(variances, degrees, strict=True))
    count = sum(variances) ** 2 / weighed + 1 if weighed else float("inf")
    return float((sums**2).sum()) + alone, min(count, len(sums))


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
    if groups is None or (count := float(len(np.unique(groups)))) < 2:
        return 1.0
    effect = 1.0
    if np.ptp(values.astype(float)) > 0:
        added = deviations(values.astype(float), labels)
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

"""Score intervals: of a share that one network has of the images, of a mean of shares, of an area under a curve."""

from collections.abc import Sequence

import scipy

from capsella.errors import ArgumentError

CONFIDENCE = 0.95


def wilson_interval(hits: float, number: float) -> tuple[float, float]:
    """The 95 % interval of a share that was `hits` of `number` (Wilson 1927): for one network, over test images alone.

    Images that are alike count as fewer, which need not be whole numbers.

    Raises:
        ValueError: no images, or hits outside them.

    >>> wilson_interval(0, 100)
    (0.0, 0.03699...)
    """
    if not 0 <= hits <= number or number == 0:
        raise ValueError(f"hits: must be among images, got {hits} of {number}")
    squared = scipy.stats.norm.ppf((1 + CONFIDENCE) / 2) ** 2
    share, scale = hits / number, 1 + squared / number
    centre = (share + squared / (2 * number)) / scale
    half = (squared * (share * (1 - share) / number + squared / (4 * number**2))) ** 0.5 / scale
    return 0.0 if hits == 0 else float(centre - half), 1.0 if hits == number else float(centre + half)


def auc_interval(auc: float, negatives: float, positives: float) -> tuple[float, float]:
    """The 95 % interval of an area under the ROC curve of so many images of each kind: Newcombe 2006, method 5.

    A score interval (Statistics in Medicine 25, p. 559), with Hanley and McNeil's variance at the mean of both numbers:
    of an area of 1, too, it says how little few images prove. Images that are alike count as fewer, which need not be
    whole numbers.

    Raises:
        ValueError: an area outside [0, 1], or no images of a kind.

    >>> auc_interval(1.0, 50, 50)
    (0.960..., 1.0)
    """
    if not (0 <= auc <= 1 and min(negatives, positives) > 0):
        raise ValueError(f"auc, images: must be in [0, 1] and above 0, got {auc} of {negatives} and {positives}")
    quantile = scipy.stats.norm.ppf((1 + CONFIDENCE) / 2)
    less_one = (negatives + positives) / 2 - 1

    def beyond(area: float) -> float:
        spread = 1 + less_one * ((1 - area) / (2 - area) + area / (1 + area))
        return float(abs(area - auc) - quantile * (area * (1 - area) * spread / (negatives * positives)) ** 0.5)

    # 0 and 1 are roots of their own.
    low = 0.0 if auc == 0 else float(scipy.optimize.brentq(beyond, 0, min(auc, 1 - 1e-12)))
    return low, 1.0 if auc == 1 else float(scipy.optimize.brentq(beyond, max(auc, 1e-12), 1))


def mean_share_interval(shares: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The 95 % interval of the mean of independent shares, each so many hits of a number, all weighing the same.

    From the distances of each share to its Wilson limits, added as squares (MOVER: Zou, Huang and Zhang 2009): it fits
    the asymmetry near 0 and 1, and a class of five images makes it as wide as five images must.

    Raises:
        ValueError: no shares, or one of no images.

    >>> mean_share_interval([(10, 10), (10, 10)])
    (0.8037..., 1.0)
    """
    if not shares or min(number for _, number in shares) <= 0:
        raise ArgumentError("shares", "each be of some images", list(shares))
    below = above = mean = 0.0
    for hits, number in shares:
        low, high = wilson_interval(hits, number)
        share = hits / number
        mean, below, above = mean + share, below + (share - low) ** 2, above + (high - share) ** 2
    count = len(shares)
    return max(0.0, (mean - below**0.5) / count), min(1.0, (mean + above**0.5) / count)

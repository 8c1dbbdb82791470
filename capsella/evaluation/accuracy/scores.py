"""What an evaluation says of classes: sensitivity, specificity, ROC, means over classes, and the commonest class alone.

Where one class has most of the images, the error hides the others: naming that class always is right most of the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from capsella.evaluation.groups import Groups, share_interval
from capsella.evaluation.intervals import Interval, difference_interval, points


@dataclass(frozen=True)
class ClassScore:
    """How one class fared; a share is None where it would be 0/0. Intervals are of 95 %: see `share_interval`.

    support: test images of the class. predicted: images the model put there.
    precision: of those predicted, the share that is right; None if none was predicted.
    recall: of the support, the share that was found (sensitivity); None without test images.
    f1: harmonic mean, 2·hits / (support + predicted); None without test images.
    specificity: of the images of other classes, the share that was not put there; None if there are none.
    auc: area under the ROC curve of its activation, this class against the rest; None where one side has no images.
    """

    name: str
    support: int
    predicted: int
    precision: float | None
    recall: float | None
    f1: float | None
    recall_interval: tuple[float, float] | None
    specificity: float | None
    specificity_interval: tuple[float, float] | None
    auc: float | None


class Roc(NamedTuple):
    """The ROC curve of one class against the rest, a point for each threshold of its activation, and the area below."""

    false_positives: Float[np.ndarray, " points"]
    true_positives: Float[np.ndarray, " points"]
    auc: float


@dataclass(frozen=True)
class Majority:
    """The commonest class of a test set, and whether a model is better than naming it for every image.

    share: of the images, those of the class `name`. difference: the model's accuracy less that share, image by image.
    """

    name: str
    share: float
    difference: Interval

    @property
    def is_beaten(self) -> bool:
        """Whether the 95 % interval of the difference is above 0."""
        return self.difference.low > 0

    def __str__(self) -> str:
        low, high = self.difference.low, self.difference.high
        found = "better than" if low > 0 else "worse than" if high < 0 else "not shown to be better than"
        return (
            f"{found} calling every image {self.name}, which is right for {100 * self.share:.1f} %: "
            f"{points(self.difference.estimate)} points (95 % interval {points(low)} to {points(high)})"
        )


def class_scores(
    shown: Bool[np.ndarray, "n classes"],
    named: Bool[np.ndarray, "n classes"],
    classes: Sequence[str],
    curves: Sequence[Roc | None],
    groups: Groups | None = None,
) -> list[ClassScore]:
    """Scores of each class, of images that show it (of a pair, two do) and of those it was named for.

    `curves` are the classes' ROC curves. Intervals are over groups where there are any.
    """
    scores = []
    for name, of_class, put, curve in zip(classes, shown.T, named.T, curves, strict=True):
        hits, support, predicted = int((of_class & put).sum()), int(of_class.sum()), int(put.sum())
        spared, others = int((~of_class & ~put).sum()), len(shown) - support
        own, other = (None, None) if groups is None else (groups[of_class], groups[~of_class])
        scores.append(
            ClassScore(
                name=name,
                support=support,
                predicted=predicted,
                precision=hits / predicted if predicted else None,
                recall=hits / support if support else None,
                f1=2 * hits / (support + predicted) if support else None,
                recall_interval=share_interval(put[of_class], own) if support else None,
                specificity=spared / others if others else None,
                specificity_interval=share_interval(~put[~of_class], other) if others else None,
                auc=None if curve is None else curve.auc,
            )
        )
    return scores


def roc(activations: Float[np.ndarray, " n"], present: Bool[np.ndarray, " n"]) -> Roc | None:
    """How well one class's activation tells its images from the rest; None where one side has no images."""
    from sklearn.metrics import auc, roc_curve  # a second to import

    if present.all() or not present.any():
        return None
    false_positives, true_positives, _ = roc_curve(present, activations)
    return Roc(false_positives, true_positives, float(auc(false_positives, true_positives)))


def majority(
    labels: Int[np.ndarray, " n"], correct: Bool[np.ndarray, " n"], classes: Sequence[str], groups: Groups | None = None
) -> Majority | None:
    """The commonest class of the test images against a model; None for a single image, which has no interval."""
    if len(labels) < 2:
        return None
    counts = np.bincount(labels, minlength=len(classes))
    commonest = int(counts.argmax())
    difference = difference_interval(correct[None], (labels == commonest)[None], groups)
    return Majority(classes[commonest], float(counts[commonest] / len(labels)), difference)


def shares(
    confusion: Int[np.ndarray, "true predicted"], of: Literal["true", "predicted"] = "true"
) -> Float[np.ndarray, "true predicted"]:
    """A confusion matrix as shares: of each true class (rows sum to 1) or of each predicted one (columns do).

    A class without images, or never predicted, has zeros.
    """
    axis = 1 if of == "true" else 0
    return confusion / np.maximum(confusion.sum(axis, keepdims=True), 1)


class Confusion(NamedTuple):
    """So many images of one class were taken for another."""

    true: int
    predicted: int
    images: int


def confusions(confusion: Int[np.ndarray, "true predicted"]) -> list[Confusion]:
    """Every kind of mistake, the commonest first."""
    wrong = [Confusion(int(t), int(p), int(confusion[t, p])) for t, p in np.argwhere(confusion) if t != p]
    return sorted(wrong, key=lambda one: (-one.images, one.true, one.predicted))

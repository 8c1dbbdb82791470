"""Selective classification: the error rate of the images that are kept when the uncertain ones are left to a human.

An image is kept if the calibrated probability of its class is at least a threshold (Geifman and El-Yaniv 2017).
Thresholds come from validation images; test images only measure their effect.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from capsella.errors import ArgumentError, check_argument
from capsella.evaluation.metrics import Evaluation
from capsella.evaluation.statistics import proportion_interval
from capsella.models import ImageClassifier
from capsella.uncertainty.calibration import calibration_curve, logits_of

COVERAGES = (1.0, 0.99, 0.95, 0.9, 0.8, 0.7, 0.5)


@dataclass(frozen=True)
class CoveragePoint:
    """The test images that are kept at a threshold.

    Attributes:
        coverage: the proportion of validation images that the threshold keeps.
        threshold: the smallest probability that is kept.
        kept, errors: numbers of test images that are kept, and of misclassified ones among them.
        error_interval_95: 95 % interval of the error rate; None if nothing is kept.
    """

    coverage: float
    threshold: float
    kept: int
    errors: int
    error_interval_95: tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class SelectiveClassification:
    """The result of `evaluate_selective`.

    Attributes:
        images: number of test images.
        validation_images: number of validation images, which set thresholds.
        curves: "test" and "validation": [2 m], coverage and risk, the most confident images first.
        ece_before, ece: expected calibration error on the test images; before, activations are divided by their sum.
    """

    images: int
    validation_images: int
    points: tuple[CoveragePoint, ...]
    curves: dict[str, Float[np.ndarray, "2 m"]]
    ece_before: float
    ece: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers for JSON, without the curves."""
        values = {name: value for name, value in vars(self).items() if name != "curves"}
        return values | {"points": [asdict(point) for point in self.points]}


def evaluate_selective(model: ImageClassifier, validation: Evaluation, test: Evaluation) -> SelectiveClassification:
    """Take thresholds from the validation images, and measure errors on the test images.

    Args:
        model: a calibrated model.
        validation, test: evaluations of the model, with one class per image.
    """
    if (calibration := model.calibration) is None:
        raise ArgumentError("model", "be calibrated, as by capsella.uncertainty.calibrate_model", None)
    single = validation.labels.ndim == test.labels.ndim == 1
    check_argument(single, "show one class per image", validation_and_test="pairs")
    confidence = _confidence(test, calibration.probabilities(test.activations))
    before = _confidence(test, logits_of(test.activations, "log").softmax(1))
    on_validation = _confidence(validation, calibration.probabilities(validation.activations))
    correct, groups, points = test.correct.numpy(), test.groups, []
    for coverage in COVERAGES:
        threshold = threshold_at_coverage(on_validation, coverage)
        kept = confidence >= threshold
        wrong = ~correct[kept]
        interval = proportion_interval(wrong, None if groups is None else groups[kept]) if kept.any() else None
        points.append(CoveragePoint(coverage, threshold, int(kept.sum()), int(wrong.sum()), interval))
    return SelectiveClassification(
        images=len(correct),
        validation_images=len(on_validation),
        points=tuple(points),
        curves={
            "test": risk_coverage_curve(confidence, correct),
            "validation": risk_coverage_curve(on_validation, validation.correct.numpy()),
        },
        ece_before=calibration_curve(before, correct).expected_error,
        ece=calibration_curve(confidence, correct).expected_error,
    )


def threshold_at_coverage(confidence: Float[np.ndarray, " n"], coverage: float) -> float:
    """Return the largest threshold of six digits that keeps at least this proportion of images; 0 for all.

    Six digits, because it is read from a table and passed to `--unsure-below`.

    >>> threshold_at_coverage(np.array([0.9, 0.5, 0.8, 0.7]), 0.5)
    0.8
    """
    check_argument(0 < coverage <= 1, "be above 0 and at most 1", coverage=coverage)
    if coverage == 1:
        return 0.0
    least = float(np.sort(confidence)[::-1][math.ceil(round(coverage * len(confidence), 9)) - 1])
    threshold = math.floor(round(least * 1e6, 6)) / 1e6
    return threshold if threshold <= least else math.floor(least * 1e6) / 1e6


def risk_coverage_curve(
    confidence: Float[np.ndarray, " n"], correct: Bool[np.ndarray, " n"]
) -> Float[np.ndarray, "2 m"]:
    """Return coverage and risk at every threshold, the highest first. Ties are kept together.

    >>> risk_coverage_curve(np.array([0.9, 0.6, 0.6]), np.array([True, False, True])).tolist()
    [[0.333..., 1.0], [0.0, 0.333...]]
    """
    order = np.argsort(-confidence, kind="stable")
    numbers = np.arange(1, len(confidence) + 1)
    risk = np.cumsum(~correct[order]) / numbers
    last = np.append(np.diff(confidence[order]) != 0, True)
    return np.stack([numbers / len(confidence), risk])[:, last]


def _confidence(evaluation: Evaluation, probabilities: Float[Tensor, "n classes"]) -> Float[np.ndarray, " n"]:
    return probabilities.gather(1, evaluation.predictions[:, None])[:, 0].clamp(0, 1).numpy()

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
from capsella.evaluation.statistics import Groups, proportion_interval
from capsella.models import ImageClassifier
from capsella.uncertainty.calibration import (
    Calibration,
    calibration_curve,
    images_for_coverage,
    log_loss,
    logits_of,
)

COVERAGES = (1.0, 0.99, 0.95, 0.9, 0.8, 0.7, 0.5)
SET_COVERAGES = (0.8, 0.9, 0.95, 0.99)


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


@dataclass(frozen=True)
class SetCoverage:
    """Prediction sets of the test images at a requested coverage.

    Attributes:
        covered: number of images whose set contains their true class.
        covered_interval_95: 95 % interval of their proportion.
        mean_size: mean number of classes per set.
        single: number of images with one class in their set.
        worst_class, worst: the class with the lowest coverage, and its coverage.
    """

    coverage: float
    covered: int
    covered_interval_95: tuple[float, float]
    mean_size: float
    single: int
    worst_class: str
    worst: float


@dataclass(frozen=True, eq=False)
class SelectiveClassification:
    """The result of `evaluate_selective`.

    Attributes:
        images: number of test images.
        validation_images: number of validation images, which set thresholds and prediction sets.
        curves: "test" and "validation": [2 m], coverage and risk, the most confident images first.
        nll, ece, …_before: as in `Calibration`, but on the test images.
    """

    images: int
    validation_images: int
    points: tuple[CoveragePoint, ...]
    sets: tuple[SetCoverage, ...]
    curves: dict[str, Float[np.ndarray, "2 m"]]
    nll_before: float
    nll: float
    ece_before: float
    ece: float

    @property
    def uninformative_sets(self) -> list[float]:
        """Coverages whose sets contain all classes, because there are too few validation images."""
        return [sets.coverage for sets in self.sets if images_for_coverage(sets.coverage) > self.validation_images]

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers for JSON, without the curves."""
        values = {name: value for name, value in vars(self).items() if name != "curves"}
        return values | {name: [asdict(row) for row in getattr(self, name)] for name in ("points", "sets")}


def evaluate_selective(model: ImageClassifier, validation: Evaluation, test: Evaluation) -> SelectiveClassification:
    """Take thresholds from the validation images, and measure errors and prediction sets on the test images.

    Args:
        model: a calibrated model.
        validation, test: evaluations of the model, with one class per image.
    """
    if (calibration := model.calibration) is None:
        raise ArgumentError("model", "be calibrated, as by capsella.uncertainty.calibrate_model", None)
    single = validation.labels.ndim == test.labels.ndim == 1
    check_argument(single, "show one class per image", validation_and_test="pairs")
    before, after = _normalized(test), calibration.probabilities(test.activations)
    confidence, confidence_before = _confidence(test, after), _confidence(test, before)
    on_validation = _confidence(validation, calibration.probabilities(validation.activations))
    correct, groups = test.correct.numpy(), test.groups
    thresholds = {coverage: threshold_at_coverage(on_validation, coverage) for coverage in COVERAGES}
    return SelectiveClassification(
        images=len(correct),
        validation_images=len(on_validation),
        points=tuple(_point(*item, confidence, correct, groups) for item in thresholds.items()),
        sets=tuple(_set_coverage(calibration, test, coverage) for coverage in SET_COVERAGES),
        curves={
            "test": risk_coverage_curve(confidence, correct),
            "validation": risk_coverage_curve(on_validation, validation.correct.numpy()),
        },
        nll_before=log_loss(before, test.labels),
        nll=log_loss(after, test.labels),
        ece_before=calibration_curve(confidence_before, correct).expected_error,
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


def _point(
    coverage: float,
    threshold: float,
    confidence: Float[np.ndarray, " n"],
    correct: Bool[np.ndarray, " n"],
    groups: Groups | None,
) -> CoveragePoint:
    kept = confidence >= threshold
    wrong = ~correct[kept]
    interval = proportion_interval(wrong, None if groups is None else groups[kept]) if kept.any() else None
    return CoveragePoint(coverage, threshold, int(kept.sum()), int(wrong.sum()), interval)


def _set_coverage(calibration: Calibration, test: Evaluation, coverage: float) -> SetCoverage:
    sets = calibration.sets(test.activations, coverage)
    covered = sets.gather(1, test.labels[:, None])[:, 0]
    sizes = sets.sum(1)
    by_class = {
        name: float(covered[test.labels == k].double().mean())
        for k, name in enumerate(test.classes)
        if (test.labels == k).any()
    }
    worst = min(by_class, key=lambda name: by_class[name])
    return SetCoverage(
        coverage=coverage,
        covered=int(covered.sum()),
        covered_interval_95=proportion_interval(covered.numpy(), test.groups),
        mean_size=float(sizes.double().mean()),
        single=int((sizes == 1).sum()),
        worst_class=worst,
        worst=by_class[worst],
    )


def _normalized(evaluation: Evaluation) -> Float[Tensor, "n classes"]:
    """Return activations divided by their sum, the probabilities before calibration."""
    return logits_of(evaluation.activations, "log").softmax(1)


def _confidence(evaluation: Evaluation, probabilities: Float[Tensor, "n classes"]) -> Float[np.ndarray, " n"]:
    return probabilities.gather(1, evaluation.predictions[:, None])[:, 0].clamp(0, 1).numpy()

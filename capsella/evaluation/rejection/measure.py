"""Error of the images that are kept when the unsure ones are left to a human, and whether prediction sets hold.

Selective classification (Geifman and El-Yaniv 2017): an image is kept where the calibrated probability of its class is
at least a threshold. Thresholds are those of validation images; test images only say what became of them.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from capsella.errors import check_argument
from capsella.evaluation.accuracy.evaluation import Evaluation
from capsella.evaluation.groups import Groups, share_interval
from capsella.models import Confidence, ImageClassifier, images_needed
from capsella.models.confidence.fitted import logits_of
from capsella.models.confidence.reliability import calibration
from capsella.models.confidence.temperature import log_loss

SHARES = (1.0, 0.99, 0.95, 0.9, 0.8, 0.7, 0.5)
COVERAGES = (0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Kept:
    """Test images at a threshold.

    share: of the validation images that the threshold keeps, asked for. threshold: the least probability that is kept.
    kept, errors: test images, and how many of them are wrong. error_interval_95: of the share of errors, see
    `share_interval`; None where nothing is kept.
    """

    share: float
    threshold: float
    kept: int
    errors: int
    error_interval_95: tuple[float, float] | None


@dataclass(frozen=True)
class SetSize:
    """Prediction sets of the test images.

    coverage: asked for. held: images whose set has their true class. held_interval_95: of their share, see
    `share_interval`. mean_size: classes a set. single: images with one class in their set. worst_class, worst: the
    class whose images are held least often, and that share.
    """

    coverage: float
    held: int
    held_interval_95: tuple[float, float]
    mean_size: float
    single: int
    worst_class: str
    worst: float


@dataclass(frozen=True, eq=False)
class Rejection:
    """What `measure_rejection` found.

    images: test images. validation_images: those that thresholds and sets come from.
    curves: "test" and "validation": [2 m], share of images kept and share of those that is wrong, surest first.
    nll, ece, …_before: of the test images, as in `Confidence`.
    """

    images: int
    validation_images: int
    kept: tuple[Kept, ...]
    sets: tuple[SetSize, ...]
    curves: dict[str, Float[np.ndarray, "2 m"]]
    nll_before: float
    nll: float
    ece_before: float
    ece: float

    def notes(self) -> list[str]:
        """What a reader must know of the numbers."""
        few = [one.coverage for one in self.sets if images_needed(one.coverage) > self.validation_images]
        words = ", ".join(f"{coverage:g} needs {images_needed(coverage)}" for coverage in few)
        return (
            [f"{self.validation_images} validation images are too few, so sets hold all classes: {words}"]
            if few
            else []
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, without the curves."""
        return {
            "images": self.images,
            "validation_images": self.validation_images,
            "kept": [asdict(one) for one in self.kept],
            "prediction_sets": [asdict(one) for one in self.sets],
            "nll": {"before": self.nll_before, "after": self.nll},
            "expected_calibration_error": {"before": self.ece_before, "after": self.ece},
            "notes": self.notes(),
        }


def measure_rejection(model: ImageClassifier, validation: Evaluation, test: Evaluation) -> Rejection:
    """Thresholds from the validation images, errors and prediction sets on the test images.

    Args:
        model: calibrated.
        validation, test: evaluations of it, one class an image.

    Raises:
        ValueError: a model that is not calibrated; pairs.
    """
    if (confidence := model.confidence) is None:
        raise ValueError(
            "model: must be calibrated, as by capsella.training.calibrate_model, got one without confidence"
        )
    check_argument(
        validation.labels.ndim == test.labels.ndim == 1, "show one class an image", validation_and_test="pairs"
    )
    sure, sure_before = (_probability(test, one) for one in (confidence.probabilities(test.activations), _shares(test)))
    sure_validation = _probability(validation, confidence.probabilities(validation.activations))
    correct, groups = test.correct.numpy(), test.groups
    return Rejection(
        images=len(correct),
        validation_images=len(sure_validation),
        kept=tuple(_kept(share, threshold_for(sure_validation, share), sure, correct, groups) for share in SHARES),
        sets=tuple(_sets(confidence, test, coverage) for coverage in COVERAGES),
        curves={
            "test": risk_curve(sure, correct),
            "validation": risk_curve(sure_validation, validation.correct.numpy()),
        },
        nll_before=log_loss(_shares(test), test.labels),
        nll=log_loss(confidence.probabilities(test.activations), test.labels),
        ece_before=calibration(sure_before, correct).expected_error,
        ece=calibration(sure, correct).expected_error,
    )


def threshold_for(sure: Float[np.ndarray, " n"], share: float) -> float:
    """The largest threshold of six digits that keeps at least `share` of these images; 0 for all of them.

    Six, because it is read from a table and handed on to `--unsure-below`.

    >>> threshold_for(np.array([0.9, 0.5, 0.8, 0.7]), 0.5)
    0.8
    """
    check_argument(0 < share <= 1, "be above 0 and at most 1", share=share)
    if share == 1:
        return 0.0
    least = float(np.sort(sure)[::-1][math.ceil(round(share * len(sure), 9)) - 1])
    threshold = math.floor(round(least * 1e6, 6)) / 1e6
    return threshold if threshold <= least else math.floor(least * 1e6) / 1e6


def risk_curve(sure: Float[np.ndarray, " n"], correct: Bool[np.ndarray, " n"]) -> Float[np.ndarray, "2 m"]:
    """Share of images kept and share of those that is wrong, at every threshold, the highest first.

    >>> risk_curve(np.array([0.9, 0.6, 0.6]), np.array([True, False, True])).tolist()
    [[0.333..., 1.0], [0.0, 0.333...]]
    """
    order = np.argsort(-sure, kind="stable")
    numbers = np.arange(1, len(sure) + 1)
    risk = np.cumsum(~correct[order]) / numbers
    last = np.append(np.diff(sure[order]) != 0, True)  # images that are equally sure are kept together
    return np.stack([numbers / len(sure), risk])[:, last]


def _kept(
    share: float,
    threshold: float,
    sure: Float[np.ndarray, " n"],
    correct: Bool[np.ndarray, " n"],
    groups: Groups | None,
) -> Kept:
    kept = sure >= threshold
    wrong = ~correct[kept]
    interval = share_interval(wrong, None if groups is None else groups[kept]) if kept.any() else None
    return Kept(share, threshold, int(kept.sum()), int(wrong.sum()), interval)


def _sets(confidence: Confidence, test: Evaluation, coverage: float) -> SetSize:
    sets = confidence.sets(test.activations, coverage)
    held = sets.gather(1, test.labels[:, None])[:, 0]
    sizes = sets.sum(1)
    shares = {
        name: float(held[test.labels == k].double().mean())
        for k, name in enumerate(test.classes)
        if (test.labels == k).any()
    }
    worst = min(shares, key=lambda name: shares[name])
    return SetSize(
        coverage=coverage,
        held=int(held.sum()),
        held_interval_95=share_interval(held.numpy(), test.groups),
        mean_size=float(sizes.double().mean()),
        single=int((sizes == 1).sum()),
        worst_class=worst,
        worst=shares[worst],
    )


def _shares(evaluation: Evaluation) -> Float[Tensor, "n classes"]:
    """Activations divided by their sum: probabilities before any calibration."""
    return logits_of(evaluation.activations, "log").softmax(1)


def _probability(evaluation: Evaluation, probabilities: Float[Tensor, "n classes"]) -> Float[np.ndarray, " n"]:
    """Of each image's predicted class."""
    return probabilities.gather(1, evaluation.predictions[:, None])[:, 0].clamp(0, 1).numpy()

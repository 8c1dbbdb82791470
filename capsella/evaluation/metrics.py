"""Evaluate a model on a labelled set: error, balanced accuracy, scores of each class, ROC curves, calibration."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from capsella.data import LabelledImages, batches
from capsella.errors import ArgumentError, check_argument, check_minimum
from capsella.evaluation.statistics import (
    Groups,
    Interval,
    accuracy_interval,
    difference_interval,
    proportion_interval,
)
from capsella.files import write_csv
from capsella.losses import predicted_classes
from capsella.models import ImageClassifier
from capsella.models.inference import inference
from capsella.progress import tracked
from capsella.types import check_finite
from capsella.uncertainty import CalibrationCurve, calibration_curve

CONFIDENCE_TEXTS = {
    1: "the largest class activation: of capsules, which are not normalised over the classes, or of a CNN's softmax",
    2: "the second largest class activation: the confidence in the weaker class of a pair",
}


@dataclass(frozen=True)
class ClassScore:
    """The scores of one class; a proportion is None if it would be 0/0. Intervals are 95 %.

    Attributes:
        support: test images of the class.
        predicted: images predicted to be of the class.
        precision: None if none was predicted.
        recall: sensitivity; None without test images.
        f1: harmonic mean of both; None without test images.
        specificity: proportion of the other classes' images that were not predicted as this class.
        auc: area under the ROC curve of the class's activation, this class against the rest.
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


@dataclass(frozen=True)
class Majority:
    """A baseline that predicts the most frequent class for every test image.

    Attributes:
        name: the most frequent class.
        share: its proportion of the images.
        difference: the model's accuracy minus `share`, paired over images.
    """

    name: str
    share: float
    difference: Interval

    @property
    def is_beaten(self) -> bool:
        """True if the 95 % interval of the difference is above 0."""
        return self.difference.low > 0


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The activations of a model for every image of a labelled set, and all scores that follow from them.

    Attributes:
        activations: [n classes], finite.
        labels: [n], or [n 2] for pairs. A pair is correct only if both classes are found (Sabour et al. 2017, §6).
        classes: names of the classes.
        files: names of the images, if known.
        group: the index of each image's group, e.g. its patient or object, if known; intervals are then over groups.
    """

    activations: Float[Tensor, "n classes"]
    labels: Int[Tensor, " n *k"]
    classes: tuple[str, ...]
    files: tuple[str, ...] | None = None
    group: Int[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        count = len(self.labels)
        check_argument(count > 0, "hold at least one labelled image to evaluate", images=count)
        shape, expected = tuple(self.activations.shape), (count, len(self.classes))
        check_argument(shape == expected, f"be [images classes] = {expected}", activations=shape)
        shape = tuple(self.labels.shape)
        check_argument(shape[1:] in ((), (2,)), "be [n] or, for pairs, [n 2]", labels=shape)
        low, high = int(self.labels.min()), int(self.labels.max())
        check_argument(0 <= low <= high < len(self.classes), f"be in 0…{len(self.classes) - 1}", labels=(low, high))
        if self.files is not None and len(self.files) != count:
            raise ArgumentError("files", f"name each of the {count} images", len(self.files))
        if self.group is not None and self.group.shape != (count,):
            raise ArgumentError("group", f"be one for each of the {count} images", tuple(self.group.shape))
        check_finite(self.activations)

    @cached_property
    def predictions(self) -> Int[Tensor, " n *k"]:
        """The class with the largest activation; for a pair the two largest, in the order of the labels they match."""
        return predicted_classes(self.activations, self.labels)

    @cached_property
    def confidence(self) -> Float[Tensor, " n"]:
        """The activation of the predicted class; for a pair, the weaker one. Capsule lengths are not normalised."""
        return self.activations.topk(self.labels[0].numel(), 1).values[:, -1]

    @property
    def confidence_text(self) -> str:
        """A description of `confidence`."""
        return CONFIDENCE_TEXTS[self.labels[0].numel()]

    @cached_property
    def correct(self) -> Bool[Tensor, " n"]:
        """True for each image whose class was predicted; for a pair, both classes."""
        return (self.predictions == self.labels).reshape(len(self.labels), -1).all(1)

    @property
    def groups(self) -> Groups | None:
        """The index of each image's group, for intervals; None if images are independent or all of one group."""
        return None if self.group is None or len(self.group.unique()) < 2 else self.group.numpy()

    @property
    def errors(self) -> int:
        """The number of misclassified images."""
        return len(self.labels) - int(self.correct.sum())

    @property
    def error(self) -> float:
        """The error rate in per cent."""
        return 100 * self.errors / len(self.labels)

    @property
    def error_interval(self) -> tuple[float, float]:
        """The 95 % interval of the error rate in per cent, over test images or groups."""
        low, high = proportion_interval(~self.correct.numpy(), self.groups)
        return 100 * low, 100 * high

    @cached_property
    def confusion(self) -> Int[np.ndarray, "true predicted"]:
        """Images of each true class (rows) by predicted class (columns). A pair counts twice."""
        from sklearn.metrics import confusion_matrix  # a second to import

        every = range(len(self.classes))
        return confusion_matrix(self.labels.flatten().numpy(), self.predictions.flatten().numpy(), labels=every)

    @cached_property
    def per_class(self) -> list[ClassScore]:
        """Precision, recall, F1, specificity and AUC of each class."""
        present, predicted = self._present(self.labels), self._present(self.predictions)
        columns = zip(self.classes, present.T, predicted.T, self.activations.T.numpy(), strict=True)
        return [_class_score(*column, self.groups) for column in columns]

    def _present(self, labels: Int[Tensor, " n *k"]) -> Bool[np.ndarray, "n classes"]:
        present: np.ndarray = (labels.reshape(len(labels), -1, 1) == torch.arange(len(self.classes))).any(1).numpy()
        return present

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes that have test images, in per cent."""
        return 100 * _mean([score.recall for score in self.per_class])

    @property
    def balanced_accuracy_interval(self) -> tuple[float, float]:
        """The 95 % interval of the balanced accuracy, in per cent."""
        if self.labels.numel() < 2:
            return 0.0, 100.0
        found, groups = (self.predictions == self.labels).numpy(), self.groups
        if self.labels.ndim == 2:  # both images of a pair are one sample
            groups = np.repeat(np.arange(len(found)) if groups is None else groups, found.shape[1])
        accuracy = accuracy_interval(found.reshape(1, -1), groups, labels=self.labels.flatten().numpy())
        return 100 * accuracy.low, 100 * accuracy.high

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that have test images, in [0, 1]."""
        return _mean([score.f1 for score in self.per_class])

    @property
    def macro_auc(self) -> float | None:
        """The mean area under the ROC curves, in [0, 1]; None if no class has one."""
        areas = [score.auc for score in self.per_class]
        return _mean(areas) if any(area is not None for area in areas) else None

    @cached_property
    def majority(self) -> Majority | None:
        """The baseline of the most frequent class; None for pairs, and for a single image."""
        if self.labels.ndim == 2 or len(self.labels) < 2:
            return None
        labels = self.labels.numpy()
        counts = np.bincount(labels, minlength=len(self.classes))
        largest = int(counts.argmax())
        difference = difference_interval(self.correct.numpy()[None], (labels == largest)[None], self.groups)
        return Majority(self.classes[largest], float(counts[largest] / len(labels)), difference)

    @cached_property
    def calibration(self) -> CalibrationCurve:
        """Confidence against accuracy, in 15 bins."""
        # Rounding can carry a capsule's length or a sum of softmax values a last bit above 1.
        confidence = self.confidence.double().clamp(0, 1)
        return calibration_curve(confidence.numpy(), self.correct.numpy())

    def mistakes(self) -> Int[Tensor, " wrong"]:
        """Return the indices of the misclassified images, the most confident mistake first."""
        wrong = (~self.correct).nonzero()[:, 0]
        return wrong[self.confidence[wrong].argsort(descending=True, stable=True)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers for JSON; a proportion that would be 0/0 is null."""
        baseline = self.majority
        return {
            "images": len(self.labels),
            "errors": self.errors,
            "error_percent": self.error,
            "error_interval_95_percent": list(self.error_interval),
            "balanced_accuracy_percent": self.balanced_accuracy,
            "balanced_accuracy_interval_95_percent": list(self.balanced_accuracy_interval),
            "macro_f1": self.macro_f1,
            "macro_auc": self.macro_auc,
            "majority": None if baseline is None else {**asdict(baseline), "is_beaten": baseline.is_beaten},
            "classes": [asdict(score) for score in self.per_class],
            "confusion": {"rows": "true", "columns": "predicted", "counts": self.confusion.tolist()},
            "calibration": {
                "confidence": self.confidence_text,
                "expected_calibration_error": self.calibration.expected_error,
            },
        }


def evaluate(
    model: ImageClassifier, images: LabelledImages, batch_size: int = 128, progress: bool = False
) -> Evaluation:
    """Classify every image of a set, in its order.

    Args:
        model: any registered model; its training mode is restored.
        images: labelled images or pairs, with the classes, size and channels of the model.
        batch_size: affects speed and memory only.
        progress: show a progress bar on standard error.
    """
    check_minimum(1, batch_size=batch_size)
    if images.classes != model.classes:
        raise ArgumentError("images.classes", f"be the model's classes {model.classes}", images.classes)
    if len(images) == 0:
        raise ArgumentError("images", "hold at least one labelled image to evaluate", 0, "the split is empty")
    model.check_images(images.take(torch.tensor([0])).images)
    with inference(model) as device:
        steps = -(-len(images) // batch_size)
        parts = tracked(batches(images, batch_size, device=device), "evaluate", steps, is_shown=progress)
        outputs = [(model(part.images).activations.float().cpu(), part.labels.cpu()) for part in parts]
    # Cloned outside inference mode, so that they are ordinary tensors.
    activations, labels = (torch.cat(column).clone() for column in zip(*outputs, strict=True))
    return Evaluation(activations, labels, images.classes, images.files, images.group)


class Confusion(NamedTuple):
    """The number of images of the class `true` that were predicted as the class `predicted`."""

    true: int
    predicted: int
    images: int


def confusions(confusion: Int[np.ndarray, "true predicted"]) -> list[Confusion]:
    """Return each pair of a true and a wrong predicted class that occurs, the most frequent first."""
    wrong = [Confusion(int(t), int(p), int(confusion[t, p])) for t, p in np.argwhere(confusion) if t != p]
    return sorted(wrong, key=lambda kind: (-kind.images, kind.true, kind.predicted))


@dataclass(frozen=True, eq=False)
class Folds:
    """A cross-validation: the evaluation of each fold's test images by the network of that fold."""

    evaluations: Sequence[Evaluation]

    def __post_init__(self) -> None:
        check_argument(len(self.evaluations) >= 2, "be of at least 2 folds", evaluations=len(self.evaluations))
        classes = {fold.classes for fold in self.evaluations}
        check_argument(len(classes) == 1, "be of the same classes in every fold", evaluations=sorted(classes))

    @cached_property
    def pooled(self) -> Evaluation:
        """All test images together; the activations of separately trained networks are not on a common scale."""
        named, grouped = [fold.files for fold in self.evaluations], [fold.group for fold in self.evaluations]
        return Evaluation(
            torch.cat([fold.activations for fold in self.evaluations]),
            torch.cat([fold.labels for fold in self.evaluations]),
            self.evaluations[0].classes,
            None if None in named else tuple(file for files in named for file in files or ()),
            None if None in grouped else torch.cat([group for group in grouped if group is not None]),
        )

    @property
    def error_interval(self) -> tuple[float, float]:
        """The 95 % interval of the error rate in per cent, over test images or groups and over trainings."""
        accuracy = accuracy_interval(*self._trained)
        return 100 * (1 - accuracy.high), 100 * (1 - accuracy.low)

    @property
    def balanced_accuracy_interval(self) -> tuple[float, float]:
        """The 95 % interval of the balanced accuracy in per cent, over test images or groups and over trainings."""
        accuracy = accuracy_interval(*self._trained, labels=self.pooled.labels.numpy())
        return 100 * accuracy.low, 100 * accuracy.high

    @property
    def _trained(self) -> tuple[np.ndarray, Groups | None, np.ndarray]:
        """The arguments of `accuracy_interval`."""
        folds = np.repeat(np.arange(len(self.evaluations)), [len(fold.labels) for fold in self.evaluations])
        return self.pooled.correct.numpy()[None], self.pooled.groups, folds

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers for JSON, in per cent."""
        pooled = self.pooled.to_dict()
        names = "images", "errors", "error_percent", "balanced_accuracy_percent", "macro_f1", "majority", "confusion"
        return {
            "folds": [
                {
                    "images": len(fold.labels),
                    "errors": fold.errors,
                    "error_percent": fold.error,
                    "balanced_accuracy_percent": fold.balanced_accuracy,
                }
                for fold in self.evaluations
            ],
            "pooled": {
                **{name: pooled[name] for name in names},
                "error_interval_95_percent": list(self.error_interval),
                "balanced_accuracy_interval_95_percent": list(self.balanced_accuracy_interval),
            },
        }

    def write_predictions(self, path: Path) -> None:
        """Write a CSV row for each image: file, class, the fold that tested it, predicted class.

        An image without a file name is identified by its index among the test images of its fold.
        """
        rows: list[Iterable[object]] = []
        for number, fold in enumerate(self.evaluations):
            files = fold.files or range(len(fold.labels))
            columns = ([fold.classes[k] for k in column.tolist()] for column in (fold.labels, fold.predictions))
            labels, predictions = columns
            rows += zip(files, labels, [number] * len(labels), predictions, strict=True)
        write_csv(path, ("file", "class", "fold", "predicted"), rows)


def _class_score(
    name: str,
    present: Bool[np.ndarray, " n"],
    predicted: Bool[np.ndarray, " n"],
    activations: Float[np.ndarray, " n"],
    groups: Groups | None,
) -> ClassScore:
    from sklearn.metrics import roc_auc_score  # a second to import

    hits, support, named = int((present & predicted).sum()), int(present.sum()), int(predicted.sum())
    negatives, true_negatives = int((~present).sum()), int((~present & ~predicted).sum())
    inside, outside = (None, None) if groups is None else (groups[present], groups[~present])
    return ClassScore(
        name=name,
        support=support,
        predicted=named,
        precision=hits / named if named else None,
        recall=hits / support if support else None,
        f1=2 * hits / (support + named) if support else None,
        recall_interval=proportion_interval(predicted[present], inside) if support else None,
        specificity=true_negatives / negatives if negatives else None,
        specificity_interval=proportion_interval(~predicted[~present], outside) if negatives else None,
        auc=float(roc_auc_score(present, activations)) if support and negatives else None,
    )


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)

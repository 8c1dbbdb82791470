"""What a model makes of a labelled set: error and balanced accuracy with intervals, each class, ROC, calibration."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from capsella.data import LabelledImages, batches, few_groups
from capsella.errors import ArgumentError, check_argument, check_minimum, pluralize
from capsella.evaluation.accuracy.scores import ClassScore, Majority, Roc, class_scores, majority, roc, shares
from capsella.evaluation.groups import Groups, share_interval, worth
from capsella.evaluation.wilson import mean_share_interval
from capsella.losses import strongest
from capsella.models import ImageClassifier
from capsella.models.confidence.reliability import Calibration, calibration
from capsella.models.inference import inference
from capsella.progress import tracked
from capsella.types import check_finite

MOST_NAMED = 8  # classes in a warning
CONFIDENCE = {
    1: "the largest class activation: of capsules, which are not normalised over the classes, or of a CNN's softmax",
    2: "the second largest class activation: how sure the model is of the weaker class of a pair",
}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The activations of a model for every image of a labelled set, and all that follows from them.

    activations: [n classes], finite. labels: [n], or [n 2] for pairs, two different classes an image; such an image is
    right only if both are found (Sabour et al. 2017, §6). classes: the names. files: [n] names of the images, where
    known. group: [n], the number of each image's patient, toy or the like, where known: intervals are over these.

    Raises:
        ValueError: no images, shapes that do not fit, a label outside the classes, an activation that is not finite.
    """

    activations: Float[Tensor, "n classes"]
    labels: Int[Tensor, " n *k"]
    classes: tuple[str, ...]
    files: tuple[str, ...] | None = None
    group: Int[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        count = len(self.labels)
        if count == 0:
            raise ValueError("images: must hold at least one labelled image to evaluate, got none: the split is empty")
        shape, expected = tuple(self.activations.shape), (count, len(self.classes))
        check_argument(shape == expected, f"be [images classes] = {expected}", activations=shape)
        shape = tuple(self.labels.shape)
        check_argument(shape[1:] in ((), (2,)), "be [n] or, for pairs, [n 2]", labels=shape)
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            raise ValueError(
                f"labels: must be in 0…{len(self.classes) - 1}, got {int(self.labels.min())}…{int(self.labels.max())}"
            )
        if self.files is not None and len(self.files) != count:
            raise ArgumentError("files", f"name each of the {count} images", len(self.files))
        if self.group is not None and self.group.shape != (count,):
            raise ArgumentError("group", f"be one for each of the {count} images", tuple(self.group.shape))
        check_finite(self.activations)

    @cached_property
    def predictions(self) -> Int[Tensor, " n *k"]:
        """The class with the largest activation; of a pair, the two classes, each beside its label where it is one."""
        return strongest(self.activations, self.labels)

    @cached_property
    def confidence(self) -> Float[Tensor, " n"]:
        """The activation of the predicted class, of a pair the weaker one: capsule lengths are not normalised."""
        return self.activations.topk(self.labels[0].numel(), 1).values[:, -1]

    @property
    def confidence_means(self) -> str:
        """What `confidence` is, in words."""
        return CONFIDENCE[self.labels[0].numel()]

    @cached_property
    def correct(self) -> Bool[Tensor, " n"]:
        """Whether each image was classified right, both classes of a pair."""
        return (self.predictions == self.labels).reshape(len(self.labels), -1).all(1)

    @property
    def groups(self) -> Groups | None:
        """The number of each image's group, as intervals take them; None where every image stands for itself.

        One group alone says nothing of others, and is as none.
        """
        return None if self.group is None or len(self.group.unique()) < 2 else self.group.numpy()

    @property
    def errors(self) -> int:
        """How many images were classified wrong."""
        return len(self.labels) - int(self.correct.sum())

    @property
    def error(self) -> float:
        """Share of images classified wrong, in per cent, as the papers print it."""
        return 100 * self.errors / len(self.labels)

    @property
    def error_interval(self) -> tuple[float, float]:
        """95 % interval of the error, in per cent: what a test set of this size leaves open; see `share_interval`."""
        low, high = share_interval(~self.correct.numpy(), self.groups)
        return 100 * low, 100 * high

    @cached_property
    def confusion(self) -> Int[np.ndarray, "true predicted"]:
        """Images of each true class (rows) by predicted class (columns).

        A pair counts twice: a class that was not found stands against a wrong one that was named in its place.
        """
        from sklearn.metrics import confusion_matrix  # a second to import

        every = range(len(self.classes))
        return confusion_matrix(self.labels.flatten().numpy(), self.predictions.flatten().numpy(), labels=every)

    @cached_property
    def roc(self) -> list[Roc | None]:
        """The ROC curve of each class against the rest; None for a class without test images, or with all of them."""
        columns = zip(self.activations.T.numpy(), self._shown(self.labels).T, strict=True)
        return [roc(activations, is_there) for activations, is_there in columns]

    @cached_property
    def per_class(self) -> list[ClassScore]:
        """Precision, recall, F1, specificity and AUC of each class."""
        return class_scores(
            self._shown(self.labels), self._shown(self.predictions), self.classes, self.roc, self.groups
        )

    def _shown(self, labels: Int[Tensor, " n *k"]) -> Bool[np.ndarray, "n classes"]:
        """Whether a class is among the labels of an image, or among what was named of it."""
        shown: np.ndarray = (labels.reshape(len(labels), -1, 1) == torch.arange(len(self.classes))).any(1).numpy()
        return shown

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes that have test images, in per cent: each class counts the same."""
        return 100 * _mean([score.recall for score in self.per_class])

    @property
    def balanced_accuracy_interval(self) -> tuple[float, float]:
        """95 % interval of the balanced accuracy, in per cent: see `mean_share_interval`, and `worth`."""
        hits, support = self.confusion.diagonal().tolist(), self.confusion.sum(1).tolist()
        each = 1.0 if self.groups is None else worth(self.correct.numpy(), self.groups, self.labels.numpy())
        low, high = mean_share_interval([(each * h, each * s) for h, s in zip(hits, support, strict=True) if s])
        return 100 * low, 100 * high

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that have test images, in [0, 1]."""
        return _mean([score.f1 for score in self.per_class])

    @property
    def macro_auc(self) -> float | None:
        """The mean area under the ROC curves, in [0, 1]; None where no class has one."""
        areas = [score.auc for score in self.per_class]
        return _mean(areas) if any(area is not None for area in areas) else None

    @cached_property
    def majority(self) -> Majority | None:
        """What naming the commonest class for every image would reach; None for pairs, and for a single image."""
        if self.labels.ndim == 2:
            return None
        return majority(self.labels.numpy(), self.correct.numpy(), self.classes, self.groups)

    @cached_property
    def calibration(self) -> Calibration:
        """Confidence against accuracy, in 15 bins."""
        # Rounding can carry a capsule's length or a sum of softmax shares a last bit above 1.
        confidence = self.confidence.double().clamp(0, 1)
        return calibration(confidence.numpy(), self.correct.numpy())

    def mistakes(self) -> Int[Tensor, " wrong"]:
        """Indices of the images classified wrong, the most confident mistake first."""
        wrong = (~self.correct).nonzero()[:, 0]
        return wrong[self.confidence[wrong].argsort(descending=True, stable=True)]

    def notes(self) -> list[str]:
        """What a reader must know about numbers that are missing, and over what intervals are."""
        unseen = [score.name for score in self.per_class if not score.support]
        unused = [score.name for score in self.per_class if not score.predicted]
        notes = []
        if unseen:
            notes.append(f"no test images, so no recall and no F1: {', '.join(unseen)}")
        if unused:
            notes.append(f"never predicted, so no precision: {', '.join(unused)}")
        return [*notes, *self._about_groups()]

    def _about_groups(self) -> list[str]:
        if self.group is None:
            return []
        if self.groups is None:
            return ["the test images are of 1 group; intervals take each image for one of its own"]
        return [
            f"the test images are of {pluralize(len(np.unique(self.groups)), 'group')}; intervals are over these; "
            "where a share is 0 or 100 %, or of images of one group, nothing tells how much groups differ, and an "
            "interval may be too narrow"
        ]

    def warnings(self) -> list[str]:
        """What must stand before any other number: classes never found, no better than a constant, few groups."""
        warnings = []
        if lost := [f"{score.name} (0 of {score.support})" for score in self.per_class if score.recall == 0]:
            rest = f" and {len(lost) - MOST_NAMED} more classes" if len(lost) > MOST_NAMED else ""
            warnings.append(f"never found: {', '.join(lost[:MOST_NAMED])}{rest}")
        if self.majority is not None and not self.majority.is_beaten:
            warnings.append(str(self.majority))
        groups = None if self.group is None or self.labels.ndim == 2 else self.group.numpy()
        return [*warnings, *few_groups(groups, self.labels.numpy(), self.classes)]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, ready for JSON; a share that would be 0/0 is null and named in `notes`."""
        curve, one = self.calibration, self.majority
        return {
            "images": len(self.labels),
            "errors": self.errors,
            "error_percent": self.error,
            "error_interval_95_percent": list(self.error_interval),
            "balanced_accuracy_percent": self.balanced_accuracy,
            "balanced_accuracy_interval_95_percent": list(self.balanced_accuracy_interval),
            "macro_f1": self.macro_f1,
            "macro_auc": self.macro_auc,
            "majority": None if one is None else {**asdict(one), "is_beaten": one.is_beaten},
            "classes": [asdict(score) for score in self.per_class],
            "confusion": {
                "rows": "true",
                "columns": "predicted",
                "counts": self.confusion.tolist(),
                "shares_of_true": shares(self.confusion, "true").tolist(),
                "shares_of_predicted": shares(self.confusion, "predicted").tolist(),
            },
            "calibration": {
                "confidence": self.confidence_means,
                "expected_calibration_error": curve.expected_error,
                "bin_edges": curve.edges.tolist(),
                "bin_counts": curve.counts.tolist(),
                "bin_confidence": _null_for_nan(curve.confidence),
                "bin_accuracy": _null_for_nan(curve.accuracy),
            },
            "warnings": self.warnings(),
            "notes": self.notes(),
        }


def evaluate(
    model: ImageClassifier, images: LabelledImages, batch_size: int = 128, progress: bool = False
) -> Evaluation:
    """Classify every image of a set, in its order.

    Args:
        model: any registered model; its training mode is left as it was.
        images: the set, or the pairs, with the classes, size and channels the model was built for.
        batch_size: images at a time; changes nothing but speed and memory.
        progress: show a bar on standard error.

    Raises:
        ValueError: an empty set, other classes, another size or channel count, activations that are not finite.
    """
    check_minimum(1, batch_size=batch_size)
    if images.classes != model.classes:
        raise ArgumentError("images.classes", f"be the model's classes {model.classes}", images.classes)
    if len(images) == 0:
        raise ValueError("images: must hold at least one labelled image to evaluate, got none: the split is empty")
    model.check_images(images.take(torch.tensor([0])).images)
    with inference(model) as device:
        steps = -(-len(images) // batch_size)
        parts = tracked(batches(images, batch_size, device=device), "evaluate", steps, is_shown=progress)
        answers = [(model(part.images).activations.float().cpu(), part.labels.cpu()) for part in parts]
    # Cloned outside inference mode: ordinary tensors, with which the caller may do anything.
    activations, labels = (torch.cat(column).clone() for column in zip(*answers, strict=True))
    return Evaluation(activations, labels, images.classes, images.files, images.group)


def _null_for_nan(values: Float[np.ndarray, " bins"]) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)

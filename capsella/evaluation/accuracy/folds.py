"""What all folds of a cross-validation say together: every image is tested once, by a network that never saw it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from capsella.errors import ArgumentError
from capsella.evaluation.accuracy.evaluation import Evaluation
from capsella.evaluation.intervals import FoldInterval, accuracy_interval, balanced_interval, fold_interval
from capsella.files import write_csv

_POOLED = ("images", "errors", "error_percent", "balanced_accuracy_percent", "macro_f1", "majority", "confusion")


@dataclass(frozen=True, eq=False)
class Folds:
    """The evaluation of each fold's test images by the network of that fold.

    evaluations: in the order of the folds, of images of one class each. others: images of all folds together that a
    network was not tested on but trained with, or validated by.

    Raises:
        ValueError: fewer than two folds, of other classes than the first, or an image in two of them.
    """

    evaluations: Sequence[Evaluation]
    others: int

    def __post_init__(self) -> None:
        if len(self.evaluations) < 2:
            raise ArgumentError("evaluations", "be of at least 2 folds", len(self.evaluations))
        if len({one.classes for one in self.evaluations}) > 1:
            raise ValueError("evaluations: must be of the same classes in every fold")
        names = Counter(file for one in self.evaluations for file in one.files or ())
        if twice := [file for file, count in names.items() if count > 1]:
            raise ValueError(f"evaluations: must be of an image once in all folds, got {twice[0]} twice")

    @cached_property
    def pooled(self) -> Evaluation:
        """All test images together. Activations of networks that were trained apart are not on one scale."""
        named, grouped = [one.files for one in self.evaluations], [one.group for one in self.evaluations]
        return Evaluation(
            torch.cat([one.activations for one in self.evaluations]),
            torch.cat([one.labels for one in self.evaluations]),
            self.evaluations[0].classes,
            None if None in named else tuple(file for files in named for file in files or ()),
            None if None in grouped else torch.cat([one for one in grouped if one is not None]),
        )

    @property
    def error(self) -> FoldInterval:
        """The share of images classified wrong: mean over folds, with its interval."""
        image_error = accuracy_interval(self.pooled.correct.numpy()[None], self.pooled.groups).image_error
        return self._interval([one.error / 100 for one in self.evaluations], image_error)

    @property
    def balanced_accuracy(self) -> FoldInterval:
        """The mean over classes of the share that is found: mean over folds, with its interval."""
        pooled = self.pooled
        image_error = balanced_interval(pooled.correct.numpy()[None], pooled.labels.numpy(), pooled.groups).image_error
        return self._interval([one.balanced_accuracy / 100 for one in self.evaluations], image_error)

    def _interval(self, values: Sequence[float], image_error: float) -> FoldInterval:
        return fold_interval(values, len(self.pooled.labels), self.others, image_error)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, in per cent."""
        pooled = self.pooled.to_dict()
        return {
            "folds": [
                {
                    "images": len(one.labels),
                    "errors": one.errors,
                    "error_percent": one.error,
                    "balanced_accuracy_percent": one.balanced_accuracy,
                }
                for one in self.evaluations
            ],
            "error": in_per_cent(self.error),
            "balanced_accuracy": in_per_cent(self.balanced_accuracy),
            "pooled": {name: pooled[name] for name in _POOLED},
        }

    def write_predictions(self, path: Path) -> None:
        """A CSV row an image: its file, its class, the fold that tested it, and what that fold's network said.

        Images without file names have their number among the test images of their fold.
        """
        rows: list[Iterable[object]] = []
        for fold, one in enumerate(self.evaluations):
            files = one.files or range(len(one.labels))
            truth, said = ([one.classes[k] for k in column.tolist()] for column in (one.labels, one.predictions))
            rows += zip(files, truth, [fold] * len(truth), said, strict=True)
        write_csv(path, ("file", "class", "fold", "predicted"), rows)


def in_per_cent(interval: FoldInterval) -> dict[str, Any]:
    """Ready for JSON."""
    return {"mean_percent": 100 * interval.estimate, "interval_95_percent": [100 * interval.low, 100 * interval.high]}

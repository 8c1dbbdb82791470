"""How well each score, and what is made of them, tells images from elsewhere from the test images of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from capsella.data import ImageSet, batches
from capsella.data.laboratory import class_number
from capsella.errors import check_argument, pluralize
from capsella.evaluation.groups import Groups, share_interval, worth
from capsella.evaluation.novelty.elsewhere import Elsewhere
from capsella.evaluation.wilson import auc_interval
from capsella.models import ImageClassifier, Novelty
from capsella.models.inference import inference
from capsella.models.novelty.fitted import REFUSE, check_refuse, images_to_refuse
from capsella.models.novelty.observe import answer, only_as_needed
from capsella.models.novelty.scores import class_logits, doubt, energy
from capsella.types import check_finite

KNOWN = "known"
BASELINES = ("confidence", "energy")
"""Scores of the answer alone, for comparison: they have no part in `known`."""


@dataclass(frozen=True)
class Told:
    """One score on one set from elsewhere.

    auc: area under the ROC curve, home against elsewhere; 0.5 is chance. interval: its 95 % interval.
    """

    score: str
    auc: float
    interval: tuple[float, float]


@dataclass(frozen=True, eq=False)
class FromElsewhere:
    """A set from elsewhere.

    refused: images that are not known. refused_interval_95: of their share; images stand for themselves. labelled,
    right: known ones that show a class of the run, and of these those that are classified right; None where the source
    names no class of the run.
    curves: of each score, [2 m]: false and true alarms as shares, at every threshold. unread: files that count nowhere.
    """

    name: str
    images: int
    refused: int
    refused_interval_95: tuple[float, float]
    labelled: int | None
    right: int | None
    told: tuple[Told, ...]
    curves: dict[str, Float[np.ndarray, "2 m"]]
    unread: int = 0


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What `measure_knowledge` found.

    refuse: the share of usual images that may be refused, asked for. images, refused: of the test images.
    refused_interval_95: of the share, see `share_interval`.
    right: test images that are known and classified right. validation_images: what the threshold comes from.
    """

    refuse: float
    images: int
    refused: int
    refused_interval_95: tuple[float, float]
    right: int
    validation_images: int
    sets: tuple[FromElsewhere, ...]

    @property
    def can_refuse(self) -> bool:
        """Whether there are enough validation images for a threshold; else every image counts as known."""
        return self.validation_images >= images_to_refuse(self.refuse)

    def notes(self) -> list[str]:
        """What a reader must know of the numbers."""
        notes = [
            f"{one.name}: {pluralize(one.unread, 'image')} could not be read: left out everywhere"
            for one in self.sets
            if one.unread
        ]
        if self.can_refuse:
            return notes
        return [
            f"{self.validation_images} validation images are too few to refuse {100 * self.refuse:g} %: that needs "
            f"{images_to_refuse(self.refuse)}. So no image is refused",
            *notes,
        ]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, without the curves."""
        return {
            "refuse": self.refuse,
            "validation_images": self.validation_images,
            "home": {"images": self.images, "refused": self.refused, "known_and_right": self.right}
            | {"refused_interval_95": self.refused_interval_95},
            "elsewhere": [
                {
                    "name": one.name,
                    "images": one.images,
                    "refused": one.refused,
                    "refused_interval_95": one.refused_interval_95,
                    "known_with_a_class_of_the_run": one.labelled,
                    "of_these_right": one.right,
                    "auc": {told.score: {"auc": told.auc, "interval_95": told.interval} for told in one.told},
                }
                for one in self.sets
            ],
            "notes": self.notes(),
        }


@dataclass(frozen=True, eq=False)
class _Seen:
    """Scores by name, [n] each, and predicted classes [n], of a set of images."""

    scores: dict[str, Float[Tensor, " n"]]
    predicted: Tensor


def measure_knowledge(
    model: ImageClassifier,
    home: ImageSet,
    others: Sequence[Elsewhere],
    refuse: float = REFUSE,
    batch_size: int = 128,
) -> Knowledge:
    """Scores of the test images and of images from elsewhere; the threshold comes from the validation images.

    Args:
        model: with `novelty`.
        home: its own test images.
        others: sets from elsewhere, at the model's size.
        refuse: the share of usual images that may be refused.

    Raises:
        ValueError: a model whose novelty is not fitted; no images; a share that cannot be.
    """
    check_refuse(refuse)
    if (novelty := model.novelty) is None:
        raise ValueError("model: must have novelty, as capsella.training.familiarise_model fits it, got one without")
    check_argument(len(home) > 0 and bool(others), "be at least one", home_and_others=(len(home), len(others)))
    at_home = _see(model, novelty, home.images, batch_size)
    threshold = novelty.threshold(refuse)
    known = at_home.scores[KNOWN] <= threshold
    groups = None if home.group is None else home.group.numpy()
    beside = [(one, _see(model, novelty, one.images, batch_size)) for one in others]
    return Knowledge(
        refuse=refuse,
        images=len(home),
        refused=int((~known).sum()),
        refused_interval_95=share_interval(~known.numpy(), groups),
        right=int((known & (at_home.predicted == home.labels)).sum()),
        validation_images=novelty.images,
        sets=tuple(_beside(at_home, groups, seen, one, model.classes, threshold) for one, seen in beside),
    )


def _see(model: ImageClassifier, novelty: Novelty, images: Tensor, batch_size: int) -> _Seen:
    rows = []
    quick = only_as_needed(model, novelty)
    unlabelled = ImageSet(images, torch.zeros(len(images), dtype=torch.int64), model.classes)
    with inference(quick) as device:
        for part, _, _ in batches(unlabelled, batch_size, device=device):
            output, surprises = answer(quick, part, novelty)
            check_finite(output.activations)
            logits = class_logits(output)
            beside = torch.stack([doubt(logits), energy(logits)], 1)
            predicted = output.activations.argmax(1)
            columns = (surprises.amax(1, keepdim=True), surprises, beside, predicted[:, None])
            rows.append(torch.cat([column.double().cpu() for column in columns], 1))
    table = torch.cat(rows).clone()
    names = (KNOWN, *novelty.scores, *BASELINES)
    return _Seen(dict(zip(names, table.unbind(1), strict=False)), table[:, -1].long())


def _beside(
    home: _Seen,
    groups: Groups | None,
    seen: _Seen,
    other: Elsewhere,
    classes: tuple[str, ...],
    threshold: float,
) -> FromElsewhere:
    from sklearn.metrics import roc_auc_score, roc_curve

    numbers = len(home.predicted), len(other.images)
    labels = np.repeat([0, 1], numbers)
    told, curves = [], {}
    for name, scores in seen.scores.items():
        both = torch.cat([home.scores[name], scores]).numpy()
        auc = float(roc_auc_score(labels, both))
        told.append(Told(name, auc, _interval(auc, home.scores[name].numpy(), scores.numpy(), groups)))
        curves[name] = np.stack(roc_curve(labels, both)[:2])
    known = seen.scores[KNOWN] <= threshold
    labelled = right = None
    numbered = [class_number(name, classes) for name in other.classes or ()]
    if any(number >= 0 for number in numbered):
        truth = torch.tensor(numbered)
        labelled = int((known & (truth >= 0)).sum())
        right = int((known & (truth == seen.predicted)).sum())
    return FromElsewhere(
        name=other.name,
        images=numbers[1],
        refused=int((~known).sum()),
        refused_interval_95=share_interval(~known.numpy(), None),
        labelled=labelled,
        right=right,
        told=tuple(told),
        curves=curves,
        unread=other.unread,
    )


def _interval(
    auc: float, home: Float[np.ndarray, " n"], away: Float[np.ndarray, " m"], groups: Groups | None
) -> tuple[float, float]:
    """The area's 95 % interval. Images of one group at home count as fewer than they are.

    The area is a mean over the images at home: of each, the share of the images from elsewhere that are stranger
    (Obuchowski 1997, Biometrics 53). So `worth` says how many independent ones an image is.
    """
    ordered = np.sort(away)
    stranger = 1 - (np.searchsorted(ordered, home, "left") + np.searchsorted(ordered, home, "right")) / (2 * len(away))
    return auc_interval(auc, worth(stranger, groups) * len(home), len(away))

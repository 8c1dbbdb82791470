"""A comparison for each fold of the images, and what they say together: every image is tested once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from rich.console import Console

from capsella.compare.networks import Candidate
from capsella.compare.options import ComparisonOptions
from capsella.compare.plan import Plan, begun_with, make_plan
from capsella.compare.report import Findings
from capsella.compare.study import compare
from capsella.compare.trained import FAMILIES
from capsella.data import single_images
from capsella.errors import CapsellaError
from capsella.evaluation import (
    FoldInterval,
    Groups,
    accuracy_interval,
    balanced_difference_interval,
    balanced_interval,
    difference_interval,
    fold_interval,
)


@dataclass(frozen=True, eq=False)
class Fold:
    """What the comparison of one fold found.

    labels: of its test images. groups: the number of each one's patient or the like, where known. others: how many
    images were not tested. By network that trained to the end: hits, which test images each seed has right; validation,
    the mean error in per cent; latency, the median in milliseconds.
    """

    labels: Int[np.ndarray, " images"]
    groups: Groups | None
    others: int
    hits: dict[str, Bool[np.ndarray, "seeds images"]]
    validation: dict[str, float]
    latency: dict[str, float]
    unfinished: tuple[str, ...]
    headline: str

    @classmethod
    def of(cls, found: Findings) -> "Fold":
        """Of the findings, which hold the images too, what is needed here."""
        splits = found.plan.splits
        tested = single_images(splits.test, "comparisons")
        return cls(
            tested.labels.numpy(),
            None if tested.group is None else tested.group.numpy(),
            len(splits.train) + len(splits.validation),
            {one.name: one.hits for one in found.measured},
            {one.name: one.trained.validation_error for one in found.measured},
            {one.name: one.latency.p50 for one in found.measured},
            found.verdict.unfinished,
            found.verdict.headline,
        )


@dataclass(frozen=True, eq=False)
class OverFolds:
    """A network that trained to the end on every fold."""

    candidate: Candidate
    folds: Sequence[Fold]

    @property
    def name(self) -> str:
        """The registered network."""
        return self.candidate.network

    @property
    def hits(self) -> list[Bool[np.ndarray, "seeds images"]]:
        """Of each fold, which test images each seed has right."""
        return [fold.hits[self.name] for fold in self.folds]

    @property
    def pooled(self) -> Bool[np.ndarray, "seeds images"]:
        """Of all images."""
        return np.concatenate(self.hits, 1)

    @property
    def by_fold(self) -> list[float]:
        """The accuracy on each fold."""
        return [float(one.mean()) for one in self.hits]

    @property
    def validation_error(self) -> float:
        """Mean over folds, in per cent."""
        return sum(fold.validation[self.name] for fold in self.folds) / len(self.folds)

    @property
    def latency(self) -> float:
        """Median over folds of the milliseconds an image."""
        return float(np.median([fold.latency[self.name] for fold in self.folds]))

    @property
    def accuracy(self) -> FoldInterval:
        """Mean over folds, with its 95 % interval."""
        return over_folds(self.folds, self.by_fold, accuracy_interval(self.pooled, groups_of(self.folds)).image_error)

    @property
    def balanced_accuracy(self) -> FoldInterval:
        """Mean over folds of the mean recall of all classes, as a share, with its 95 % interval."""
        each = [balanced_interval(fold.hits[self.name], fold.labels).estimate for fold in self.folds]
        error = balanced_interval(self.pooled, labels_of(self.folds), groups_of(self.folds)).image_error
        return over_folds(self.folds, each, error)

    def less(self, other: Bool[np.ndarray, "seeds images"]) -> FoldInterval:
        """Accuracy less that of others' hits on the same images, in the order of the folds; paired fold by fold."""
        ends = np.cumsum([len(fold.labels) for fold in self.folds])[:-1]
        each = [a - float(b.mean()) for a, b in zip(self.by_fold, np.split(other, ends, axis=1), strict=True)]
        error = difference_interval(self.pooled, other, groups_of(self.folds)).image_error
        return over_folds(self.folds, each, error, least=-1.0)

    def finds_more_than(self, other: "OverFolds") -> FoldInterval:
        """The mean recall of all classes less the other's, as a share; paired fold by fold."""
        pairs = [(fold.hits[self.name], fold.hits[other.name], fold.labels) for fold in self.folds]
        each = [balanced_difference_interval(*pair).estimate for pair in pairs]
        labels, groups = labels_of(self.folds), groups_of(self.folds)
        error = balanced_difference_interval(self.pooled, other.pooled, labels, groups).image_error
        return over_folds(self.folds, each, error, least=-1.0)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; intervals as shares, errors in per cent."""
        return {
            "network": self.name,
            "family": self.candidate.family,
            "parameters": self.candidate.parameters,
            "accuracy": self.accuracy._asdict(),
            "balanced_accuracy": self.balanced_accuracy._asdict(),
            "accuracy_by_fold": self.by_fold,
            "validation_error_percent": self.validation_error,
            "latency_ms_median": self.latency,
        }


def over_folds(folds: Sequence[Fold], values: Sequence[float], image_error: float, least: float = 0.0) -> FoldInterval:
    """Mean of a value of each fold, with the interval of `fold_interval`."""
    tested, others = sum(len(fold.labels) for fold in folds), sum(fold.others for fold in folds)
    return fold_interval(values, tested, others, image_error, least)


def labels_of(folds: Sequence[Fold]) -> Int[np.ndarray, " images"]:
    """The classes of all test images, in the order of the folds."""
    return np.concatenate([fold.labels for fold in folds])


def groups_of(folds: Sequence[Fold]) -> Groups | None:
    """The groups of all test images, in the order of the folds; None where images stand for themselves."""
    known = [fold.groups for fold in folds if fold.groups is not None]
    return np.concatenate(known) if known else None


def first_plan(options: ComparisonOptions) -> Plan:
    """The plan of the first fold, of which the others take times, epochs and precision.

    Raises:
        ValueError, CapsellaError: as `make_plan` does; a comparison without folds is in the folder, or one with other
            options in that of a fold.
    """
    if not options.dry_run and (options.output / "plan.json").exists():
        raise CapsellaError(f"{options.output} holds a comparison of one split; choose another --out")
    if not options.dry_run:
        for fold in range(1, options.folds or 0):  # before anything is trained
            begun_with(_of_fold(options, fold))
    return make_plan(_of_fold(options, 0))


def compare_folds(options: ComparisonOptions, first: Plan, console: Console) -> list[Fold]:
    """Compare for every fold, in fold0, fold1, … of the folder; what is finished is read, as in `compare`.

    Raises:
        CapsellaError: as `compare`; the comparison of a fold was begun with other epochs, or of other images.
    """
    folds = []
    for number in range(options.folds or 0):
        console.print(f"fold {number}: {number + 1} of {options.folds}", markup=False)
        plan = first if number == 0 else make_plan(_of_fold(options, number), first)
        _check_same_images(plan, first)
        for name in ("epochs", "precision", "balance"):
            mine, firsts = getattr(plan, name), getattr(first, name)
            if mine != firsts:
                raise CapsellaError(
                    f"{plan.folder}: must have the {name} of the first fold, {firsts}, got {mine}; move it away"
                )
        folds.append(Fold.of(compare(plan, console)[0]))
    return folds


def _check_same_images(plan: Plan, first: Plan) -> None:
    """Else the folds would overlap, and an image would be tested twice or never."""
    came, went = plan.table.rows.keys() - first.table.rows.keys(), first.table.rows.keys() - plan.table.rows.keys()
    if came or went:
        change = f"{min(map(str, came or went))} {'came' if came else 'went'}"
        raise CapsellaError(
            f"{plan.folder}: must have the images of the first fold, but {change} since that was begun; "
            "put the files back as they were, or choose another --out"
        )


def networks_over(candidates: Sequence[Candidate], folds: Sequence[Fold]) -> tuple[list[OverFolds], list[OverFolds]]:
    """The networks that trained to the end on every fold, and the best capsule network and CNN of them.

    The best have the lowest mean validation error over folds, then the fewer parameters.

    Raises:
        CapsellaError: every network of a kind diverged on a fold.
    """
    networks = [OverFolds(one, folds) for one in candidates if all(one.network in fold.hits for fold in folds)]
    best = []
    for family in FAMILIES:
        kind = [one for one in networks if one.candidate.family == family]
        if not kind:
            raise CapsellaError(f"every network of the {family} diverged on a fold; there is nothing to compare")
        best.append(min(kind, key=lambda one: (one.validation_error, one.candidate.parameters)))
    return networks, best


def _of_fold(options: ComparisonOptions, fold: int) -> ComparisonOptions:
    """Of the time, each fold has its share."""
    minutes = None if options.minutes is None else options.minutes / (options.folds or 1)
    return replace(options, fold=fold, minutes=minutes, out=options.output / f"fold{fold}")

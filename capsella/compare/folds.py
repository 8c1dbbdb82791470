"""The comparisons of all folds taken together: every image is tested once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from capsella.compare.plan import Candidate, Plan
from capsella.compare.results import FAMILIES, Comparison
from capsella.compare.verdict import ChanceComparison, Correct, Evidence, NetworkResult, TestSetting, Verdict, judge
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
    """The result of one fold.

    labels, groups: of its test images. others: the number of images that were not tested. By network that trained to
    the end: correct, which test images each seed classifies correctly; validation, the mean error in per cent; latency,
    the 50th and 95th percentile in milliseconds.
    """

    labels: Int[np.ndarray, " images"]
    groups: Groups | None
    others: int
    correct: dict[str, Bool[np.ndarray, "seeds images"]]
    validation: dict[str, float]
    latency: dict[str, tuple[float, float]]
    unfinished: tuple[str, ...]
    headline: str

    @classmethod
    def of(cls, found: Comparison) -> "Fold":
        """Return what is needed of a comparison, which holds the images too."""
        splits = found.plan.splits
        tested = single_images(splits.test, "comparisons")
        return cls(
            tested.labels.numpy(),
            None if tested.group is None else tested.group.numpy(),
            len(splits.train) + len(splits.validation),
            {network.name: network.correct for network in found.networks},
            {network.name: network.trained.validation_error for network in found.networks},
            {network.name: (network.latency.p50, network.latency.p95) for network in found.networks},
            tuple(found.verdict.setting.unfinished),
            found.words.headline,
        )


@dataclass(frozen=True, eq=False)
class FoldNetwork:
    """A network that trained to the end on every fold."""

    candidate: Candidate
    folds: Sequence[Fold]

    @property
    def name(self) -> str:
        """The registered network."""
        return self.candidate.network

    @cached_property
    def pooled(self) -> Bool[np.ndarray, "seeds images"]:
        """Which images each seed classifies correctly, in the order of the folds."""
        return np.concatenate([fold.correct[self.name] for fold in self.folds], 1)

    @property
    def by_fold(self) -> list[float]:
        """The accuracy on each fold."""
        return [float(fold.correct[self.name].mean()) for fold in self.folds]

    @property
    def validation_error(self) -> float:
        """The mean over folds, in per cent."""
        return float(np.mean([fold.validation[self.name] for fold in self.folds]))

    @property
    def latency(self) -> tuple[float, float]:
        """The medians over folds of the percentiles of the milliseconds per image."""
        median, p95 = np.median([fold.latency[self.name] for fold in self.folds], axis=0)
        return float(median), float(p95)

    @property
    def accuracy(self) -> FoldInterval:
        """The mean over folds, with its 95 % interval."""
        error = accuracy_interval(self.pooled, groups_of(self.folds)).image_error
        return _over_folds(self.folds, self.by_fold, error)

    @property
    def balanced_accuracy(self) -> FoldInterval:
        """The mean over folds of the mean recall of all classes, with its 95 % interval."""
        each = [balanced_interval(fold.correct[self.name], fold.labels).estimate for fold in self.folds]
        error = balanced_interval(self.pooled, labels_of(self.folds), groups_of(self.folds)).image_error
        return _over_folds(self.folds, each, error)

    def gain_over(self, other: Correct) -> FoldInterval:
        """Return its accuracy less that of another predictor of the same images; paired fold by fold."""
        ends = np.cumsum([len(fold.labels) for fold in self.folds])[:-1]
        each = [a - float(b.mean()) for a, b in zip(self.by_fold, np.split(other, ends, axis=1), strict=True)]
        error = difference_interval(self.pooled, other, groups_of(self.folds)).image_error
        return _over_folds(self.folds, each, error, least=-1.0)

    def recall_gain_over(self, other: "FoldNetwork") -> FoldInterval:
        """Return its mean recall less the other's; paired fold by fold."""
        each = [
            balanced_difference_interval(fold.correct[self.name], fold.correct[other.name], fold.labels).estimate
            for fold in self.folds
        ]
        labels, groups = labels_of(self.folds), groups_of(self.folds)
        error = balanced_difference_interval(self.pooled, other.pooled, labels, groups).image_error
        return _over_folds(self.folds, each, error, least=-1.0)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; intervals as shares, errors in per cent."""
        return {
            "network": self.name,
            "family": self.candidate.family,
            "parameters": self.candidate.parameters,
            "accuracy": self.accuracy._asdict(),
            "balanced_accuracy": self.balanced_accuracy._asdict(),
            "accuracy_by_fold": self.by_fold,
            "validation_error_percent": self.validation_error,
            "latency_ms_median": self.latency[0],
        }


@dataclass(frozen=True, eq=False)
class FoldsVerdict:
    """The networks over all folds, the best of each family by validation, and the verdict on those."""

    networks: Sequence[FoldNetwork]
    best: tuple[FoldNetwork, FoldNetwork]
    verdict: Verdict

    @property
    def difference_by_fold(self) -> list[float]:
        """The accuracy of the capsules less that of the CNN on each fold."""
        capsules, cnn = self.best
        return [a - b for a, b in zip(capsules.by_fold, cnn.by_fold, strict=True)]


def judge_folds(first: Plan, folds: Sequence[Fold]) -> FoldsVerdict:
    """Compare the best network of each family over all folds; validation images chose them.

    Raises:
        CapsellaError: every network of a family diverged on a fold.
    """
    every = [network.network for network in first.candidates]
    whole = [
        FoldNetwork(candidate, folds)
        for candidate in first.candidates
        if all(candidate.network in f.correct for f in folds)
    ]
    best = []
    for family in FAMILIES:
        kind = [network for network in whole if network.candidate.family == family]
        if not kind:
            raise CapsellaError(f"every network of the {family} diverged on a fold; there is nothing to compare")
        best.append(min(kind, key=lambda network: (network.validation_error, network.candidate.parameters)))
    capsules, cnn = best
    setting = TestSetting(
        labels_of(folds),
        first.splits.classes,
        first.options.latency_limit,
        first.epochs,
        sorted({name for fold in folds for name in fold.unfinished}),
        groups_of(folds),
        first.undecidable,
        len(first.undecidable) == len(every),
        len(folds),
    )
    majority = setting.labels[None] == setting.majority
    evidence = Evidence(
        capsules.gain_over(cnn.pooled),
        capsules.recall_gain_over(cnn),
        {network.name: ChanceComparison(network.gain_over(majority), network.balanced_accuracy) for network in best},
    )
    results = [
        NetworkResult(network.name, network.pooled, 0, network.latency, network.candidate.parameters)
        for network in best
    ]
    return FoldsVerdict(whole, (capsules, cnn), judge(results[0], results[1], setting, evidence))


def _over_folds(folds: Sequence[Fold], values: Sequence[float], image_error: float, least: float = 0.0) -> FoldInterval:
    tested, others = sum(len(fold.labels) for fold in folds), sum(fold.others for fold in folds)
    return fold_interval(values, tested, others, image_error, least)


def labels_of(folds: Sequence[Fold]) -> Int[np.ndarray, " images"]:
    """Return the classes of all test images, in the order of the folds."""
    return np.concatenate([fold.labels for fold in folds])


def groups_of(folds: Sequence[Fold]) -> Groups | None:
    """Return the groups of all test images, in the order of the folds; None if they are not known."""
    known = [fold.groups for fold in folds if fold.groups is not None]
    return np.concatenate(known) if known else None

"""The decision of a comparison as data: which network to use, and how sure that is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int

from capsella.evaluation import Groups, Interval, accuracy_interval, difference_interval
from capsella.evaluation.statistics import FoldNumbers
from capsella.experiments.compare.contenders import FAMILIES, Family
from capsella.experiments.compare.plan import Measure

Correct = Bool[np.ndarray, "seeds images"]
Reason = Literal["winner", "ahead", "best useful", "faster", "none useful", "none complete", "none fast"]
MIN_IMAGES = 5  # test images of a class that is never found: with fewer, a good network may miss all by chance


@dataclass(frozen=True, eq=False)
class TestSetting:
    """The test images, and the criteria of the decision.

    labels, classes: class indices of the images, and names of the classes. measure: accuracy or balanced accuracy.
    limit: highest latency in milliseconds per image. groups: the index of each image's group, e.g. its patient, if
    known. folds: the fold that tested each image.
    """

    labels: Int[np.ndarray, " images"]
    classes: Sequence[str]
    measure: Measure
    limit: float
    groups: Groups | None = None
    folds: FoldNumbers | None = None

    @property
    def majority(self) -> int:
        """The index of the class with the most test images."""
        return int(np.bincount(self.labels).argmax())

    @property
    def guess(self) -> float:
        """The balanced accuracy of guessing."""
        return 1 / len(np.unique(self.labels))

    @property
    def units(self) -> int:
        """The number of independent units: images, or the groups that they belong to."""
        return len(self.labels) if self.groups is None else len(np.unique(self.groups))

    def value(self, correct: Correct) -> Interval:
        """Return the measure of a network, with its interval."""
        if self.measure == "accuracy":
            return self.accuracy(correct)
        return self.balanced_accuracy(correct)

    def accuracy(self, correct: Correct) -> Interval:
        """Return the accuracy, with its interval."""
        return accuracy_interval(correct, self.groups, self.folds)

    def balanced_accuracy(self, correct: Correct) -> Interval:
        """Return the mean recall over classes, with its interval."""
        return accuracy_interval(correct, self.groups, self.folds, labels=self.labels)

    def difference(self, first: Correct, second: Correct) -> Interval:
        """Return the measure of the first network minus that of the second."""
        labels = None if self.measure == "accuracy" else self.labels
        return difference_interval(first, second, self.groups, self.folds, labels=labels)


@dataclass(frozen=True, eq=False)
class NetworkResult:
    """The result of a network.

    correct: which test images each seed classifies correctly. validation_error: mean over folds and seeds, in per cent.
    latency: median and 95th percentile of the milliseconds per image. best_run: the run folder with the lowest
    validation error.
    """

    name: str
    title: str
    family: Family
    correct: Correct
    validation_error: float
    latency: tuple[float, float]
    parameters: int
    best_run: Path


@dataclass(frozen=True, eq=False)
class Decision:
    """The outcome of a comparison.

    finalists: the best network of each family by validation. reference: the best CNN that was trained from scratch, or
    else the last finalist. recommended, reason: the network to use, None if none is fit; and why. differences: each
    network minus the reference. against: each finalist minus the recommended network, or minus the most accurate one
    if none is recommended. useful: networks that are better than chance. never_found: by network, classes with at least
    `MIN_IMAGES` test images, none of which was classified correctly with any seed; and their numbers of images.
    """

    setting: TestSetting
    networks: Sequence[NetworkResult]
    finalists: Sequence[NetworkResult]
    reference: NetworkResult
    recommended: NetworkResult | None
    reason: Reason
    differences: Mapping[str, Interval]
    against: Mapping[str, Interval]
    useful: tuple[str, ...]
    never_found: Mapping[str, Sequence[tuple[str, int]]]

    @property
    def leader(self) -> NetworkResult:
        """The recommended network, or else the most accurate finalist."""
        return self.recommended or _best(self.setting, self.finalists)

    @property
    def detectable(self) -> float:
        """The smallest true difference from `nearest` found with a power of 0.8, by the observed disagreement."""
        return self.against[self.nearest].detectable

    @property
    def nearest(self) -> str:
        """The finalist whose accuracy is the closest to the leader's, or above it."""
        return max(self.against, key=lambda name: self.against[name].estimate)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; differences as proportions."""
        return {
            "recommended": None if self.recommended is None else self.recommended.name,
            "reason": self.reason,
            "measure": self.setting.measure,
            "reference": self.reference.name,
            "finalists": [network.name for network in self.finalists],
            "difference_from_reference": {name: interval.to_dict() for name, interval in self.differences.items()},
            "difference_from_recommended": {name: interval.to_dict() for name, interval in self.against.items()},
            "detectable_difference": self.detectable,
            "better_than_chance": list(self.useful),
            "never_found": {name: dict(classes) for name, classes in self.never_found.items() if classes},
        }


def decide(networks: Sequence[NetworkResult], setting: TestSetting) -> Decision:
    """Choose the network to use among the best of each family on the validation images.

    Networks that are not better than chance, miss a whole class or are too slow are not chosen. Of the others, the
    fastest within one standard error of the most accurate one is (the one-standard-error rule of Breiman et al. 1984).
    """
    finalists = _finalists(networks)
    reference = next((network for network in finalists if network.family == "CNN"), finalists[-1])
    useful = tuple(network.name for network in networks if _is_useful(network.correct, setting))
    never = {network.name: never_found(network.correct, setting) for network in networks}
    recommended, reason = _recommend(finalists, setting, useful, never)
    differences = _gains(networks, reference, setting)
    against = _gains(finalists, recommended or _best(setting, finalists), setting)
    return Decision(setting, networks, finalists, reference, recommended, reason, differences, against, useful, never)


def _gains(networks: Sequence[NetworkResult], base: NetworkResult, setting: TestSetting) -> dict[str, Interval]:
    """Return each network's measure minus that of `base`."""
    return {each.name: setting.difference(each.correct, base.correct) for each in networks if each is not base}


def _finalists(networks: Sequence[NetworkResult]) -> list[NetworkResult]:
    """Return the best network of each family; of a single family, its two best."""
    ranked = sorted(networks, key=lambda network: (network.validation_error, network.parameters))
    best = [next((network for network in ranked if network.family == family), None) for family in FAMILIES]
    finalists = [network for network in best if network is not None]
    return finalists if len(finalists) > 1 else ranked[:2]


def _best(setting: TestSetting, networks: Sequence[NetworkResult]) -> NetworkResult:
    return max(networks, key=lambda network: setting.value(network.correct).estimate)


def never_found(correct: Correct, setting: TestSetting) -> list[tuple[str, int]]:
    """Return classes with at least `MIN_IMAGES` images, none of which any seed got right, with their image counts."""
    counts = {label: int((setting.labels == label).sum()) for label in np.unique(setting.labels)}
    return [
        (setting.classes[label], count)
        for label, count in counts.items()
        if count >= MIN_IMAGES and not correct[:, setting.labels == label].any()
    ]


def _is_useful(correct: Correct, setting: TestSetting) -> bool:
    """Return whether a network beats guessing and, if accuracy decides, always predicting the largest class."""
    if setting.balanced_accuracy(correct).low <= setting.guess:
        return False
    majority = (setting.labels == setting.majority)[None]
    return setting.measure != "accuracy" or (
        difference_interval(correct, majority, setting.groups, setting.folds).low > 0
    )


def _recommend(
    finalists: Sequence[NetworkResult],
    setting: TestSetting,
    useful: Sequence[str],
    never: Mapping[str, Sequence[object]],
) -> tuple[NetworkResult | None, Reason]:
    fit = [network for network in finalists if network.name in useful]
    if not fit:
        return None, "none useful"
    complete = [network for network in fit if not never[network.name]]
    if not complete:
        return None, "none complete"
    fast = [network for network in complete if network.latency[0] <= setting.limit]
    if not fast:
        return None, "none fast"
    best = _best(setting, fast)
    behind = {
        network.name: setting.difference(best.correct, network.correct) for network in finalists if network is not best
    }
    near = [
        network
        for network in fast
        if network is best or behind[network.name].estimate <= behind[network.name].standard_error
    ]
    chosen = min(near, key=lambda network: network.latency[0])
    if chosen is not best:
        return chosen, "faster"
    if len(fast) == 1 or any(interval.estimate < 0 for interval in behind.values()):
        return best, "best useful"  # the only one, or a better one misses a class, is too slow or does not beat chance
    return best, "winner" if all(interval.low > 0 for interval in behind.values()) else "ahead"

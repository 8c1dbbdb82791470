"""The verdict of a comparison as data: who wins, which network to use, and what each finds of each class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int

from capsella.errors import check_argument
from capsella.evaluation import (
    Changed,
    FoldInterval,
    Groups,
    Interval,
    KeptAccuracy,
    McNemar,
    balanced_difference_interval,
    balanced_interval,
    difference_interval,
    kept_accuracies,
    mcnemar,
)

Family = Literal["capsules", "CNN"]
AnyInterval = Interval | FoldInterval
Correct = Bool[np.ndarray, "seeds images"]
# Why a network is recommended, or none is.
Reason = Literal[
    "winner",
    "better per class",
    "faster",
    "only fast one",
    "only useful one",
    "only complete one",
    "winner too slow",
    "none useful",
    "none complete",
    "none fast",
]
MIN_IMAGES = 5  # test images of a class that is never found: with fewer, a good network may miss all by chance


@dataclass(frozen=True, eq=False)
class NetworkResult:
    """The test results of the best network of a family.

    correct: which test images each seed classifies correctly. best_seed: the row of the seed that validates best.
    latency: 50th and 95th percentile of the milliseconds per image. changed: results on changed test images, if they
    were measured. smaller: the largest share of the training images below 1, and `correct` after training on it.
    smaller_seeds: the rows of `correct` whose seeds did not diverge on it.
    """

    network: str
    correct: Correct
    best_seed: int
    latency: tuple[float, float]
    parameters: int
    changed: Changed | None = None
    smaller: tuple[float, Correct] | None = None
    smaller_seeds: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class TestSetting:
    """The test images of two networks, and how the networks were trained.

    labels, classes: of the test images. limit: milliseconds that an image may take. epochs: of each training.
    unfinished: networks that still learned when their training ended. groups: the number of each image's patient or the
    like, if known. undecidable: networks whose learning curves cannot tell whether they still learned, because their
    learning rate falls to zero. folds: how many, if every image is tested in one of them.
    """

    labels: Int[np.ndarray, " images"]
    classes: Sequence[str]
    limit: float
    epochs: int
    unfinished: Sequence[str] = ()
    groups: Groups | None = None
    undecidable: Sequence[str] = ()
    all_undecidable: bool = False
    folds: int | None = None

    def __post_init__(self) -> None:
        check_argument(self.limit > 0, "be above 0 milliseconds", limit=self.limit)

    @property
    def majority(self) -> int:
        """The class with the most test images."""
        return int(np.bincount(self.labels).argmax())

    @property
    def majority_share(self) -> float:
        """The accuracy of always predicting that class."""
        return float((self.labels == self.majority).mean())

    @property
    def guess(self) -> float:
        """The mean recall of guessing, over the classes that have test images."""
        return 1 / len(np.unique(self.labels))

    @property
    def units(self) -> int:
        """The number of independent units: images, or the groups that they belong to."""
        return len(self.labels) if self.groups is None else len(np.unique(self.groups))


@dataclass(frozen=True)
class ChanceComparison:
    """A network against two predictors that look at no image.

    gain: accuracy less that of always predicting the majority class. recall: mean over classes.
    """

    gain: AnyInterval
    recall: AnyInterval


@dataclass(frozen=True)
class Evidence:
    """The intervals that a verdict rests on: over test images and seeds, or over folds.

    difference, recall_difference: capsules less CNN. chance: by network.
    """

    difference: AnyInterval
    recall_difference: AnyInterval
    chance: Mapping[str, ChanceComparison]


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison.

    capsules, cnn: the networks. winner: None if the difference is within noise. recommended: the network to use, and
    the reason; None if none is fit. useful: networks that are better than chance. never_found: by network, classes with
    at least `MIN_IMAGES` test images of which no seed found any, with their numbers. kept: by change of the test
    images, the share of its accuracy that each keeps. best_seeds: McNemar's test of the best seed of each. data_size:
    by network, the gain from the last step of the data-size curve.
    """

    capsules: NetworkResult
    cnn: NetworkResult
    setting: TestSetting
    evidence: Evidence
    winner: Family | None
    recommended: str | None
    reason: Reason
    useful: tuple[str, ...]
    never_found: Mapping[str, Sequence[tuple[str, int]]]
    kept: Mapping[str, KeptAccuracy]
    best_seeds: McNemar | None
    data_size: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def networks(self) -> tuple[NetworkResult, NetworkResult]:
        """The best capsule network and the best CNN."""
        return self.capsules, self.cnn

    @property
    def difference(self) -> AnyInterval:
        """Accuracy of the capsules less that of the CNN."""
        return self.evidence.difference

    @property
    def power(self) -> float | None:
        """The smallest true difference that the comparison finds four times in five; None over folds."""
        return self.difference.detectable if isinstance(self.difference, Interval) else None

    @property
    def ahead_per_class(self) -> Family | None:
        """The family with the higher mean recall; None if the interval contains 0."""
        return winner_of(self.evidence.recall_difference)

    @property
    def images_needed(self) -> int | None:
        """Test images (or groups) that would show a difference as small as the one measured."""
        if self.winner is not None or not isinstance(self.difference, Interval):
            return None
        return self.difference.images_needed(self.setting.units)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; differences and recalls as shares."""
        difference, per_class = self.evidence.difference, self.evidence.recall_difference
        return {
            "winner": self.winner,
            "recommended": self.recommended,
            "reason": self.reason,
            "capsules": self.capsules.network,
            "cnn": self.cnn.network,
            "difference": difference.to_dict() if isinstance(difference, Interval) else difference._asdict(),
            "power": self.power,
            "per_class": {
                "recall": {name: chance.recall.estimate for name, chance in self.evidence.chance.items()},
                "difference": {name: getattr(per_class, name) for name in ("estimate", "low", "high")},
                "never_found": {network: dict(classes) for network, classes in self.never_found.items()},
            },
            "better_than_chance": list(self.useful),
            "not_trained_to_the_end": list(self.setting.unfinished),
            "kept_under_changes": {change: kept.to_dict() for change, kept in self.kept.items()},
            "mcnemar_of_the_best_seeds": None if self.best_seeds is None else self.best_seeds._asdict(),
        }


def winner_of(difference: AnyInterval) -> Family | None:
    """Return the family with the higher value, by the interval of capsules less CNN; None if it contains 0."""
    return "capsules" if difference.low > 0 else "CNN" if difference.high < 0 else None


def judge(
    capsules: NetworkResult, cnn: NetworkResult, setting: TestSetting, evidence: Evidence | None = None
) -> Verdict:
    """Compare the best network of each family, which must have been chosen on other images.

    evidence: over folds; default: over test images and seeds.

    Raises:
        ArgumentError: results of different images.
    """
    networks = (capsules, cnn)
    over_folds, evidence = evidence is not None, evidence or evidence_of(capsules, cnn, setting)
    useful = tuple(name for name, chance in evidence.chance.items() if _is_useful(chance, setting))
    never = {result.network: never_found(result.correct, setting) for result in networks}
    recommended, reason = _recommend(capsules, cnn, setting, evidence, useful, never)
    kept: Mapping[str, KeptAccuracy] = {}
    if len(useful) == 2 and capsules.changed is not None and cnn.changed is not None:
        kept = {} if capsules.changed.has_two_groups else _kept(capsules.changed, cnn.changed, setting)
    data_size = {
        result.network: difference_interval(
            result.correct[list(result.smaller_seeds) or range(len(result.correct))], result.smaller[1], setting.groups
        )
        for result in networks
        if result.smaller is not None
    }
    return Verdict(
        capsules,
        cnn,
        setting,
        evidence,
        winner_of(evidence.difference),
        recommended,
        reason,
        useful,
        never,
        kept,
        None if over_folds else mcnemar(capsules.correct[capsules.best_seed], cnn.correct[cnn.best_seed]),
        data_size,
    )


def evidence_of(capsules: NetworkResult, cnn: NetworkResult, setting: TestSetting) -> Evidence:
    """Return the intervals over test images and seeds."""
    labels, groups = setting.labels, setting.groups
    majority = labels[None] == setting.majority
    return Evidence(
        difference_interval(capsules.correct, cnn.correct, groups),
        balanced_difference_interval(capsules.correct, cnn.correct, labels, groups),
        {
            result.network: ChanceComparison(
                difference_interval(result.correct, majority, groups),
                balanced_interval(result.correct, labels, groups),
            )
            for result in (capsules, cnn)
        },
    )


def never_found(correct: Correct, setting: TestSetting) -> list[tuple[str, int]]:
    """Return the classes of which no seed found any of at least `MIN_IMAGES` images, with their numbers."""
    counts = {label: int((setting.labels == label).sum()) for label in np.unique(setting.labels)}
    return [
        (setting.classes[label], count)
        for label, count in counts.items()
        if count >= MIN_IMAGES and not correct[:, setting.labels == label].any()
    ]


def _is_useful(chance: ChanceComparison, setting: TestSetting) -> bool:
    return chance.gain.low > 0 and chance.recall.low > setting.guess


def _kept(capsules: Changed, cnn: Changed, setting: TestSetting) -> Mapping[str, KeptAccuracy]:
    return kept_accuracies(capsules, cnn, setting.majority_share)


def _recommend(
    capsules: NetworkResult,
    cnn: NetworkResult,
    setting: TestSetting,
    evidence: Evidence,
    useful: Sequence[str],
    never: Mapping[str, Sequence[object]],
) -> tuple[str | None, Reason]:
    """Choose the winner, or else the better one per class, if it is fast enough; else the faster.

    A network that guesses, or that never finds a whole class, is never chosen.
    """
    networks = {result.network: result for result in (capsules, cnn)}
    if not useful:
        return None, "none useful"
    complete = [name for name in useful if not never[name]]
    if not complete:
        return None, "none complete"
    fast = [name for name in complete if networks[name].latency[1] <= setting.limit]
    if not fast:
        return None, "none fast"
    winner = winner_of(evidence.difference)
    family = winner or winner_of(evidence.recall_difference)
    ahead = None if family is None else capsules.network if family == "capsules" else cnn.network
    if ahead in fast:
        return ahead, "winner" if winner else "better per class"
    chosen = min(fast, key=lambda name: networks[name].latency[0])
    if len(complete) == 1:
        return chosen, "only useful one" if len(useful) == 1 else "only complete one"
    if ahead is not None:
        return chosen, "winner too slow"
    return chosen, "faster" if len(fast) == 2 else "only fast one"

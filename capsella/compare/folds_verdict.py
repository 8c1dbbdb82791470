"""The verdict of a comparison over folds in plain words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capsella.compare.by_class import ByClass, never_found
from capsella.compare.folds import Fold, OverFolds, labels_of, networks_over
from capsella.compare.plan import Plan
from capsella.compare.verdict import AgainstChance
from capsella.compare.words import Winner, not_asked, still_learning, trained_long, winner_of, wins
from capsella.evaluation import FoldInterval, points


@dataclass(frozen=True, eq=False)
class FoldsVerdict:
    """As `Verdict`, over folds.

    best: the best capsule network and the best CNN by validation; difference, classes: theirs.
    useful: those of them that are better than always saying the largest class, and find more of each than guessing.
    """

    networks: Sequence[OverFolds]
    best: tuple[OverFolds, OverFolds]
    winner: Winner | None
    difference: FoldInterval
    classes: ByClass
    useful: tuple[str, ...]
    unfinished: tuple[str, ...]
    headline: str
    sentences: dict[str, str]

    @property
    def difference_by_fold(self) -> list[float]:
        """Accuracy of the capsules less that of the CNN on each fold."""
        capsules, cnn = self.best
        return [a - b for a, b in zip(capsules.by_fold, cnn.by_fold, strict=True)]


def judge_folds(first: Plan, folds: Sequence[Fold]) -> FoldsVerdict:
    """Who wins over all folds, by the best network of each kind, which validation images chose.

    Raises:
        CapsellaError: as `networks_over`.
    """
    networks, (capsules, cnn) = networks_over(first.candidates, folds)
    difference = capsules.less(cnn.pooled)
    winner = winner_of(difference)
    chances = [_against_chance(one, first.splits.classes) for one in (capsules, cnn)]
    useful = tuple(chance.network for chance in chances if chance.is_beaten)
    unfinished = tuple(sorted({name for fold in folds for name in fold.unfinished}))
    headline = _headline((capsules, cnn), winner, difference, useful)
    classes = _by_class(capsules, cnn, first.splits.classes)
    if useful:
        headline += classes.addition(winner) + still_learning((capsules.name, cnn.name), unfinished)
    sentences = {
        "accuracy": _accuracy(capsules, cnn, difference),
        "classes": classes.sentence,
        "better than chance": " ".join(chance.sentence for chance in chances),
        "training": _training(unfinished, first),
    }
    if gone := sorted({one.network for one in first.candidates} - {one.name for one in networks}):
        sentences["left out"] = f"Diverged on a fold: {', '.join(gone)}."
    return FoldsVerdict(networks, (capsules, cnn), winner, difference, classes, useful, unfinished, headline, sentences)


def _headline(
    best: tuple[OverFolds, OverFolds], winner: Winner | None, difference: FoldInterval, useful: Sequence[str]
) -> str:
    capsules, cnn = best
    folds = len(capsules.folds)
    if not useful:
        return (
            f"Neither is to be shipped yet: {folds} folds do not show that {capsules.name} or {cnn.name} is better "
            "than chance, which is always saying the largest class, and guessing for the mean over classes."
        )
    if winner is None:
        alone = f" Only {useful[0]} is shown to be better than chance." if len(useful) == 1 else ""
        return f"No difference that {folds} folds of {capsules.pooled.shape[1]} images could show.{alone}"
    one = capsules if winner == "capsules" else cnn
    guesses = "" if one.name in useful else " But it is not shown to be better than chance."
    return wins(winner, capsules.name, cnn.name, difference, f" over {folds} folds") + guesses


def _accuracy(capsules: OverFolds, cnn: OverFolds, difference: FoldInterval) -> str:
    return (
        f"{capsules.name} has {100 * capsules.accuracy.estimate:.1f} % right, {cnn.name} "
        f"{100 * cnn.accuracy.estimate:.1f} %: a difference of {points(difference.estimate)} points, 95 % interval "
        f"{points(difference.low)} to {points(difference.high)}, from the differences on each fold."
    )


def _training(unfinished: Sequence[str], plan: Plan) -> str:
    if not unfinished:
        return trained_long(plan.asks_curves, plan.not_asked, plan.epochs)
    return (
        f"Not trained to the end on every fold: {', '.join(unfinished)}; longer training may change the result "
        f"(--epochs {2 * plan.epochs}, with another --out).{not_asked(plan.not_asked)}"
    )


def _by_class(capsules: OverFolds, cnn: OverFolds, classes: Sequence[str]) -> ByClass:
    labels = labels_of(capsules.folds)
    return ByClass(
        {one.name: one.balanced_accuracy.estimate for one in (capsules, cnn)},
        capsules.finds_more_than(cnn),
        {one.name: never_found(one.pooled, labels, classes) for one in (capsules, cnn)},
    )


def _against_chance(one: OverFolds, classes: Sequence[str]) -> AgainstChance:
    labels = labels_of(one.folds)
    largest, guess = int(np.bincount(labels).argmax()), 1 / len(np.unique(labels))
    return AgainstChance(one.name, classes[largest], one.less(labels[None] == largest), one.balanced_accuracy, guess)

"""The verdict over folds in plain words, and its page: report.html and compare.json beside the folders of the folds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capsella.compare.figures import accuracy_figure
from capsella.compare.folds import Fold, OverFolds, labels_of, networks_over
from capsella.compare.options import ComparisonOptions
from capsella.compare.plan import Plan
from capsella.compare.report import protocol
from capsella.compare.verdict import Winner, points
from capsella.errors import counted
from capsella.evaluation.intervals import FoldInterval
from capsella.explain.page import embedded, render_page
from capsella.files import write_json, write_text


@dataclass(frozen=True, eq=False)
class FoldsVerdict:
    """As `Verdict`, over folds. best: the best capsule network and the best CNN by validation; difference: theirs.

    useful: those of them that are better than always saying the largest class, and find more of each than guessing.
    """

    networks: Sequence[OverFolds]
    best: tuple[OverFolds, OverFolds]
    winner: Winner | None
    difference: FoldInterval
    useful: tuple[str, ...]
    unfinished: tuple[str, ...]
    headline: str
    sentences: dict[str, str]


def judge_folds(first: Plan, folds: Sequence[Fold]) -> FoldsVerdict:
    """Who wins over all folds, by the best network of each kind, which validation images chose.

    Raises:
        CapsellaError: as `networks_over`.
    """
    networks, (capsules, cnn) = networks_over(first.candidates, folds)
    difference = capsules.less(cnn.pooled)
    winner: Winner | None = "capsules" if difference.low > 0 else "CNN" if difference.high < 0 else None
    chance = {one.name: _chance(one, first.splits.classes) for one in (capsules, cnn)}
    useful = tuple(name for name, (better, _) in chance.items() if better)
    unfinished = tuple(sorted({name for fold in folds for name in fold.unfinished}))
    headline = _headline((capsules, cnn), winner, difference, useful)
    early = [one.name for one in (capsules, cnn) if one.name in unfinished]
    if useful and early:
        headline += f" But {' and '.join(early)} still learned when the training ended."
    sentences = {
        "accuracy": _accuracy(capsules, cnn, difference),
        "better than chance": " ".join(text for _, text in chance.values()),
        "training": _training(unfinished, first.epochs),
    }
    if gone := sorted({one.network for one in first.candidates} - {one.name for one in networks}):
        sentences["left out"] = f"Diverged on a fold: {', '.join(gone)}."
    return FoldsVerdict(networks, (capsules, cnn), winner, difference, useful, unfinished, headline, sentences)


def write_folds(options: ComparisonOptions, first: Plan, folds: Sequence[Fold]) -> tuple[FoldsVerdict, Path]:
    """Write report.html and compare.json; returns the verdict and the path of the page.

    Raises:
        CapsellaError: as `judge_folds`; no space on the disk.
    """
    verdict, folder = judge_folds(first, folds), options.output
    write_json(folder / "compare.json", _values(options, verdict, folds))
    colours = {one.name: f"C{number % 10}" for number, one in enumerate(verdict.networks)}
    figure = accuracy_figure(
        {one.name: one.accuracy for one in verdict.networks},
        {one.name: one.by_fold for one in verdict.networks},
        colours,
    )
    page = render_page(
        "capsella.compare",
        "folds.html.jinja",
        title=f"Capsules or a CNN for {first.splits.name}? {counted(len(folds), 'fold')}",
        verdict=verdict,
        best=[one.name for one in verdict.best],
        folds=list(zip(folds, _differences(verdict), strict=True)),
        images=len(labels_of(folds)),
        notes=[*first.splits.notes, *(f"left out: {reason}" for reason in first.splits.broken)],
        protocol=protocol(first),
        points=points,
        picture=embedded(figure, folder / "figures" / "accuracy.png"),
    )
    write_text(folder / "report.html", page)
    return verdict, folder / "report.html"


def _differences(verdict: FoldsVerdict) -> list[float]:
    """Accuracy of the capsules less that of the CNN on each fold."""
    capsules, cnn = verdict.best
    return [a - b for a, b in zip(capsules.by_fold, cnn.by_fold, strict=True)]


def _headline(
    best: tuple[OverFolds, OverFolds], winner: Winner | None, difference: FoldInterval, useful: Sequence[str]
) -> str:
    capsules, cnn = best
    folds = len(capsules.folds)
    if not useful:
        return (
            f"Neither is to be shipped yet: {folds} folds do not show that {capsules.name} or {cnn.name} is better "
            "than always saying the largest class."
        )
    if winner is None:
        alone = f" Only {useful[0]} is shown to be better than chance." if len(useful) == 1 else ""
        return f"No difference that {folds} folds of {capsules.pooled.shape[1]} images could show.{alone}"
    one, other, sign = (capsules, cnn, 1) if winner == "capsules" else (cnn, capsules, -1)
    low, high = sorted((100 * sign * difference.low, 100 * sign * difference.high))
    kind = "The capsule network" if winner == "capsules" else "The CNN"
    guesses = "" if one.name in useful else " But it is not shown to be better than chance."
    return (
        f"{kind} wins: {one.name} is right {100 * sign * difference.estimate:.1f} points more often than {other.name} "
        f"(95 % interval over {folds} folds {low:.1f} to {high:.1f}).{guesses}"
    )


def _accuracy(capsules: OverFolds, cnn: OverFolds, difference: FoldInterval) -> str:
    return (
        f"{capsules.name} has {100 * capsules.accuracy.estimate:.1f} % right, {cnn.name} "
        f"{100 * cnn.accuracy.estimate:.1f} %: a difference of {points(difference.estimate)} points, 95 % interval "
        f"{points(difference.low)} to {points(difference.high)}, from the differences on each fold."
    )


def _training(unfinished: Sequence[str], epochs: int) -> str:
    if not unfinished:
        return f"No network's training loss or error still fell clearly at the end of its {epochs} epochs."
    return (
        f"Not trained to the end on every fold: {', '.join(unfinished)}; longer training may change the result "
        f"(--epochs {2 * epochs}, with another --out)."
    )


def _chance(one: OverFolds, classes: Sequence[str]) -> tuple[bool, str]:
    """Whether a network is better than always saying the largest class, and finds more of each class than guessing."""
    labels = labels_of(one.folds)
    largest, guess = int(np.bincount(labels).argmax()), 1 / len(np.unique(labels))
    ahead, found = one.less(labels[None] == largest), one.balanced_accuracy
    better = ahead.low > 0 and found.low > guess
    return better, (
        f"{one.name} {'is' if better else 'is not shown to be'} better than chance: it is right "
        f"{points(ahead.estimate)} points ({points(ahead.low)} to {points(ahead.high)}) more often than always saying "
        f"{classes[largest]}, and finds {100 * found.estimate:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f}) "
        f"of a class on average, where guessing finds {100 * guess:.1f} %."
    )


def _values(options: ComparisonOptions, verdict: FoldsVerdict, folds: Sequence[Fold]) -> dict[str, Any]:
    """compare.json: differences and intervals as shares."""
    capsules, cnn = verdict.best
    return {
        "options": options.to_dict(),
        "verdict": {
            "winner": verdict.winner,
            "headline": verdict.headline,
            "sentences": verdict.sentences,
            "capsules": capsules.name,
            "cnn": cnn.name,
            "difference": verdict.difference._asdict(),
            "difference_by_fold": _differences(verdict),
            "better_than_chance": list(verdict.useful),
            "not_trained_to_the_end": list(verdict.unfinished),
        },
        "networks": [one.to_dict() for one in verdict.networks],
        "folds": [{"images": len(fold.labels), "headline": fold.headline} for fold in folds],
    }

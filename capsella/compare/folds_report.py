"""The page of a comparison over folds: report.html and compare.json beside the folders of the folds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capsella.compare.figures import accuracy_figure
from capsella.compare.folds import Fold, labels_of
from capsella.compare.folds_verdict import FoldsVerdict, judge_folds
from capsella.compare.options import ComparisonOptions
from capsella.compare.plan import Plan
from capsella.compare.report import protocol, tested_before
from capsella.compare.words import validation_head
from capsella.errors import pluralize
from capsella.evaluation import points
from capsella.files import write_json, write_text
from capsella.report.pages import embedded, render_page


def write_folds(options: ComparisonOptions, first: Plan, folds: Sequence[Fold]) -> tuple[FoldsVerdict, Path]:
    """Write report.html and compare.json; returns the verdict and the path of the page.

    Raises:
        CapsellaError: as `judge_folds`; no space on the disk.
    """
    verdict, folder = judge_folds(first, folds), options.output
    before = tested_before(folder, options.asked_seeds)
    write_json(folder / "compare.json", _values(options, verdict, folds, before))
    colours = {one.name: f"C{number % 10}" for number, one in enumerate(verdict.networks)}
    figure = accuracy_figure(
        {one.name: one.accuracy for one in verdict.networks},
        {one.name: one.by_fold for one in verdict.networks},
        colours,
    )
    page = render_page(
        "capsella.compare",
        "folds.html.jinja",
        title=f"Capsules or a CNN for {first.splits.name}? {pluralize(len(folds), 'fold')}",
        verdict=verdict,
        validation_head=validation_head(first.balance),
        best=[one.name for one in verdict.best],
        folds=list(zip(folds, verdict.difference_by_fold, strict=True)),
        images=len(labels_of(folds)),
        notes=[*first.splits.notes, *(f"left out: {reason}" for reason in first.splits.broken)],
        protocol=protocol(first, before),
        points=points,
        picture=embedded(figure, folder / "figures" / "accuracy.png"),
    )
    write_text(folder / "report.html", page)
    return verdict, folder / "report.html"


def _values(
    options: ComparisonOptions, verdict: FoldsVerdict, folds: Sequence[Fold], before: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """compare.json: differences and intervals as shares."""
    capsules, cnn = verdict.best
    return {
        "options": options.to_dict(),
        "tested_seeds": [*map(list, before), list(options.asked_seeds)],
        "verdict": {
            "winner": verdict.winner,
            "headline": verdict.headline,
            "sentences": verdict.sentences,
            "capsules": capsules.name,
            "cnn": cnn.name,
            "difference": verdict.difference._asdict(),
            "difference_by_fold": verdict.difference_by_fold,
            "by_class": verdict.classes.to_dict(),
            "better_than_chance": list(verdict.useful),
            "not_trained_to_the_end": list(verdict.unfinished),
        },
        "networks": [one.to_dict() for one in verdict.networks],
        "folds": [{"images": len(fold.labels), "headline": fold.headline} for fold in folds],
    }

"""The page of a comparison over folds: report.html and compare.json beside the folders of the folds."""

from collections.abc import Sequence
from pathlib import Path

from capsella.compare.figures import accuracy_figure
from capsella.compare.folds import Fold, FoldsVerdict, judge_folds
from capsella.compare.options import ComparisonOptions
from capsella.compare.plan import Plan
from capsella.compare.report import protocol, tested_before, validation_head
from capsella.compare.words import Words, phrase
from capsella.errors import pluralize
from capsella.evaluation import points
from capsella.files import write_json, write_text
from capsella.report.pages import embedded, render_page


def write_folds(options: ComparisonOptions, first: Plan, folds: Sequence[Fold]) -> tuple[FoldsVerdict, Words, Path]:
    """Write report.html and compare.json; return the verdict, its words and the path of the page.

    Raises:
        CapsellaError: as `judge_folds` raises; no space on the disk.
    """
    found, folder = judge_folds(first, folds), options.output
    names = [network.name for network in found.networks]
    words = phrase(found.verdict, sorted({candidate.network for candidate in first.candidates} - set(names)))
    before = tested_before(folder, options.asked_seeds)
    values = {
        "options": options.to_dict(),
        "tested_seeds": [*map(list, before), list(options.asked_seeds)],
        "verdict": {
            **found.verdict.to_dict(),
            "difference_by_fold": found.difference_by_fold,
            "headline": words.headline,
            "sentences": words.sentences,
        },
        "networks": [network.to_dict() for network in found.networks],
        "folds": [{"images": len(fold.labels), "headline": fold.headline} for fold in folds],
    }
    write_json(folder / "compare.json", values)
    figure = accuracy_figure(
        {network.name: network.accuracy for network in found.networks},
        {network.name: network.by_fold for network in found.networks},
        {name: f"C{number % 10}" for number, name in enumerate(names)},
    )
    page = render_page(
        "capsella.compare",
        "folds.html.jinja",
        title=f"Capsules or a CNN for {first.splits.name}? {pluralize(len(folds), 'fold')}",
        verdict=words,
        networks=found.networks,
        validation_head=validation_head(first.balance),
        best=[network.name for network in found.best],
        folds=list(zip(folds, found.difference_by_fold, strict=True)),
        images=len(found.verdict.setting.labels),
        notes=[*first.splits.notes, *(f"left out: {reason}" for reason in first.splits.broken)],
        protocol=protocol(first, before),
        points=points,
        picture=embedded(figure, folder / "figures" / "accuracy.png"),
    )
    write_text(folder / "report.html", page)
    return found, words, folder / "report.html"

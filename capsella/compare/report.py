"""The reports of comparisons: one HTML file each, and each figure as PNG."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from capsella.compare.figures import accuracy_figure, learning_figure, size_figure
from capsella.compare.folds import Fold, FoldsVerdict, judge_folds
from capsella.compare.options import ComparisonOptions
from capsella.compare.plan import Plan
from capsella.compare.results import Comparison, correct_of, tested_before
from capsella.compare.words import Words, phrase, training_text
from capsella.data import single_images
from capsella.data.splits import share_of
from capsella.environment import machine, versions
from capsella.errors import pluralize
from capsella.evaluation import accuracy_interval, points
from capsella.files import write_json, write_text
from capsella.report.figures import confusion_figure, robustness_figure, write_figure
from capsella.report.pages import Section, pictures_of, render_page
from capsella.report.run_page import reconstruction_section, tweak_section
from capsella.training import RunFolder
from capsella.training.config import Balance


def write_report(found: Comparison) -> Path:
    """Write report.html and figures/*.png into the folder of a comparison; return the path of the page.

    Raises:
        CapsellaError: unreadable metrics of a run, or no space on the disk.
    """
    folder, sections = found.plan.folder, _sections(found)
    page = render_page(
        "capsella.compare",
        "report.html.jinja",
        title=f"Capsules or a CNN for {found.plan.splits.name}?",
        verdict=found.words,
        best=[network.name for network in found.best],
        networks=found.networks,
        validation_head=validation_head(found.plan.balance),
        limit=found.plan.options.latency_limit,
        images=len(found.plan.splits.test),
        protocol=protocol(found.plan, found.tested_before),
        facts=_facts(found),
        sections=sections,
        pictures=pictures_of(sections, folder),
    )
    path = folder / "report.html"
    write_text(path, page)
    return path


def write_folds(options: ComparisonOptions, first: Plan, folds: Sequence[Fold]) -> tuple[FoldsVerdict, Words, Path]:
    """Write report.html and compare.json of all folds; return the verdict, its words and the path of the page.

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
        picture=write_figure(figure, folder / "figures" / "accuracy.png"),
    )
    write_text(folder / "report.html", page)
    return found, words, folder / "report.html"


def validation_head(balance: Balance) -> str:
    """Return the head of the column of validation errors, by which networks are chosen."""
    return "validation error %" if balance == "none" else "balanced validation error %"


def protocol(plan: Plan, tested_before: Sequence[Sequence[int]]) -> str:
    """Return how the networks were trained and chosen, in a paragraph."""
    options, seeds = plan.options, plan.options.asked_seeds
    rates = "its recipe's learning rate" if options.rates == 1 else "a third, one and three times its recipe's"
    changes = [f"shifts of up to {options.shift} pixels"] if options.shift else []
    changes += ["mirroring"] if options.flip else ["left-right mirroring"] if options.mirror else []
    changes += ["the look of other microscopes"] if options.microscopes else []
    text = (
        f"Every network had the same images, {pluralize(plan.epochs, 'epoch')} in batches of {plan.batch_size}, and "
        f"the same augmentation ({' and '.join(changes) or 'none'}). Learning rates tried with seed {seeds[0]}: "
        f"{rates}; the best by validation was used for all seeds ({', '.join(map(str, seeds))}). Validation images "
        f"also chose each run's epoch and the best network of each family. {_use_of_test(tested_before)}"
    )
    if options.shares:
        text += " On a fraction of the training images, a network takes as many steps as on all of them."
    text += f" Intervals are 95 %, over test images{' and seeds' if len(seeds) > 1 else ' alone (one seed)'}."
    if plan.balance == "sampling":
        text += " Rare classes were sampled more often, and the epoch was chosen by the mean error over classes."
    if options.group is not None:
        text += (
            " Intervals are over groups of images, e.g. patients, if the test has at least two; with few groups, "
            "prefer folds. McNemar's test and latency treat images as independent."
        )
    return text


def _use_of_test(before: Sequence[Sequence[int]]) -> str:
    if not before:
        return "The test images were used once, after all that."
    seeds = "; ".join(" ".join(map(str, tested)) for tested in before)
    return (
        f"The test images were used after all that, and {pluralize(len(before), 'time')} before with other seeds "
        f"({seeds}): whoever saw those numbers chose to continue."
    )


def _facts(found: Comparison) -> dict[str, str]:
    splits = found.plan.splits
    counts = ", ".join(f"{len(images)} {split}" for split, images in splits.named().items())
    height, width = splits.image_size
    facts = {
        "images": f"{splits.name}: {counts}; {height}×{width}×{splits.channels}",
        "classes": ", ".join(f"{name} ({count})" for name, count in splits.train.counts().items()),
        "machine": machine(found.environment),
        "versions": versions(found.environment),
    }
    if splits.notes:
        facts["reading"] = "; ".join(splits.notes)
    if splits.broken:
        facts["left out"] = f"{pluralize(len(splits.broken), 'image')} that cannot be read: {'; '.join(splits.broken)}"
    return facts


def _sections(found: Comparison) -> list[Section]:
    """Return the figures from top to bottom."""
    networks = found.networks
    # The best two first, as in the figure of robustness, which has only them.
    ranked = [*found.best, *(network for network in networks if network not in found.best)]
    colours = {network.name: f"C{number % 10}" for number, network in enumerate(ranked)}
    accuracy = Section(
        "accuracy",
        "Test accuracy",
        "Diamonds are means over seeds with their 95 % interval, dots single seeds. Two networks whose intervals "
        "overlap may still differ: the verdict compares them image by image.",
        accuracy_figure(
            {network.name: network.accuracy for network in networks},
            {network.name: list(network.correct.mean(1)) for network in networks},
            colours,
        ),
    )
    over = "these images" if found.best[0].best_evaluation.groups is None else "groups of these images"
    robust = Section(
        "robustness",
        "Changed test images",
        "Accuracy of the best two networks, each with its best seed, on test images that are rotated, shifted, "
        f"coloured and made noisy in ways that training did not show; shaded: 95 % interval over {over} alone.",
        robustness_figure(found.robustness),
    )
    return [accuracy, _learning(found, colours), _sizes(found, colours), robust, *_confusions(found), *_drawn(found)]


def _learning(found: Comparison, colours: Mapping[str, str]) -> Section:
    tables = {
        network.name: [RunFolder(run.folder).read_metrics() for run in network.trained.by_seed.values()]
        for network in found.networks
    }
    training, validation = (
        {name: [table[column] for table in seeds] for name, seeds in tables.items()}
        for column in ("train_error", "validation_error")
    )
    text = (
        "Mean over seeds, shaded from the best seed to the worst. A curve that still falls at its end would gain from "
        f"more epochs; training images are augmented, validation images are not. {training_text(found.verdict.setting)}"
    )
    return Section("learning", "Learning curves", text, learning_figure(training, validation, colours))


def _sizes(found: Comparison, colours: Mapping[str, str]) -> Section:
    name, title = "sizes", "More images?"
    counts, curves = found.plan.splits.train.counts().values(), {}
    for network in found.best:
        groups = network.best_evaluation.groups
        curve = {
            sum(share_of(count, share) for count in counts): accuracy_interval(correct_of(evaluations), groups)
            for share, evaluations in network.by_share.items()
            if evaluations
        }
        curves[network.name] = {**curve, sum(counts): network.accuracy}
    if not found.plan.options.shares:
        return Section(name, title, "No curve: --sizes 1 was set, or a class is too rare for a fraction of it.")
    text = (
        "The best network of each family, trained on fractions of the training images with as many steps. If a curve "
        "still rises at its end, more images would help."
    )
    return Section(name, title, text, size_figure(curves, colours))


def _confusions(found: Comparison) -> list[Section]:
    text = (
        "Of the seed that validates best, on the test images. Rows are true classes, columns are predictions; "
        "everything off the diagonal is a mistake."
    )
    return [
        Section(
            f"confusion-{family}",
            f"Confusion matrix: {network.name}",
            text,
            confusion_figure(network.best_evaluation.confusion, network.best_evaluation.classes),
        )
        for family, network in zip(("capsules", "cnn"), found.best, strict=True)
    ]


def _drawn(found: Comparison) -> list[Section]:
    """Return what a capsule network sees: the best one, or, if it has no decoder, the best of those that have."""
    drawing = [network for network in found.networks if network.trained.candidate.decoder_parameters]
    drawing.sort(key=lambda network: (network is not found.best[0], network.trained.validation_error))
    chosen = drawing[0] if drawing else found.best[0]
    model, images = chosen.model(), single_images(found.plan.splits.test, "comparisons")
    sections = [make(model, chosen.best_evaluation, images) for make in (reconstruction_section, tweak_section)]
    return [replace(section, title=f"{section.title}: {chosen.name}") for section in sections]

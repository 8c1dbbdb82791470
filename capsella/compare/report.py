"""report.html of a comparison: one file that needs nothing beside it; and each figure as PNG."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capsella.compare.figures import accuracy_figure, learning_figure, size_figure
from capsella.compare.measure import Measured, correct_of
from capsella.compare.plan import Plan
from capsella.compare.verdict import Verdict
from capsella.compare.words import Words, training_text
from capsella.data import single_images
from capsella.data.splits import share_of
from capsella.environment import machine, versions
from capsella.errors import CapsellaError, pluralize
from capsella.evaluation import Robustness, accuracy_interval
from capsella.files import write_text
from capsella.report.figures import confusion_figure, robustness_figure
from capsella.report.pages import Section, pictures_of, render_page
from capsella.report.run_page import reconstruction_section, tweak_section
from capsella.training import RunFolder
from capsella.training.config import Balance


@dataclass(frozen=True, eq=False)
class Findings:
    """All that the report shows. champions: the best capsule network and the best CNN by validation.

    tested_before: as `tested_before` has it.
    """

    plan: Plan
    measured: Sequence[Measured]
    champions: tuple[Measured, Measured]
    verdict: Verdict
    words: Words
    robustness: Robustness
    environment: Mapping[str, object]
    tested_before: Sequence[Sequence[int]]


def write_comparison(found: Findings) -> Path:
    """Write report.html and figures/*.png into the folder of the comparison; returns the path of the page.

    Raises:
        CapsellaError: unreadable metrics of a run, or no space on the disk.
    """
    folder, test = found.plan.folder, found.plan.splits.test
    sections = _sections(found)
    page = render_page(
        "capsella.compare",
        "report.html.jinja",
        title=f"Capsules or a CNN for {found.plan.splits.name}?",
        verdict=found.words,
        champions=[one.name for one in found.champions],
        measured=found.measured,
        validation_head=validation_head(found.plan.balance),
        limit=found.plan.options.latency_limit,
        images=len(test),
        protocol=protocol(found.plan, found.tested_before),
        facts=_facts(found),
        sections=sections,
        pictures=pictures_of(sections, folder),
    )
    path = folder / "report.html"
    write_text(path, page)
    return path


def validation_head(balance: Balance) -> str:
    """Return the head of the column of validation errors, by which networks are chosen."""
    return "validation error %" if balance == "none" else "balanced validation error %"


BALANCED = " Images of rare classes were drawn more often, and the epoch was kept by the mean error over classes."
GROUPED = (
    " Intervals are over groups of images, as patients, where the test has two or more; with few, folds are the safer "
    "test. Where all images are right, or none, nothing tells how much groups differ. McNemar's test and latency take "
    "each image for itself."
)


def tested_before(folder: Path, seeds: Sequence[int]) -> list[list[int]]:
    """The other seeds with which the comparison in a folder was tested before, each list of them once.

    Raises:
        CapsellaError: its compare.json is damaged.
    """
    path = folder / "compare.json"
    if not path.exists():
        return []
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        tested: list[list[int]] = values.get("tested_seeds", [values["options"]["seeds"]])
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CapsellaError(f"{path} is damaged: {error!r}; move it away") from error
    return [one for one in tested if one != list(seeds)]


def protocol(plan: Plan, tested_before: Sequence[Sequence[int]]) -> str:
    """How the networks were trained and chosen, in a paragraph."""
    given = plan.options
    rates = "the learning rate of its recipe" if given.rates == 1 else "three learning rates (a third, one and three "
    rates += "" if given.rates == 1 else "times its recipe's)"
    changes = [f"shifts up to {given.shift} pixels"] if given.shift else []
    changes += ["mirrors"] if given.flip else ["mirrors left-right"] if given.mirror else []
    changes += ["those of other microscopes"] if given.microscopes else []
    seeds = given.asked_seeds
    return (
        f"Every network had the same images, the same {pluralize(plan.epochs, 'epoch')} in batches of "
        f"{plan.batch_size}, the same changes of training images ({' and '.join(changes) or 'none'}),"
        f" and the same search: {rates}, with seed {seeds[0]}, "
        f"the best by validation kept for all seeds ({', '.join(map(str, seeds))}). The epoch of each "
        "run, and the best network of each kind, were chosen on the validation images. "
        f"{_use_of_test(tested_before)} On a share of the training images, a network takes as many steps as on all of "
        "them. Intervals are 95 %, over test images "
        f"{'and seeds' if len(seeds) > 1 else 'alone, as there is one seed'}."
        f"{BALANCED if plan.balance == 'sampling' else ''}{'' if given.group is None else GROUPED}"
    )


def _use_of_test(before: Sequence[Sequence[int]]) -> str:
    if not before:
        return "The test images were used once, after all that."
    seeds = "; ".join(" ".join(map(str, one)) for one in before)
    return (
        f"The test images were used after all that, and {pluralize(len(before), 'time')} before, with other seeds "
        f"({seeds}): whoever saw those numbers chose to go on."
    )


def _facts(found: Findings) -> dict[str, str]:
    splits = found.plan.splits
    counts = ", ".join(f"{len(part)} {split}" for split, part in splits.named().items())
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


def _sections(found: Findings) -> list[Section]:
    """The figures from top to bottom."""
    measured = found.measured
    # The two best first, as in the figure of robustness, where only they are.
    ranked = [*found.champions, *(one for one in measured if one not in found.champions)]
    colours = {one.name: f"C{number % 10}" for number, one in enumerate(ranked)}
    by_seed = {one.name: list(one.correct.mean(1)) for one in measured}
    accuracy = Section(
        "accuracy",
        "Test accuracy",
        "Diamonds are means over seeds with their 95 % interval, dots single seeds. Where intervals of two networks "
        "overlap they may still differ: the verdict compares them image by image.",
        accuracy_figure({one.name: one.accuracy for one in measured}, by_seed, colours),
    )
    over = "these images" if found.champions[0].best_evaluation.groups is None else "groups of these images"
    robust = Section(
        "robustness",
        "Changed test images",
        "Accuracy of the two best networks, each with its best seed, on test images that are turned, moved, coloured "
        f"and made noisy, as training did not show them; shaded: 95 % interval over {over} alone.",
        robustness_figure(found.robustness),
    )
    learning = _learning(measured, colours, found)
    return [accuracy, learning, _sizes(found, colours), robust, *_confusions(found), *_drawn(found)]


def _learning(measured: Sequence[Measured], colours: Mapping[str, str], found: Findings) -> Section:
    tables = {
        one.name: [RunFolder(run.folder).read_metrics() for run in one.trained.by_seed.values()] for one in measured
    }
    training, validation = (
        {name: [table[column] for table in seeds] for name, seeds in tables.items()}
        for column in ("train_error", "validation_error")
    )
    text = (
        "Mean over seeds, shaded from the best seed to the worst. A curve that still falls at its end would gain from "
        "more epochs; training images are changed at random, validation images are not. "
    )
    text += training_text(found.verdict.setting)
    return Section("learning", "Learning curves", text, learning_figure(training, validation, colours))


def _sizes(found: Findings, colours: Mapping[str, str]) -> Section:
    name, title = "sizes", "More images?"
    counts, curves = found.plan.splits.train.counts().values(), {}
    for network in found.champions:
        groups = network.best_evaluation.groups
        curve = {
            sum(share_of(count, share) for count in counts): accuracy_interval(correct_of(evaluations), groups)
            for share, evaluations in network.by_share.items()
            if evaluations
        }
        curves[network.name] = {**curve, sum(counts): network.accuracy}
    if not found.plan.options.shares:
        return Section(name, title, "No curve: --sizes 1 was asked for, or a class is too rare for a share of it.")
    text = (
        "The best network of each kind, trained on shares of the training images with as many steps. A curve that "
        "still rises says that more images would help."
    )
    return Section(name, title, text, size_figure(curves, colours))


def _confusions(found: Findings) -> list[Section]:
    text = (
        "Of the seed that validates best, on the test images: a row is a true class, a column what the network said; "
        "everything off the diagonal is a mistake."
    )
    return [
        Section(
            f"confusion-{kind}",
            f"Confusion matrix: {one.name}",
            text,
            confusion_figure(one.best_evaluation.confusion, one.best_evaluation.classes),
        )
        for kind, one in zip(("capsules", "cnn"), found.champions, strict=True)
    ]


def _drawn(found: Findings) -> list[Section]:
    """What a capsule network sees: the best one, or where it has no decoder the best of those that have."""
    drawing = [one for one in found.measured if one.trained.candidate.decoder_parameters]
    drawing.sort(key=lambda one: (one is not found.champions[0], one.trained.validation_error))
    chosen = drawing[0] if drawing else found.champions[0]
    model, images = chosen.model(), single_images(found.plan.splits.test, "comparisons")
    sections = [make(model, chosen.best_evaluation, images) for make in (reconstruction_section, tweak_section)]
    return [Section(one.name, f"{one.title}: {chosen.name}", one.text, one.figure) for one in sections]

"""The results of a run in words: the only place that phrases them."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from capsella.data import Splits, few_groups
from capsella.data.reading import unseen_notes
from capsella.environment import machine, versions
from capsella.errors import pluralize
from capsella.evaluation import (
    AttackResult,
    Evaluation,
    Majority,
    PredictionSummary,
    PredictOptions,
    points,
)
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.training import Recipe, Run, train_command
from capsella.training.balance import choose_balance
from capsella.training.progress import selection_metric
from capsella.uncertainty import OODReport, images_for_coverage, images_for_rate

FEW = 30  # with fewer test images of a class, the uncertainty of its sensitivity is ten points or more
ENOUGH = 30  # validation images for usable probabilities
MOST_NAMED = 8  # classes in a warning
MOST_CLASSES = 12
BALANCED = {
    "none": "No class was sampled more often for being rare (balance: none)",
    "sampling": "Rare classes were sampled more often (balance: sampling)",
}


def evaluation_warnings(evaluation: Evaluation) -> list[str]:
    """Return warnings to print first: classes never found, no better than the majority class, few groups."""
    warnings = []
    if lost := [f"{score.name} (0 of {score.support})" for score in evaluation.per_class if score.recall == 0]:
        rest = f" and {len(lost) - MOST_NAMED} more classes" if len(lost) > MOST_NAMED else ""
        warnings.append(f"never found: {', '.join(lost[:MOST_NAMED])}{rest}")
    if evaluation.majority is not None and not evaluation.majority.is_beaten:
        warnings.append(majority_text(evaluation.majority))
    if evaluation.group is not None and evaluation.labels.ndim == 1:
        warnings += few_groups(evaluation.group.numpy(), evaluation.labels.numpy(), evaluation.classes)
    return warnings


def evaluation_notes(evaluation: Evaluation) -> list[str]:
    """Return a note on what the intervals are over, if the images have groups."""
    if evaluation.group is None:
        return []
    if evaluation.groups is None:
        return ["the test images are of 1 group; intervals treat images as independent"]
    groups = pluralize(len(np.unique(evaluation.groups)), "group")
    return [
        f"intervals are over the {groups} of the test images. Where a proportion is 0 or 100 %, or of a single group, "
        "they may be too narrow"
    ]


def majority_text(majority: Majority) -> str:
    """Return how the model compares with always predicting the most frequent class."""
    low, high = majority.difference.low, majority.difference.high
    verdict = "better than" if low > 0 else "worse than" if high < 0 else "not shown to be better than"
    return (
        f"{verdict} always predicting {majority.name}, which is right for {100 * majority.share:.1f} %: "
        f"{points(majority.difference.estimate)} points (95 % interval {points(low)} to {points(high)})"
    )


def ood_notes(result: OODReport) -> list[str]:
    """Return a note if there are too few validation images for a threshold."""
    if result.has_threshold:
        return []
    needed = images_for_rate(result.false_positive_rate)
    few = f"a false-positive rate of {100 * result.false_positive_rate:g} % needs {needed} validation images"
    return [f"{few}, and there are {result.validation_images}: no image is flagged"]


def attack_notes(results: Mapping[str, AttackResult]) -> list[str]:
    """Return notes on whether the gradients of each network can be trusted."""
    notes = []
    for name, result in results.items():
        verdict = "MASKED gradient: the curves overstate this network" if result.is_masked else "gradient not masked"
        notes.append(
            f"{name}: {verdict}. PGD at ε = 1 leaves {result.at_full_reach:.1f} % correct, and "
            f"{pluralize(result.without_gradient, 'image')} have no gradient (both are 0 without masking); "
            f"{result.zero_gradient:.1f} % of all gradients are exactly 0"
        )
        if result.false_positives is None:
            notes.append(f"{name}: without an OOD detector, flagged images are not counted")
    return notes


def column_notes(model: ImageClassifier, options: PredictOptions) -> list[str]:
    """Return notes on columns of a table of predictions that are empty or uninformative."""
    notes, calibration, detector, rate = [], model.calibration, model.ood_detector, options.false_positive_rate
    fit = "training fits it, except for pairs; capsella adapt fits it if every class has at least two labelled images"
    if calibration is None:
        notes.append(f"the column probability is empty: this model is not calibrated; {fit}")
    elif calibration.images < ENOUGH:
        notes.append(
            f"the probabilities rest on {pluralize(calibration.images, 'validation image')}, fewer than {ENOUGH}, and "
            "may be overconfident; train with a larger --validation"
        )
    coverage = options.coverage
    if calibration is not None and coverage is not None and calibration.images < images_for_coverage(coverage):
        notes.append(
            f"every prediction set contains all classes: a coverage of {coverage:g} needs "
            f"{images_for_coverage(coverage)} validation images, and this model has {calibration.images}"
        )
    if rate is not None and detector is None:
        notes.append(f"the column in_distribution is empty: this model has no OOD detector; {fit}")
    elif rate is not None and detector is not None and options.active_detector(model) is None:
        notes.append(
            f"the column in_distribution is empty: a false-positive rate of {rate:g} needs {images_for_rate(rate)} "
            f"validation images, or labelled ones in an adaptation, and this model has {detector.images}; use more, or "
            "a larger --ood-false-positive-rate"
        )
    return notes


def prediction_lines(summary: PredictionSummary, model: ImageClassifier, options: PredictOptions) -> list[str]:
    """Return lines with the counts of unsure, out-of-distribution and unreadable images in a table of predictions."""
    lines = []
    if options.unsure_below is not None:
        lines.append(f"{summary.unsure:,} unsure: the probability is below {options.unsure_below:g}")
    if options.active_detector(model) is not None:
        lines.append(f"{summary.ood:,} of {summary.rows:,} out of distribution: see the column ood_reason")
    lines += [f"note: {line}" for line in unseen_notes(summary.losses)]
    if summary.unreadable:
        lines.append(f"{pluralize(summary.unreadable, 'file')} could not be read: see the column error")
    return lines


@dataclass(frozen=True)
class Training:
    """A report's paragraphs about a training. grouped: each group of images was kept in one split."""

    paragraphs: tuple[str, ...]
    grouped: bool


def about_training(run: Run, splits: Splits, summary: Mapping[str, Any]) -> Training:
    """Describe the training images, and which epoch and class balancing were chosen and why.

    Args:
        summary: the content of the run's summary.json.
    """
    recipe, best, counts = run.recipe, summary["best"], splits.train.counts()
    stopped = summary.get("stopped")
    images = "pairs of images" if recipe.data.is_paired else "images"
    classes = ", ".join(f"{name}: {count:,}" for name, count in list(counts.items())[:MOST_CLASSES])
    classes += "" if len(counts) <= MOST_CLASSES else f" and {len(counts) - MOST_CLASSES} more classes"
    of = "made from " if recipe.data.is_paired else ""
    has_stopped = stopped is not None and stopped["reached"]
    by_validation = recipe.stop_on == "validation" if has_stopped else recipe.keep != "last"
    trained = (
        f"{run.model.name} was trained on {len(splits.train):,} {images} of {len(counts)} classes ({of}{classes}). "
        f"{len(splits.validation):,} validation images {'chose' if by_validation else 'did not choose'} the epoch. "
        f"The {len(splits.test):,} test images on this page were "
    )
    if has_stopped and recipe.stop_on == "test":
        trained += (
            "not trained on, but training stopped by their error rate. So the error rate on this page was selected, "
            "and does not hold for new images."
        )
    else:
        trained += "used neither for training nor for choosing."
    column = selection_metric(recipe)
    chosen = f"Epoch {best['epoch']:.0f} of {summary['epochs']} was kept"
    if recipe.keep == "last" or has_stopped:
        chosen += ", the last one."
    elif column in best:
        error = "balanced error rate (every class counts the same)" if recipe.balance != "none" else "error rate"
        chosen += f": it has the lowest {error} on the validation images, {best[column]:.1f} %."
    else:
        chosen += "."
    if stopped is not None and not stopped["reached"]:
        chosen += f" The error rate of {stopped['at_error']:g} % at which training should stop was not reached."
    if not recipe.data.is_paired:
        chosen += f" {_about_balance(recipe, splits)}"
    return Training((trained, chosen), recipe.data.group is not None or "group" in splits.train.metadata)


def run_facts(
    run: Run, splits: Splits, summary: Mapping[str, Any], milliseconds: float | None = None
) -> dict[str, str]:
    """Return what is needed to repeat a run, its duration and its hardware, by name.

    Args:
        summary: the content of the run's summary.json.
        milliseconds: inference time of one image on this machine.
    """
    recipe, made_with = run.recipe, run.environment
    parameters = sum(weights.numel() for weights in run.model.parameters())
    finished = datetime.fromtimestamp((run.folder / "summary.json").stat().st_mtime)
    settings = f"{pluralize(summary['epochs'], 'epoch')}, batches of {recipe.batch_size}, seed {recipe.seed}"
    facts = {
        "command": train_command(run.name, recipe),
        "folder": str(run.folder),
        "trained": f"{finished:%Y-%m-%d %H:%M}, {_duration(summary['seconds'])} for {settings}",
        "machine": machine(made_with),
        "network": f"{run.model.name}, {parameters:,} parameters",
        "time": "not measured" if milliseconds is None else f"{milliseconds:.1f} ms per image, one at a time",
        "data": f"{splits.name}: " + ", ".join(f"{len(part):,} {split}" for split, part in splits.named().items()),
        "versions": f"{versions(made_with)}, Python {made_with['python']}, commit {made_with['commit']}",
    }
    if splits.notes:
        facts["reading"] = "; ".join(splits.notes)
    if broken := summary["broken_images"]:
        facts["left out"] = f"{pluralize(len(broken), 'image')} that cannot be read: {'; '.join(broken)}"
    return facts


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def verdict(evaluation: Evaluation) -> str:
    """Return the first line of a report: the number of correct images, or a warning not to use the network."""
    images = len(evaluation.labels)
    counts = f"{images - evaluation.errors:,} of {images:,} test images correct"
    is_useless = evaluation.majority is not None and not evaluation.majority.is_beaten
    if is_useless or any(score.recall == 0 for score in evaluation.per_class):
        return f"Do not use this network yet: {counts}"
    return f"{counts} ({100 - evaluation.error:.1f} %)"


def confidence(evaluation: Evaluation) -> list[str]:
    """Return sentences on the error and the balanced accuracy with their intervals, and on the majority class."""
    low, high = evaluation.error_interval
    balanced_low, balanced_high = evaluation.balanced_accuracy_interval
    of = "test images" if evaluation.groups is None else "groups of test images"
    sentences = [
        f"Error {evaluation.error:.2f} %; 95 % interval {low:.2f} to {high:.2f} %, over {of}.",
        f"Balanced accuracy {evaluation.balanced_accuracy:.1f} %; 95 % interval {balanced_low:.1f} to "
        f"{balanced_high:.1f} %.",
    ]
    if evaluation.majority is not None and evaluation.majority.is_beaten:  # otherwise it is a warning
        sentences.append(f"The network is {majority_text(evaluation.majority)}.")
    return sentences


def next_commands(folder: Path, model: ImageClassifier) -> dict[str, str]:
    """Return commands that are useful next, by their purpose."""
    run = shlex.quote(str(folder))
    commands = {"Classify new images:": f"capsella predict {run} IMAGES"}
    if isinstance(model, CapsuleClassifier):
        commands["Look inside its capsules:"] = f"capsella explore {run}"
    return commands | {"Test it harder:": f"capsella evaluate {run} --robustness"}


def limits(evaluation: Evaluation, training: Training | None) -> list[str]:
    """Return sentences on what the numbers of a report do not show."""
    few = [f"{score.name} ({score.support})" for score in evaluation.per_class if score.support < FEW]
    names = ", ".join(few[:MOST_CLASSES]) + (f" and {len(few) - MOST_CLASSES} more" if len(few) > MOST_CLASSES else "")
    lines = []
    if few:
        lines.append(f"Few test images. For classes with fewer than {FEW}, read the interval, not the number: {names}.")
    if training is not None and training.grouped:
        lines.append("New patients or slides: tested, because images of one group were kept in one split.")
    elif training is not None:
        lines.append(
            "New patients or slides. Groups of images are unknown (--group). If images of one patient or slide are in "
            "both training and test, the network will be worse on a new one than this page shows."
        )
    probabilities = "; capsella predict writes calibrated probabilities" if evaluation.labels.ndim == 1 else ""
    return [
        *lines,
        "Domain shift. Other microscopes, stains and cameras were tested only if their images are among these.",
        "Certainty of a single prediction. Activations are not probabilities: 0.9 does not mean right nine times in "
        f"ten. See the calibration curve{probabilities}.",
        "Images of none of these classes. The network assigns one of its classes anyway.",
    ]


def _about_balance(recipe: Recipe, splits: Splits) -> str:
    if recipe.balance == "sampling" and "domain" in splits.train.metadata:
        return "Each class of each domain was sampled equally often (balance: sampling)."
    balance, why = choose_balance(splits.train.counts())
    return f"{BALANCED[recipe.balance]}{f': {why}' if balance == recipe.balance else ''}."

"""The report in words, for readers who do not read tables: what was trained, how good it is, what is not known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsella.data import Splits
from capsella.environment import versions
from capsella.errors import pluralize
from capsella.evaluation import Evaluation, confusions
from capsella.training import Recipe, Run
from capsella.training.balance import choose_balance
from capsella.training.validation import kept_by

FEW = 30
"""Test images of a class, below which its sensitivity is known to ten points or worse."""
MOST_CONFUSIONS, MOST_CLASSES = 3, 12
BALANCED = {
    "none": "No class was shown more often for being rare (balance: none)",
    "sampling": "Rare classes were shown more often (balance: sampling)",
    "weights": "Mistakes on rare classes counted more (balance: weights)",
}


@dataclass(frozen=True)
class Training:
    """What a report says of a training: its paragraphs; and whether images were kept together in groups."""

    paragraphs: tuple[str, ...]
    grouped: bool


def about_training(run: Run, splits: Splits, summary: Mapping[str, Any]) -> Training:
    """What was trained on what, which epoch was kept, and how classes were balanced, each with the reason.

    `summary`: what the run's summary.json holds.
    """
    recipe, best, counts = run.recipe, summary["best"], splits.train.counts()
    listed = "from " * recipe.data.is_paired
    listed += ", ".join(f"{count:,} {name}" for name, count in list(counts.items())[:MOST_CLASSES])
    listed += "" if len(counts) <= MOST_CLASSES else f" and {len(counts) - MOST_CLASSES} more classes"
    kind = "pairs of images" if recipe.data.is_paired else "images"
    stopped = summary.get("stopped")
    trained = (
        f"The network {run.model.name} was trained on {len(splits.train):,} {kind} of {len(counts)} classes: {listed}. "
        f"{len(splits.validation):,} others (validation images) {_use_of_validation(recipe, stopped)}. "
        f"{_about_test(recipe, len(splits.test), stopped)}"
    )
    error = "balanced error, in which every class counts the same" if recipe.balance != "none" else "error"
    column = kept_by(recipe)
    chosen = f"Kept: epoch {best['epoch']:.0f} of {summary['epochs']}"
    if recipe.keep == "last" or (stopped is not None and stopped["reached"]):
        chosen += ", at which the training ended."
    elif column in best:
        chosen += f", which had the lowest {error}, on the validation images ({best[column]:.1f} %)."
    else:
        chosen += "."
    if stopped is not None and not stopped["reached"]:
        chosen += f" The training was to stop at an error of {stopped['at_error']:g} %, and did not reach it."
    if not recipe.data.is_paired:
        chosen += f" {_about_balance(recipe, splits)}"
    return Training((trained, chosen), recipe.data.group is not None or "group" in splits.train.metadata)


def _use_of_validation(recipe: Recipe, stopped: Mapping[str, Any] | None) -> str:
    if stopped is not None and stopped["reached"] and recipe.stop_on == "validation":
        return "decided when the training stopped, and so the epoch"
    if recipe.keep == "last" or (stopped is not None and stopped["reached"]):
        return "were held out, and did not choose the epoch"
    return "were used to choose the epoch"


def _about_balance(recipe: Recipe, splits: Splits) -> str:
    """How classes were balanced, with the reason where the images are it."""
    if recipe.balance == "sampling" and "laboratory" in splits.train.metadata:
        return "Each class of each laboratory was shown as often (balance: sampling)."
    choice = choose_balance(splits.train.counts())
    return f"{BALANCED[recipe.balance]}{f': {choice.why}' if choice.balance == recipe.balance else ''}."


def _about_test(recipe: Recipe, images: int, stopped: Mapping[str, Any] | None) -> str:
    these = f"The {images:,} test images, of which this page speaks,"
    if stopped is None or recipe.stop_on == "validation":
        return f"{these} were used neither to train nor to choose."
    if not stopped["reached"]:
        return f"{these} were looked at after every epoch, to stop at an error that was not reached."
    return (
        f"{these} were not trained on, but the training stopped by their error. So the error on this page is chosen, "
        "and says nothing of new images."
    )


def run_facts(run: Run, splits: Splits, broken: Sequence[str]) -> dict[str, str]:
    """What a report lists of a run; `broken`: the images that its training left out, and why."""
    facts = {
        "recipe": run.name,
        "network": run.model.name,
        "data": f"{splits.name}: " + ", ".join(f"{len(part)} {split}" for split, part in splits.named().items()),
        "balance": run.recipe.balance,
        "seed": str(run.recipe.seed),
        "versions": versions(run.environment),
    }
    if splits.notes:
        facts["reading"] = "; ".join(splits.notes)
    if broken:
        facts["left out"] = f"{pluralize(len(broken), 'image')} that cannot be read: {'; '.join(broken)}"
    return facts


def about_result(evaluation: Evaluation) -> list[str]:
    """How good the network is: images right, classes, and the commonest class alone."""
    images, (low, high) = len(evaluation.labels), evaluation.error_interval
    right, groups = images - evaluation.errors, evaluation.groups
    others = "Another set of as many images" if groups is None else f"Other {len(np.unique(groups))} groups of images"
    words = [
        f"Of {images:,} test images, {right:,} were classified right: {100 - evaluation.error:.1f} %. {others} "
        f"would give another number: the 95 % interval is {100 - high:.1f} to {100 - low:.1f} %."
    ]
    low, high = evaluation.balanced_accuracy_interval
    seen, shown = sum(score.support > 0 for score in evaluation.per_class), evaluation.labels[0].numel()
    blind = "A blind guess" if shown == 1 else f"{shown} blind guesses"
    words.append(
        "If each class counts the same, however many images it has, the network finds "
        f"{evaluation.balanced_accuracy:.1f} % (balanced accuracy; 95 % interval {low:.1f} to {high:.1f} %). "
        f"{blind} among the {seen} classes would find {100 * shown / seen:.1f} %."
    )
    if evaluation.majority is not None:
        words.append(f"The network is {evaluation.majority}.")
    return words


def about_confusions(evaluation: Evaluation) -> list[str]:
    """The commonest mistakes: the true class first, then what it was taken for."""
    named = evaluation.classes
    return [
        f"{named[one.true]}, taken for {named[one.predicted]}: {one.images} of the "
        f"{evaluation.per_class[one.true].support} images of {named[one.true]}"
        for one in confusions(evaluation.confusion)[:MOST_CONFUSIONS]
    ]


def limits(evaluation: Evaluation, training: Training | None) -> list[str]:
    """What the numbers of a page cannot say."""
    few = [f"{score.name} ({score.support})" for score in evaluation.per_class if score.support < FEW]
    listed = ", ".join(few[:MOST_CLASSES]) + (f" and {len(few) - MOST_CLASSES} more" if len(few) > MOST_CLASSES else "")
    known = []
    if few:
        known.append(
            f"Few test images. Read the interval, not the number, of each class with fewer than {FEW}: {listed}."
        )
    if training is not None and training.grouped:
        known.append("Other slides and patients. Images of one group were kept in one split, so this much was tested.")
    elif training is not None and evaluation.groups is not None:
        known.append(
            f"Others than the {len(np.unique(evaluation.groups))} groups of these images, as toys or patients. The "
            "intervals are over these. Whether a group's images are also in training was not looked at (--group)."
        )
    elif training is not None:
        known.append(
            "Other slides and patients. Nothing told which images belong together (--group). If images of one slide or "
            "patient are both in training and here, a new slide will be classified worse than this page says."
        )
    predicted = "; capsella predict writes calibrated probabilities" if evaluation.labels.ndim == 1 else ""
    known += [
        "Another laboratory. Other microscopes, stains and cameras were tested only if their images are among these.",
        "How sure one answer is. The activations here are no probabilities: one of 0.9 does not mean right nine times "
        f"in ten. The section on calibration shows what they mean{predicted}.",
        "Images that show none of the classes. The network puts each into one of its classes all the same.",
    ]
    return known

"""What an epoch's weights are worth: loss and error on held-out images, how the routing does, whether to stop there."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from capsella.data import LabelledImages, batches, evenly
from capsella.losses import LossOptions, count_errors, strongest, total_loss
from capsella.models import ImageClassifier
from capsella.routing import diagnose, record
from capsella.training.checkpoint import EpochRow, Progress
from capsella.training.devices import peak_memory_mib
from capsella.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Validation images, evenly spread, that the routing diagnostics of an epoch look at.
DIAGNOSED = 32


class Validation(NamedTuple):
    """Mean loss; error in per cent; of each class the share that was not found, in the mean, in per cent."""

    loss: float
    error: float
    balanced_error: float


@torch.no_grad()
def validate(
    model: ImageClassifier, images: LabelledImages, loss: LossOptions, batch_size: int, fabric: "Fabric"
) -> Validation:
    """Loss and errors of a set; every device computes all of it."""
    total, errors = 0.0, 0
    images_of, found_of = (torch.zeros(len(images.classes), device=fabric.device) for _ in range(2))
    for part, labels, parts in batches(images, batch_size, device=fabric.device):
        with fabric.autocast():
            output = model(part, labels)
        total += float(total_loss(output, part, labels, loss, parts=parts).total) * len(labels)
        errors += count_errors(output.activations, labels)
        found = labels[strongest(output.activations, labels) == labels]
        images_of += labels.flatten().bincount(minlength=len(images_of))
        found_of += found.bincount(minlength=len(found_of))
    recall = (found_of / images_of)[images_of > 0]
    return Validation(total / len(images), 100 * errors / len(images), 100 * (1 - float(recall.double().mean())))


@torch.no_grad()
def routing_row(model: ImageClassifier, images: LabelledImages, device: torch.device) -> EpochRow:
    """Coupling entropy after the last iteration and dead capsules of each routed layer."""
    few, *_ = next(batches(images, DIAGNOSED, order=evenly(len(images), DIAGNOSED), device=device))
    with record() as traces:
        model(few)
    row: EpochRow = {}
    for number, layer in enumerate(diagnose([traces]), 1):
        row |= {f"entropy_{number}": layer.entropy[-1], f"dead_{number}": layer.dead_share}
    return row


def is_to_keep(recipe: Recipe, row: EpochRow, best: EpochRow | None) -> bool:
    """Lower validation error, balanced where the recipe balances the classes, or an equal one with a lower loss.

    The first epoch is, where `keep` says so every epoch, and the one at whose error training stops.
    """
    keys = (kept_by(recipe), "validation_loss")
    return (
        best is None
        or recipe.keep == "last"
        or reaches(recipe, row)
        or tuple(row[key] for key in keys) < tuple(best[key] for key in keys)
    )


def kept_by(recipe: Recipe) -> str:
    """The column of metrics.csv by whose least number an epoch is kept."""
    return "validation_error" if recipe.balance == "none" else "validation_balanced_error"


def best_validation(summary: Mapping[str, Any]) -> tuple[float, float]:
    """Of what `summary_of` wrote: the validation error that chose the epoch, in per cent, and its validation loss."""
    best = summary["best"]
    return best[summary.get("kept_by", "validation_error")], best["validation_loss"]


def reaches(recipe: Recipe, row: EpochRow) -> bool:
    """Whether an epoch's error is the one to stop at; never where the recipe names none."""
    stop = recipe.stop_at_error
    return stop is not None and row[f"{recipe.stop_on}_error"] <= stop


def is_over(recipe: Recipe, progress: Progress) -> bool:
    """Whether the last epoch is done, validation has stopped getting better, or the error to stop at is reached."""
    best, patience = progress.best, recipe.patience
    if best is None:
        return False
    out_of_patience = patience is not None and progress.epoch - best["epoch"] >= patience
    return out_of_patience or reaches(recipe, best) or progress.epoch >= recipe.epochs


def summary_of(recipe: Recipe, progress: Progress, broken: Sequence[str], device: torch.device) -> dict[str, Any]:
    """summary.json: which epoch was kept, and the cost: seconds of training without validation, memory.

    `broken`: the files that were left out. `device`: whose memory counts.
    """
    history = progress.history
    return {
        "best": progress.best,
        "kept_by": kept_by(recipe),
        "epochs": progress.epoch,
        "seconds": sum(row["seconds"] for row in history),
        "images_per_second": statistics.median_high(row["images_per_second"] for row in history),
        "peak_memory_mib": peak_memory_mib(device),
        "stopped": _stopped(recipe, progress.best or history[-1]),
        "broken_images": list(broken),
    }


def _stopped(recipe: Recipe, best: EpochRow) -> dict[str, float | str | bool] | None:
    """For summary.json: where training stopped, or that it never got there; None where it was not to stop."""
    if recipe.stop_at_error is None:
        return None
    return {
        "at_error": recipe.stop_at_error,
        "on": recipe.stop_on,
        "reached": reaches(recipe, best),
        "epoch": best["epoch"],
        "error": best[f"{recipe.stop_on}_error"],
    }

"""Validation after each epoch: loss, errors, routing diagnostics, which epoch is kept, and when training stops."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from capsella.data import LabelledImages, batches, evenly
from capsella.losses import LossOptions, count_errors, predicted_classes, total_loss
from capsella.models import ImageClassifier
from capsella.routing import diagnose, record
from capsella.training.checkpoint import EpochRow, Progress
from capsella.training.devices import peak_memory_mib
from capsella.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Number of validation images, evenly spaced, for each epoch's routing diagnostics.
DIAGNOSED = 32


class Validation(NamedTuple):
    """Mean loss, error rate, and balanced error rate (the mean over classes); errors in per cent."""

    loss: float
    error: float
    balanced_error: float


@torch.no_grad()
def validate(
    model: ImageClassifier, images: LabelledImages, loss: LossOptions, batch_size: int, fabric: "Fabric"
) -> Validation:
    """Return loss and error rates on all images; every device computes them for the whole set."""
    total, errors = 0.0, 0
    counts, correct = (torch.zeros(len(images.classes), device=fabric.device) for _ in range(2))
    for pixels, labels, parts in batches(images, batch_size, device=fabric.device):
        with fabric.autocast():
            output = model(pixels, labels)
        total += float(total_loss(output, pixels, labels, loss, parts=parts).total) * len(labels)
        errors += count_errors(output.activations, labels)
        counts += labels.flatten().bincount(minlength=len(counts))
        correct += labels[predicted_classes(output.activations, labels) == labels].bincount(minlength=len(correct))
    recall = (correct / counts)[counts > 0]
    return Validation(total / len(images), 100 * errors / len(images), 100 * (1 - float(recall.double().mean())))


@torch.no_grad()
def routing_row(model: ImageClassifier, images: LabelledImages, device: torch.device) -> EpochRow:
    """Return the coupling entropy after the last iteration and the share of dead capsules of each routed layer."""
    few, *_ = next(batches(images, DIAGNOSED, order=evenly(len(images), DIAGNOSED), device=device))
    with record() as traces:
        model(few)
    row: EpochRow = {}
    for number, layer in enumerate(diagnose([traces]), 1):
        row |= {f"entropy_{number}": layer.entropy[-1], f"dead_{number}": layer.dead_share}
    return row


def selection_metric(recipe: Recipe) -> str:
    """Return the column of metrics.csv whose minimum chooses the epoch: the error, balanced if classes are balanced."""
    return "validation_error" if recipe.balance == "none" else "validation_balanced_error"


def is_better(recipe: Recipe, row: EpochRow, best: EpochRow | None) -> bool:
    """Return whether an epoch's weights replace the kept ones: a lower error or, at an equal error, a lower loss.

    Every epoch does if the recipe keeps the last one; the epoch that reaches `stop_at_error` always does.
    """
    keys = (selection_metric(recipe), "validation_loss")
    return (
        best is None
        or recipe.keep == "last"
        or reaches_target(recipe, row)
        or tuple(row[key] for key in keys) < tuple(best[key] for key in keys)
    )


def reaches_target(recipe: Recipe, row: EpochRow) -> bool:
    """Return whether an epoch reaches `stop_at_error`; never if the recipe has none."""
    target = recipe.stop_at_error
    return target is not None and row[f"{recipe.stop_on}_error"] <= target


def is_finished(recipe: Recipe, progress: Progress) -> bool:
    """Return whether the last epoch is done, patience is used up, or the target error is reached."""
    best, patience = progress.best, recipe.patience
    if best is None:
        return False
    out_of_patience = patience is not None and progress.epoch - best["epoch"] >= patience
    return out_of_patience or reaches_target(recipe, best) or progress.epoch >= recipe.epochs


def best_validation(summary: Mapping[str, Any]) -> tuple[float, float]:
    """Return the validation error that chose the epoch, in per cent, and its validation loss, from summary.json."""
    best = summary["best"]
    return best[summary["kept_by"]], best["validation_loss"]


def summary_of(recipe: Recipe, progress: Progress, broken: Sequence[str], device: torch.device) -> dict[str, Any]:
    """Return the contents of summary.json: the kept epoch, seconds of training without validation, memory.

    broken: files that were left out. device: the device whose peak memory is reported.
    """
    history, best = progress.history, progress.best or progress.history[-1]
    stopped = {
        "at_error": recipe.stop_at_error,
        "on": recipe.stop_on,
        "reached": reaches_target(recipe, best),
        "epoch": best["epoch"],
        "error": best.get(f"{recipe.stop_on}_error"),
    }
    return {
        "best": progress.best,
        "kept_by": selection_metric(recipe),
        "epochs": progress.epoch,
        "seconds": sum(row["seconds"] for row in history),
        "images_per_second": statistics.median_high(row["images_per_second"] for row in history),
        "peak_memory_mib": peak_memory_mib(device),
        "stopped": None if recipe.stop_at_error is None else stopped,
        "broken_images": list(broken),
    }

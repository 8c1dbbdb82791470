"""What an epoch's weights are worth: loss and error on held-out images, how the routing does, whether to stop there."""

from typing import TYPE_CHECKING

import torch

from capsella.data import LabelledImages, batches
from capsella.losses import LossOptions, count_errors, total_loss
from capsella.models import ImageClassifier
from capsella.routing import diagnose, record
from capsella.training.checkpoint import Row
from capsella.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Validation images, evenly spread, that the routing diagnostics of an epoch look at.
DIAGNOSED = 32


@torch.no_grad()
def validate(
    model: ImageClassifier, images: LabelledImages, loss: LossOptions, batch_size: int, fabric: "Fabric"
) -> tuple[float, float]:
    """Loss and error in per cent; every device computes all of it."""
    total, errors = 0.0, 0
    for part, labels, parts in batches(images, batch_size, device=fabric.device):
        with fabric.autocast():
            output = model(part, labels)
        total += float(total_loss(output, part, labels, loss, parts=parts).total) * len(labels)
        errors += count_errors(output.activations, labels)
    return total / len(images), 100 * errors / len(images)


@torch.no_grad()
def routing_row(model: ImageClassifier, images: LabelledImages, device: torch.device) -> Row:
    """Coupling entropy after the last iteration and dead capsules of each routed layer."""
    spread = torch.linspace(0, len(images) - 1, min(DIAGNOSED, len(images))).long()
    few, *_ = next(batches(images, len(spread), order=spread, device=device))
    with record() as traces:
        model(few)
    row: Row = {}
    for number, layer in enumerate(diagnose([traces]), 1):
        row |= {f"entropy_{number}": layer.entropy[-1], f"dead_{number}": layer.dead_share}
    return row


def reaches(recipe: Recipe, row: Row) -> bool:
    """Whether an epoch's error is the one to stop at; never where the recipe names none."""
    stop = recipe.stop_at_error
    return stop is not None and row[f"{recipe.stop_on}_error"] <= stop


def stopped(recipe: Recipe, best: Row) -> dict[str, float | str | bool] | None:
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

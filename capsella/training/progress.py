"""The progress of a training: validation, which epoch is kept, when training stops, and its checkpoint `last.ckpt`."""

import statistics
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from capsella.data import LabelledImages, batches
from capsella.errors import CapsellaError
from capsella.files import write_whole
from capsella.losses import LossOptions, count_errors, predicted_classes, total_loss
from capsella.models import ImageClassifier
from capsella.training.devices import peak_memory_mib
from capsella.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

EpochRow = dict[str, float]


class TrainingDivergedError(CapsellaError):
    """The loss or a gradient is no longer a finite number. remedy: how training can go on."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


@dataclass
class Progress:
    """The progress of a training.

    epoch: completed epochs. step: optimizer steps in all epochs. history: one row of metrics per completed epoch. best:
    the row of the epoch whose weights are kept.
    """

    epoch: int = 0
    step: int = 0
    history: list[EpochRow] = field(default_factory=list)
    best: EpochRow | None = None


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


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, progress: Progress, average: AveragedModel | None = None
) -> None:
    """Write weights, optimizer state, progress and averaged weights, if any; the file is replaced as a whole."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": asdict(progress)}
    if average is not None:
        state["average"] = average.state_dict()

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:  # given a path, torch.save hides that the disk was full
            torch.save(state, file)

    write_whole(path, write)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote; code in the file is never run.

    Raises:
        CapsellaError: the file is missing or damaged.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        with zipfile.ZipFile(path) as archive:  # PyTorch verifies no checksums: a flipped bit would change a weight
            if (part := archive.testzip()) is not None:
                raise ValueError(f"{part} does not match its checksum")
        return state
    except FileNotFoundError as error:
        raise CapsellaError(f"{path} does not exist; train again into another folder") from error
    except Exception as error:  # damaged files raise many types, whose texts advise disabling weights_only
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.filename is not None):
            raise
        raise CapsellaError(
            f"{path} is damaged or holds more than a checkpoint; train again with another --out"
        ) from error


def restore_checkpoint(
    state: dict[str, Any], model: nn.Module, optimizer: Optimizer, average: AveragedModel | None = None
) -> Progress:
    """Load a checkpoint into model, optimizer and average, and return its progress.

    Raises:
        CapsellaError: it belongs to another model.
    """
    try:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if average is not None:
            average.load_state_dict(state["average"])
        return Progress(**state["progress"])
    except (RuntimeError, KeyError, TypeError, ValueError) as error:
        raise CapsellaError(f"the checkpoint belongs to another model: {error!r}") from error

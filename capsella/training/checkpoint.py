"""The checkpoint that an interrupted training resumes from: `last.ckpt` in the run folder, written after each epoch."""

import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from capsella.errors import CapsellaError
from capsella.files import write_whole

EpochRow = dict[str, float]


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

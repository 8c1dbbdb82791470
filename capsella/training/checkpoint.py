"""The checkpoint that an interrupted training resumes from: `last.ckpt` in the run folder."""

import zipfile
from dataclasses import asdict, dataclass, field, replace
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
    """How far a training has come.

    epoch: complete epochs. batch: complete batches of the next one, and images: in them. step: optimizer steps in all.
    history: one row of metrics a complete epoch. best: the row of the epoch whose weights are kept.
    sums: what has been added up over the epoch in progress.
    """

    epoch: int = 0
    batch: int = 0
    images: int = 0
    step: int = 0
    history: list[EpochRow] = field(default_factory=list)
    best: EpochRow | None = None
    sums: dict[str, float] = field(default_factory=dict)

    def position(self, steps: int, alone: int) -> float:
        """How many steps one device alone has done up to here; its epoch has `alone` of them, and this one's `steps`.

        Schedules go by it: several devices may have fewer (`epoch_batches`), and go on with a training of one.
        """
        return self.epoch * alone + min(self.batch / steps, 1.0) * alone

    def of_all(self, processes: int) -> "Progress":
        """With sums as of all processes, judged by this one's: no process waits for another to write a checkpoint."""
        return self if processes == 1 else replace(self, sums=_times(self.sums, processes))

    def share_sums(self, processes: int) -> None:
        """Leave each of the processes that go on from a checkpoint its share of the sums."""
        if processes > 1:
            self.sums = _times(self.sums, 1 / processes)


def _times(sums: dict[str, float], factor: float) -> dict[str, float]:
    """All but seconds and norms of gradients, which each process has whole."""
    return {name: value if is_whole(name) else factor * value for name, value in sums.items()}


def is_whole(name: str) -> bool:
    """Whether each process has a sum whole, as seconds and norms of gradients, and not its own images' part of it."""
    return name == "seconds" or name.startswith("gradient_")


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, progress: Progress, average: AveragedModel | None = None
) -> None:
    """Write weights, optimizer state, progress and, where there is one, the average of the weights: all or nothing."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": asdict(progress)}
    if average is not None:
        state["average"] = average.state_dict()

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:  # given a path, torch.save hides that the disk was full
            torch.save(state, file)

    write_whole(path, write)


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, average: AveragedModel | None = None
) -> Progress:
    """Fill model, optimizer and average from a checkpoint and return the progress; no code in it is run.

    Raises:
        CapsellaError: the file is missing, damaged, or belongs to another model.
    """
    try:
        state = _read(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if average is not None:
            average.load_state_dict(state["average"])
        return Progress(**state["progress"])
    except (CapsellaError, OSError, MemoryError):
        raise
    except Exception as error:
        raise CapsellaError(f"{path} belongs to another model: {error or type(error).__name__}") from error


def read_progress(path: Path) -> Progress:
    """How far the training of a checkpoint has come.

    Raises:
        CapsellaError: the file is missing or damaged.
    """
    state = _read(path)
    try:
        return Progress(**state["progress"])
    except (KeyError, TypeError) as error:
        raise CapsellaError(f"{path} belongs to another model: it does not say how far its training is") from error


def _read(path: Path) -> dict[str, Any]:
    """What a checkpoint holds.

    Raises:
        CapsellaError: the file is missing or damaged.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        with zipfile.ZipFile(path) as archive:  # PyTorch compares no checksums: a changed bit would be another weight
            if (part := archive.testzip()) is not None:
                raise ValueError(f"{part} has another checksum")
        return state
    except FileNotFoundError as error:
        began = path.with_name("metrics.csv").exists()
        lost = "its training cannot go on" if began else "this training never began"
        raise CapsellaError(f"{path} does not exist: {lost}; start it anew in another folder") from error
    except MemoryError:
        raise
    except Exception as error:  # damaged bytes raise errors of every kind, whose texts advise to run what is there
        if isinstance(error, OSError) and error.filename is not None:  # the system's; PyTorch's own name no file
            raise
        raise CapsellaError(
            f"{path} is damaged or cut off, or holds more than a checkpoint's tensors and numbers: the training cannot "
            "go on from it. Bring the file back from a copy, or train anew into another folder with --out"
        ) from error

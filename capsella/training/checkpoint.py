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
    """The progress of a training.

    epoch: completed epochs. batch, images: completed batches of the current epoch, and the images in them. step:
    optimizer steps in all epochs. history: one row of metrics per completed epoch. best: the row of the epoch whose
    weights are kept. sums: running totals of the epoch in progress.
    """

    epoch: int = 0
    batch: int = 0
    images: int = 0
    step: int = 0
    history: list[EpochRow] = field(default_factory=list)
    best: EpochRow | None = None
    sums: dict[str, float] = field(default_factory=dict)

    def position(self, steps: int, single_steps: int) -> float:
        """Return the progress in steps of a single device, which learning-rate schedules use.

        An epoch has `single_steps` on a single device and `steps` in this training: several devices may take fewer
        (see `epoch_batches`). The number of devices may also change when a training is resumed.
        """
        return self.epoch * single_steps + min(self.batch / steps, 1.0) * single_steps

    def over_processes(self, processes: int) -> "Progress":
        """Return the progress with sums over all processes, estimated from this one's to avoid synchronisation."""
        return self if processes == 1 else replace(self, sums=_scaled(self.sums, processes))

    def share_sums(self, processes: int) -> None:
        """Divide the sums of a checkpoint evenly among the processes that resume from it."""
        if processes > 1:
            self.sums = _scaled(self.sums, 1 / processes)


def _scaled(sums: dict[str, float], factor: float) -> dict[str, float]:
    return {name: value if is_global(name) else factor * value for name, value in sums.items()}


def is_global(name: str) -> bool:
    """Return whether a sum is already global (seconds, gradient norms) and must not be added over processes."""
    return name == "seconds" or name.startswith("gradient_")


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


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, average: AveragedModel | None = None
) -> Progress:
    """Load a checkpoint into model, optimizer and average, and return its progress; code in it is never run.

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
    """Read the training progress that a checkpoint stores.

    Raises:
        CapsellaError: the file is missing or damaged.
    """
    state = _read(path)
    try:
        return Progress(**state["progress"])
    except (KeyError, TypeError) as error:
        raise CapsellaError(f"{path} belongs to another model: it holds no training progress") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        with zipfile.ZipFile(path) as archive:  # PyTorch verifies no checksums: a flipped bit would change a weight
            if (part := archive.testzip()) is not None:
                raise ValueError(f"{part} does not match its checksum")
        return state
    except FileNotFoundError as error:
        raise CapsellaError(f"{path} does not exist; train again into another folder") from error
    except MemoryError:
        raise
    except Exception as error:  # damaged files raise many types, whose texts advise disabling weights_only
        if isinstance(error, OSError) and error.filename is not None:  # PyTorch's own have no filename
            raise
        raise CapsellaError(
            f"{path} is damaged or cut off, or holds more than a checkpoint's tensors and numbers; restore the file "
            "from a copy, or train again into another folder with --out"
        ) from error

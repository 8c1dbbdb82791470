"""Where a training computes: its devices, its processes, and the memory they used."""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from capsella.errors import ArgumentError, CapsellaError, check_argument
from capsella.routing import EMRouting
from capsella.training.checkpoint import is_whole
from capsella.training.memory import keep_freed_memory
from capsella.training.options import Machine
from capsella.training.precision import kind_of
from capsella.training.recipe import Recipe

if TYPE_CHECKING:  # nearly two seconds to import: only where a training starts
    from lightning_fabric import Fabric


class World(NamedTuple):
    """The processes of a training: one for each device of each machine."""

    devices: int
    machines: int

    @property
    def size(self) -> int:
        """Processes in all."""
        return self.devices * self.machines


def world_of(machine: Machine) -> World:
    """What torchrun started, where it started this process; else the machine's own devices."""
    if not _by_torchrun():
        return World(machine.devices, 1)
    size, devices = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    return World(devices, size // devices)


def check_devices(machine: Machine) -> None:
    """What is asked for fits what torchrun started.

    Raises:
        ValueError: both say how many devices there are, and differ.
    """
    started = world_of(machine).devices
    fits = machine.devices in (1, started)
    check_argument(fits, f"be left out under torchrun, which started {started} processes here", devices=machine.devices)


def check_accelerator(machine: Machine) -> None:
    """What a training needs is there.

    Raises:
        ValueError: this machine does not have the devices.
    """
    _fabric(machine)


def _fabric(machine: Machine, strategy: str = "auto", precision: Any = None) -> "Fabric":
    """ValueError: this machine does not have the devices."""
    from lightning_fabric import Fabric
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    world = world_of(machine)
    try:
        return Fabric(
            accelerator=kind_of(machine.accelerator),
            devices=world.devices,
            num_nodes=world.machines,
            strategy=strategy,
            precision=precision,
        )
    except (MisconfigurationException, RuntimeError) as error:
        wanted = f"{world.devices} of {machine.accelerator!r}"
        raise ValueError(f"accelerator, devices: must be there on this machine, got {wanted}: {error}") from error


def _by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def launch(recipe: Recipe, machine: Machine) -> "Fabric":
    """Devices, threads and precision, which is settled; with several devices, the processes for them.

    Raises:
        ValueError: this machine does not have the devices, or a batch cannot be shared out evenly among them; processes
            that come with different precisions.
    """
    if recipe.precision == "auto":
        raise ValueError("precision: must be settled before a launch, by settle_precision, got 'auto'")
    world = world_of(machine)
    if recipe.batch_size % world.size:
        raise ArgumentError("batch_size", f"be a multiple of all devices = {world.size}", recipe.batch_size)
    set_threads(machine)
    keep_freed_memory()
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA demands it of deterministic products
    torch.use_deterministic_algorithms(recipe.deterministic)
    torch.backends.cudnn.allow_tf32 = recipe.precision != "32-true"  # else a GPU's convolutions have 10 bits of 23
    fabric = _fabric(machine, "ddp" if world.size > 1 else "auto", recipe.precision)
    fabric.launch()
    _check_same_numbers(fabric, recipe)
    _forget_peak_memory(fabric.device)
    return fabric


def set_threads(machine: Machine) -> None:
    """As many as the machine's options say."""
    if machine.threads is not None:
        torch.set_num_threads(machine.threads)


def _check_same_numbers(fabric: "Fabric", recipe: Recipe) -> None:
    """ValueError: "auto" is not the same for all processes, on machines of different kinds."""

    def differs(choice: bool) -> bool:
        return fabric.all_reduce(torch.tensor(float(choice), device=fabric.device), reduce_op="mean") not in (0, 1)

    routing = recipe.model.options.get("routing")
    if differs(isinstance(routing, EMRouting) and routing.votes == "bfloat16"):
        raise ValueError(
            "votes: must be float32 or bfloat16 where machines train together of which only some multiply bfloat16, "
            "got 'auto'"
        )
    if differs(recipe.precision == "bf16-mixed"):
        raise ValueError(
            "precision: must be 32-true or bf16-mixed where machines train together of which only some multiply "
            "bfloat16 faster, got 'auto'"
        )


def starts_training(machine: Machine) -> bool:
    """Whether this process is the first of those that a training is to have; known before they are launched."""
    return world_of(machine).size == 1 or is_launched_first()


def is_launched_first() -> bool:
    """Whether no launcher says that another process comes before this one; known before a training is set up."""
    ranks = (os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return next((int(rank) for rank in ranks if rank), 0) == 0


@contextmanager
def ends_with_others(fabric: "Fabric", folder: Path) -> Iterator[None]:
    """Where one process of several that train together dies, the others end with a sentence, and not with a traceback.

    They learn of it as their messages to each other fail, or as torchrun ends them.

    Raises:
        CapsellaError: another process of the training in `folder` ended.
    """
    if fabric.world_size == 1:
        yield
        return
    ended = CapsellaError(
        f"another process of this training ended, so all do; capsella train --resume {folder}, started in the same "
        "way or with another number of processes, goes on from the last checkpoint"
    )

    told = False

    def end(*_: object) -> None:
        nonlocal told
        told = True
        raise ended

    usual = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except RuntimeError as error:
        # A file of PyTorch's that is not whole when it is left is an error of its own.
        if told or isinstance(error, torch.distributed.DistError) or "gloo" in str(error):
            raise ended from error
        raise
    finally:
        signal.signal(signal.SIGTERM, usual)


def folder_of_first(fabric: "Fabric", folder: Path) -> Path:
    """The folder that the first process chose: another may have seen that one already, and chosen the next."""
    return folder if fabric.world_size == 1 else Path(fabric.broadcast(str(folder)))


def is_first_process() -> bool:
    """Whether this is the one process that writes and reports, of all that train together."""
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not together or torch.distributed.get_rank() == 0


def sums_over_devices(sums: dict[str, float], fabric: "Fabric") -> dict[str, float]:
    """Images, errors and losses added up over all devices; seconds and gradients, which each has whole, averaged."""
    world = fabric.world_size
    if world == 1:
        return sums
    total = torch.tensor(list(sums.values()), dtype=torch.float64)
    total = torch.as_tensor(fabric.all_reduce(total, reduce_op="sum"))
    added = dict(zip(sums, total.tolist(), strict=True))
    return {name: value / world if is_whole(name) else value for name, value in added.items()}


def _forget_peak_memory(device: torch.device) -> None:
    """So that `peak_memory_mib` is of this training and not of those before it in the process, where Linux lets it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with suppress(OSError):  # not every container may write there
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_mib(device: torch.device) -> float:
    """Largest resident memory since `launch`, or what was allocated on the GPU where it is the device.

    What the process held already counts. Where the system cannot count anew, it is the largest since the process began.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20

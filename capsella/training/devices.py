"""Devices, processes and memory of a training."""

import ctypes
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
from capsella.training.checkpoint import is_global
from capsella.training.config import ComputeOptions
from capsella.training.precision import resolve_accelerator
from capsella.training.recipe import Recipe

if TYPE_CHECKING:  # takes nearly two seconds to import
    from lightning_fabric import Fabric

# From glibc's <malloc.h>.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
# Bytes: larger arrays are returned to the system at once.
LARGEST_KEPT = 2**30


class World(NamedTuple):
    """The processes of a training: one for each device of each machine."""

    devices: int
    machines: int

    @property
    def size(self) -> int:
        """Processes in all."""
        return self.devices * self.machines


def world_of(compute: ComputeOptions) -> World:
    """Return the processes that torchrun started, if it started this one; else one per device of `compute`."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return World(compute.devices, 1)
    size, devices = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    return World(devices, size // devices)


def check_devices(compute: ComputeOptions) -> None:
    """Check that the number of devices fits what torchrun started.

    Raises:
        ArgumentError: it does not.
    """
    started = world_of(compute).devices
    fits = compute.devices in (1, started)
    check_argument(fits, f"be left out under torchrun, which started {started} processes here", devices=compute.devices)


def check_accelerator(compute: ComputeOptions) -> None:
    """Check that this machine has the devices.

    Raises:
        ValueError: it does not.
    """
    _fabric(compute)


def _fabric(compute: ComputeOptions, strategy: str = "auto", precision: Any = None) -> "Fabric":
    from lightning_fabric import Fabric
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    world = world_of(compute)
    try:
        return Fabric(
            accelerator=resolve_accelerator(compute.accelerator),
            devices=world.devices,
            num_nodes=world.machines,
            strategy=strategy,
            precision=precision,
        )
    except (MisconfigurationException, RuntimeError) as error:
        asked = f"{world.devices} of {compute.accelerator!r}"
        raise ArgumentError("accelerator, devices", "exist on this machine", asked, str(error)) from error


def launch(recipe: Recipe, compute: ComputeOptions) -> "Fabric":
    """Set up devices, threads and precision (resolved, not "auto"); start the processes if there are several devices.

    Raises:
        ValueError: this machine lacks the devices, a batch cannot be divided evenly among them, or processes have
            resolved different precisions.
    """
    check_argument(recipe.precision != "auto", "be resolved before a launch", precision=recipe.precision)
    world = world_of(compute)
    if recipe.batch_size % world.size:
        raise ArgumentError("batch_size", f"be a multiple of all devices = {world.size}", recipe.batch_size)
    set_threads(compute)
    keep_freed_memory()
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA demands it of deterministic products
    torch.use_deterministic_algorithms(recipe.deterministic)
    torch.backends.cudnn.allow_tf32 = recipe.precision != "32-true"  # TF32 keeps 10 of float32's 23 mantissa bits
    fabric = _fabric(compute, "ddp" if world.size > 1 else "auto", recipe.precision)
    fabric.launch()
    _check_same_numbers(fabric, recipe)
    _reset_peak_memory(fabric.device)
    return fabric


def set_threads(compute: ComputeOptions) -> None:
    """Set the number of CPU threads, if the options have one."""
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)


def _check_same_numbers(fabric: "Fabric", recipe: Recipe) -> None:
    """Check that "auto" was resolved alike in all processes, which may be on machines of different kinds."""
    routing = recipe.model.options.get("routing")
    choices = {
        "votes": isinstance(routing, EMRouting) and routing.votes == "bfloat16",
        "precision": recipe.precision == "bf16-mixed",
    }
    for name, choice in choices.items():
        mean = fabric.all_reduce(torch.tensor(float(choice), device=fabric.device), reduce_op="mean")
        rule = "not be 'auto' for machines of which only some are fast with bfloat16"
        check_argument(mean in (0, 1), rule, **{name: "auto"})


def is_first_of_training(compute: ComputeOptions) -> bool:
    """Return whether this is the first process of a training; works before the processes are launched."""
    return world_of(compute).size == 1 or is_launched_first()


def is_launched_first() -> bool:
    """Return whether this process has rank 0, or no launcher; works before a training is set up."""
    ranks = (os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return next((int(rank) for rank in ranks if rank), 0) == 0


def is_first_process() -> bool:
    """Return whether this is the one of the distributed processes that writes files and reports (rank 0)."""
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not together or torch.distributed.get_rank() == 0


@contextmanager
def raise_on_peer_exit(fabric: "Fabric", folder: Path) -> Iterator[None]:
    """Raise a readable error if another process of the same training dies.

    This process notices because communication fails, or because torchrun terminates it.

    Raises:
        CapsellaError: another process of the training in `folder` ended.
    """
    if fabric.world_size == 1:
        yield
        return
    peer_exit = CapsellaError(
        f"another process of this training ended, so this one stops too; continue from the last checkpoint, with "
        f"any number of processes: capsella train --resume {folder}"
    )
    is_terminated = False

    def end(*_: object) -> None:
        nonlocal is_terminated
        is_terminated = True
        raise peer_exit

    handler = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except RuntimeError as error:
        # PyTorch raises its own RuntimeError if the signal interrupts it while it writes a file.
        if is_terminated or isinstance(error, torch.distributed.DistError) or "gloo" in str(error):
            raise peer_exit from error
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)


def folder_of_first(fabric: "Fabric", folder: Path) -> Path:
    """Return the folder that the first process chose; others may have found it in use and chosen the next name."""
    return folder if fabric.world_size == 1 else Path(fabric.broadcast(str(folder)))


def sum_over_devices(sums: dict[str, float], fabric: "Fabric") -> dict[str, float]:
    """Add images, errors and losses over all devices; average sums that are already global (see `is_global`)."""
    world = fabric.world_size
    if world == 1:
        return sums
    total = torch.tensor(list(sums.values()), dtype=torch.float64)
    total = torch.as_tensor(fabric.all_reduce(total, reduce_op="sum"))
    added = dict(zip(sums, total.tolist(), strict=True))
    return {name: value / world if is_global(name) else value for name, value in added.items()}


def keep_freed_memory() -> None:
    """Let glibc's allocator keep freed memory for the rest of the process.

    By default, glibc requests each array of more than 32 MiB from the system and returns it when it is freed. Training
    frees and allocates the same feature maps at every step, and the system clears their pages each time, which takes a
    quarter of a CapsNet step. In return, the process holds its peak memory until it ends.

    This does nothing with another allocator, or if the environment sets the allocator.
    """
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):  # musl has none
        allocator.mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
        allocator.mallopt(TRIM_THRESHOLD, -1)  # never


def _reset_peak_memory(device: torch.device) -> None:
    """Reset the peak that `peak_memory_mib` returns, so that earlier trainings do not count, if the system permits."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with suppress(OSError):  # not every container may write there
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_mib(device: torch.device) -> float:
    """Return the peak memory since `launch`: allocated on a GPU, else resident, which includes what was held before."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20

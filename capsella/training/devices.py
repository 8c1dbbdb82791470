"""Devices, processes and memory of a training."""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from capsella.errors import ArgumentError, CapsellaError, check_argument
from capsella.routing import EMRouting
from capsella.training.config import ComputeOptions
from capsella.training.recipe import Recipe
from capsella.training.resolve import resolve_accelerator

if TYPE_CHECKING:  # takes nearly two seconds to import
    from lightning_fabric import Fabric

# From glibc's <malloc.h>.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
# Bytes: larger arrays are returned to the system at once.
LARGEST_KEPT = 2**30


def _world(compute: ComputeOptions) -> tuple[int, int]:
    """Return devices per machine and machines: those of torchrun if it started this process, else of `compute`."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return compute.devices, 1
    size, devices = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    return devices, size // devices


def check_devices(compute: ComputeOptions) -> None:
    """Check that the number of devices fits what torchrun started.

    Raises:
        ArgumentError: it does not.
    """
    started, _ = _world(compute)
    fits = compute.devices in (1, started)
    check_argument(fits, f"be left out under torchrun, which started {started} processes here", devices=compute.devices)


def launch(recipe: Recipe, compute: ComputeOptions) -> "Fabric":
    """Set up devices, threads and precision (resolved, not "auto"); start the processes if there are several devices.

    Raises:
        ValueError: this machine lacks the devices, a batch cannot be divided evenly among them, or processes have
            resolved different precisions.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    if recipe.precision == "auto":
        raise ArgumentError("precision", "be resolved before a launch", recipe.precision)
    devices, machines = _world(compute)
    size = devices * machines
    if recipe.batch_size % size:
        raise ArgumentError("batch_size", f"be a multiple of all devices = {size}", recipe.batch_size)
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    keep_freed_memory()
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA demands it of deterministic products
    torch.use_deterministic_algorithms(recipe.deterministic)
    torch.backends.cudnn.allow_tf32 = recipe.precision != "32-true"  # TF32 keeps 10 of float32's 23 mantissa bits
    try:
        fabric = Fabric(
            accelerator=resolve_accelerator(compute.accelerator),
            devices=devices,
            num_nodes=machines,
            strategy="ddp" if size > 1 else "auto",
            precision=recipe.precision,
        )
    except (MisconfigurationException, RuntimeError) as error:
        asked = f"{devices} of {compute.accelerator!r}"
        raise ArgumentError("accelerator, devices", "exist on this machine", asked, str(error)) from error
    fabric.launch()
    _check_same_numbers(fabric, recipe)
    _reset_peak_memory(fabric.device)
    return fabric


def _check_same_numbers(fabric: "Fabric", recipe: Recipe) -> None:
    """Check that "auto" was resolved alike in all processes, which may be on machines of different kinds."""
    routing = recipe.model.options.get("routing")
    choices = {
        "votes": isinstance(routing, EMRouting) and routing.votes == "bfloat16",
        "precision": recipe.precision == "bf16-mixed",
    }
    for name, choice in choices.items():
        mean = fabric.all_reduce(torch.tensor(float(choice), device=fabric.device), reduce_op="mean")
        rule = "not be 'auto' for processes of which only some are fast with bfloat16"
        check_argument(mean in (0, 1), rule, **{name: "auto"})


def is_first_of_training(compute: ComputeOptions) -> bool:
    """Return whether this is the first process of a training; works before the processes are launched."""
    devices, machines = _world(compute)
    return devices * machines == 1 or is_launched_first()


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
    """Raise a readable error if another process of the training in `folder` dies.

    This process notices because communication fails, or because torchrun terminates it.

    Raises:
        CapsellaError: another process ended.
    """
    peer_exit = CapsellaError(
        "another process of this training ended, so this one stops too; continue from the last checkpoint, with any "
        f"number of processes: capsella train --resume {folder}"
    )

    def end(*_: object) -> None:
        raise peer_exit

    if fabric.world_size == 1:
        yield
        return
    handler = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.distributed.DistError) or "gloo" in str(error):
            raise peer_exit from error
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)


def folder_of_first(fabric: "Fabric", folder: Path) -> Path:
    """Return the folder that the first process chose; others may have found it in use and chosen the next name."""
    return folder if fabric.world_size == 1 else Path(fabric.broadcast(str(folder)))


def sum_over_devices(sums: dict[str, float], fabric: "Fabric") -> dict[str, float]:
    """Add images, errors and losses over all devices; average the seconds."""
    world = fabric.world_size
    if world == 1:
        return sums
    total = torch.tensor(list(sums.values()), dtype=torch.float64)
    total = torch.as_tensor(fabric.all_reduce(total, reduce_op="sum"))
    added = dict(zip(sums, total.tolist(), strict=True))
    return added | {"seconds": added["seconds"] / world}


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

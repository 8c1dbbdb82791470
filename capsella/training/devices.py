"""Where a training computes: its devices, its processes, and the memory they used."""

import os
import resource
import sys
from typing import TYPE_CHECKING

import torch

from capsella.training.options import Machine
from capsella.training.recipe import Recipe

if TYPE_CHECKING:  # nearly two seconds to import: only where a training starts
    from lightning_fabric import Fabric


def launch(recipe: Recipe, machine: Machine) -> "Fabric":
    """Devices, threads and precision; with several devices, the processes for them.

    Raises:
        ValueError: this machine does not have the devices, or a batch cannot be shared out evenly among them.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    if recipe.batch_size % machine.devices:
        raise ValueError(f"batch_size: must be a multiple of devices = {machine.devices}, got {recipe.batch_size}")
    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA demands it of deterministic products
    torch.use_deterministic_algorithms(recipe.deterministic)
    try:
        fabric = Fabric(
            accelerator=machine.accelerator,
            devices=machine.devices,
            strategy="ddp" if machine.devices > 1 else "auto",
            precision=recipe.precision,
        )
    except (MisconfigurationException, RuntimeError) as error:
        wanted = f"{machine.devices} of {machine.accelerator!r}"
        raise ValueError(f"accelerator, devices: must be there on this machine, got {wanted}: {error}") from error
    fabric.launch()
    return fabric


def is_first_process() -> bool:
    """Whether this is the one process that writes and reports, of all that train together."""
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not together or torch.distributed.get_rank() == 0


def peak_memory_mib() -> float:
    """Largest resident memory of this process so far, or what was allocated on the GPU where one is used."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20

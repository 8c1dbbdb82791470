"""Trains one step with each number of processes, as torchrun would start them, but forked: imports take longest.

`python -m tests.training.together_job FOLDER` leaves the runs in FOLDER/NETWORK-PROCESSES.
"""

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import lightning_fabric  # noqa: F401  once, for all processes
import torch.utils.tensorboard  # noqa: F401
from rich.console import Console

from capsella.data import NamedData
from capsella.routing import DynamicRouting
from capsella.training import ComputeOptions, ModelOptions, OptimizerOptions, Recipe, train

BATCH = 8
CAPSNET = Recipe(
    model=ModelOptions(
        "sabour2017_capsnet",
        {"routing": DynamicRouting(iterations=2, backend="native"), "primary_types": 4, "decoder_width": 16},
    ),
    data=NamedData("digits", size=17, per_class=3, validation=0.02, test_per_class=2),
    # One step of plain descent at a rate of 1 takes exactly the gradient from the weights.
    optimizer=OptimizerOptions(learning_rate=1.0, method="sgd", momentum=0.0, schedule="cosine"),
    epochs=2,
    epoch_images=BATCH,
    batch_size=BATCH,
    precision="32-true",
)
REST = replace(CAPSNET, epoch_images=6)  # of which two of four processes have one more
NETWORKS = {"capsnet": (CAPSNET, (1, 4)), "rest": (REST, (1, 4))}


def main(folder: Path) -> None:
    for name, (recipe, counts) in NETWORKS.items():
        for processes in counts:
            with socket.create_server(("localhost", 0)) as free:
                port = free.getsockname()[1]
            started = [fork(recipe, folder / f"{name}-{processes}", rank, processes, port) for rank in range(processes)]
            failed = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started]
            assert not any(failed), failed


def fork(recipe: Recipe, folder: Path, rank: int, processes: int, port: int) -> int:
    process = os.fork()
    if process:
        return process
    size = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "GROUP_RANK": 0, "MASTER_PORT": port}
    variables = {**size, "RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "localhost", "TORCHELASTIC_RUN_ID": "test"}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        train(
            recipe, folder, compute=ComputeOptions(accelerator="cpu", threads=1), console=Console(quiet=True), until=1
        )
    except BaseException as error:
        print(f"rank {rank}: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

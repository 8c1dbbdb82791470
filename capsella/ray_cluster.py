"""A Ray cluster, joined for the length of a command; no usage statistics are sent."""

import importlib
import math
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsella.errors import CapsellaError, check_argument, check_installed, check_minimum, pluralize
from capsella.version import __version__

RETRIES = 5
"""How often work is begun again whose worker died."""
_SHARED_VARIABLES = ("CAPSELLA_DATA",)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where work is computed.

    Raises:
        ValueError: a field is outside its range.
    """

    on: str | None = None
    """Compute on a Ray cluster: `ray` is the one that this machine is part of, or else a new one of this machine alone;
    ray://HOST:10001 is any other. All its machines must share the working folder. Default: in this process."""
    cpus: int = 1
    """With --on: cores, and threads, of each run or worker."""
    gpus: float | None = None
    """With --on: GPUs of each run; half a GPU is 0.5. Default: 1 where the cluster has any. `predict` takes none."""

    def __post_init__(self) -> None:
        fits = self.on is None or self.on == "ray" or self.is_outside
        check_argument(fits, "be `ray`, or an address as ray://HOST:10001", on=self.on)
        check_minimum(1, cpus=self.cpus)
        gpus = self.gpus or 0.0
        can_be_shared = 0 <= gpus <= 1 or (1 < gpus < math.inf and gpus == int(gpus))
        check_argument(can_be_shared, "be a part of one GPU, or a whole number of them", gpus=self.gpus)
        alone = self.on is None and (self.cpus, self.gpus) != (1, None)
        check_argument(not alone, "come with --on", cpus=self.cpus, gpus=self.gpus)

    @property
    def is_outside(self) -> bool:
        """Whether this process is no part of the cluster: Ray's client asks it for all."""
        return self.on is not None and self.on.startswith("ray://")


def check_ray() -> None:
    """Ray is at hand.

    Raises:
        CapsellaError: it is not installed.
    """
    check_installed("on:", "cluster", "ray")


_joined: ContextVar[Place | None] = ContextVar("joined", default=None)


def place() -> Place | None:
    """The cluster that this process has joined; None where work is done in this process."""
    return _joined.get()


@contextmanager
def joined(wanted: Place) -> Iterator[None]:
    """Join a cluster for a block, and leave it; what it still computes is then ended. Nothing without `on`.

    Raises:
        CapsellaError: Ray is missing, or the cluster does not answer.
    """
    if wanted.on is None:
        yield
        return
    check_ray()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    try:
        ray.init(None if wanted.on == "ray" else wanted.on, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        ray.util.client.ray.disconnect()  # else every later call would ask a client that is none
        raise CapsellaError(f"{wanted.on}: the Ray cluster does not answer: {error}") from error
    token = _joined.set(wanted)
    try:
        yield
    finally:
        _joined.reset(token)
        ray.shutdown()


def resources(wanted: Place, accelerator: str = "auto") -> dict[str, float]:
    """What each run or worker takes, as Ray calls it."""
    import ray

    gpus = wanted.gpus
    if gpus is None:
        gpus = 0 if accelerator == "cpu" or not ray.cluster_resources().get("GPU") else 1
    return {"num_cpus": wanted.cpus, "num_gpus": gpus}


def room(each: dict[str, float]) -> int:
    """How many runs or workers the cluster has room for now."""
    import ray

    there = ray.cluster_resources()
    sizes = {"CPU": each["num_cpus"], "GPU": each["num_gpus"]}
    return min(int(there.get(name, 0) / size) for name, size in sizes.items() if size)


def shortage(each: dict[str, float]) -> str | None:
    """A sentence where no machine of the cluster has what a run or worker takes; None where one has."""
    import ray

    sizes = {"CPU": each["num_cpus"], "GPU": each["num_gpus"]}
    for node in ray.nodes():
        if node["Alive"] and all(node["Resources"].get(name, 0) >= size for name, size in sizes.items()):
            return None
    cores, gpus = pluralize(int(sizes["CPU"]), "core"), f"{sizes['GPU']:g} GPU" if sizes["GPU"] else "no GPU"
    return f"no machine of the cluster has {cores} and {gpus} for one run or worker; this call waits until one joins"


@dataclass(frozen=True)
class Desk:
    """What a worker must have in common with this process: the folder, some variables, the version, some modules."""

    folder: str
    variables: dict[str, str]
    threads: int
    modules: tuple[str, ...] = ()
    version: str = __version__

    @classmethod
    def here(cls, each: dict[str, float], modules: tuple[str, ...] = ()) -> "Desk":
        """As this process has it. each: what the worker takes, as `resources` gives it."""
        variables = {name: os.environ[name] for name in _SHARED_VARIABLES if name in os.environ}
        if not each["num_gpus"]:
            variables["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves all of them to a worker that asked for none
        return cls(os.getcwd(), variables, int(each["num_cpus"]), modules)

    def sit_down(self) -> None:
        """In a worker: take the folder, the variables and the threads, and import the modules.

        Raises:
            CapsellaError: the folder or a module is not there, or another version of capsella is installed.
        """
        import torch

        machine = socket.gethostname()
        if self.version != __version__:
            raise CapsellaError(f"{machine} has capsella {__version__}; all machines must have {self.version}")
        if not Path(self.folder).is_dir():
            raise CapsellaError(f"{machine} has no folder {self.folder}: all machines must share the working folder")
        os.chdir(self.folder)
        os.environ.update(self.variables)
        torch.set_num_threads(self.threads)
        for module in self.modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise CapsellaError(f"{machine} cannot import {module}: {error}") from error


def lost(what: str, error: Exception) -> CapsellaError:
    """The error for work that failed, or whose worker died too often, or could not be begun."""
    import ray

    if isinstance(error, ray.exceptions.RayTaskError):  # what the work raised: its worker lives
        cause = error.cause
        if not isinstance(cause, ray.exceptions.RayActorError):  # of a worker that the work itself had asked
            return CapsellaError(f"{what}: {type(cause).__name__}: {cause}")
        error = cause
    first, *_ = str(error).strip().splitlines() or [type(error).__name__]
    return CapsellaError(f"{what}: its worker died {RETRIES + 1} times or did not start ({first}); call again to go on")


def ray_errors() -> Any:
    """Errors that Ray raises: of workers that died, and those of their work; `lost` tells them apart."""
    import ray

    return ray.exceptions.RayError

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

RETRIES = 5  # how often a task is retried after its worker died
_SHARED_VARIABLES = ("CAPSELLA_DATA",)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Options for computing on a Ray cluster.

    Raises:
        ValueError: a field is outside its range.
    """

    on: str | None = None
    """Compute on a Ray cluster: `ray` joins the cluster of this machine, or else starts one on this machine alone;
    ray://HOST:10001 joins any other. All machines must share the working folder. Default: compute in this process."""
    cpus: int = 1
    """With --on: CPU cores (and threads) of each run or worker."""
    gpus: float | None = None
    """With --on: GPUs of each run; half a GPU is 0.5. Default: 1 if the cluster has any. `predict` uses none."""

    def __post_init__(self) -> None:
        fits = self.on is None or self.on == "ray" or self.is_outside
        check_argument(fits, "be `ray` or an address such as ray://HOST:10001", on=self.on)
        check_minimum(1, cpus=self.cpus)
        gpus = self.gpus or 0.0
        can_be_shared = 0 <= gpus <= 1 or (1 < gpus < math.inf and gpus == int(gpus))
        check_argument(can_be_shared, "be a fraction of one GPU or a whole number of GPUs", gpus=self.gpus)
        alone = self.on is None and (self.cpus, self.gpus) != (1, None)
        check_argument(not alone, "be set only together with --on", cpus=self.cpus, gpus=self.gpus)

    @property
    def is_outside(self) -> bool:
        """True for a cluster that is reached through Ray Client, because this machine is not part of it."""
        return self.on is not None and self.on.startswith("ray://")


_joined: ContextVar[ClusterOptions | None] = ContextVar("joined", default=None)


def current_cluster() -> ClusterOptions | None:
    """Return the options of the cluster that this process has joined, or None."""
    return _joined.get()


@contextmanager
def ray_session(options: ClusterOptions) -> Iterator[None]:
    """Join a cluster for the length of a block; leaving it ends its tasks. Without `on`, do nothing.

    Raises:
        CapsellaError: Ray is missing, or the cluster does not answer.
    """
    if options.on is None:
        yield
        return
    check_installed("on:", "cluster", "ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    try:
        ray.init(None if options.on == "ray" else options.on, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        ray.util.client.ray.disconnect()  # otherwise later calls would use the client that failed to connect
        raise CapsellaError(f"{options.on}: the Ray cluster does not answer: {error}") from error
    token = _joined.set(options)
    try:
        yield
    finally:
        _joined.reset(token)
        ray.shutdown()


def resources(options: ClusterOptions, accelerator: str = "auto") -> dict[str, float]:
    """Return the resources of each run or worker, as Ray's keyword arguments."""
    import ray

    gpus = options.gpus
    if gpus is None:
        gpus = 0 if accelerator == "cpu" or not ray.cluster_resources().get("GPU") else 1
    return {"num_cpus": options.cpus, "num_gpus": gpus}


def capacity(each: dict[str, float]) -> int:
    """Return how many runs or workers with the resources `each` fit into the cluster now."""
    import ray

    there = ray.cluster_resources()
    sizes = {"CPU": each["num_cpus"], "GPU": each["num_gpus"]}
    return min(int(there.get(name, 0) / size) for name, size in sizes.items() if size)


def capacity_warning(each: dict[str, float]) -> str | None:
    """Return a warning if no machine of the cluster has the resources of a run or worker, else None."""
    import ray

    sizes = {"CPU": each["num_cpus"], "GPU": each["num_gpus"]}
    for node in ray.nodes():
        if node["Alive"] and all(node["Resources"].get(name, 0) >= size for name, size in sizes.items()):
            return None
    cores, gpus = pluralize(int(sizes["CPU"]), "core"), f"{sizes['GPU']:g} GPU" if sizes["GPU"] else "no GPU"
    return f"no machine of the cluster has {cores} and {gpus} for one run or worker; this call waits until one joins"


@dataclass(frozen=True)
class WorkerEnvironment:
    """The folder, environment variables, threads, modules and version that a worker takes over from this process."""

    folder: str
    variables: dict[str, str]
    threads: int
    modules: tuple[str, ...] = ()
    version: str = __version__

    @classmethod
    def here(cls, each: dict[str, float], modules: tuple[str, ...] = ()) -> "WorkerEnvironment":
        """Return the environment of this process, for a worker with the resources `each`."""
        variables = {name: os.environ[name] for name in _SHARED_VARIABLES if name in os.environ}
        if not each["num_gpus"]:
            variables["CUDA_VISIBLE_DEVICES"] = ""  # Ray shows all GPUs to a worker that asked for none
        return cls(os.getcwd(), variables, int(each["num_cpus"]), modules)

    def apply(self) -> None:
        """Set the folder, variables and threads of this worker, and import the modules.

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


def worker_error(what: str, error: Exception) -> CapsellaError:
    """Return the error for a task that failed, or whose worker died too often or did not start."""
    import ray

    if isinstance(error, ray.exceptions.RayTaskError):  # the task itself raised an error; its worker is alive
        cause = error.cause
        if not isinstance(cause, ray.exceptions.RayActorError):  # not from another worker that the task called
            return CapsellaError(f"{what}: {type(cause).__name__}: {cause}")
        error = cause
    first, *_ = str(error).strip().splitlines() or [type(error).__name__]
    return CapsellaError(
        f"{what}: its worker died {RETRIES + 1} times or did not start ({first}); run the same command to continue"
    )


def ray_errors() -> Any:
    """Return the base class of Ray's errors, to catch them for `worker_error`."""
    import ray

    return ray.exceptions.RayError

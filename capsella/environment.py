"""Software versions and hardware, recorded with every measurement."""

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from capsella.errors import pluralize
from capsella.version import __version__


def environment() -> dict[str, str | int]:
    """Return versions and hardware, ready for JSON."""
    return {
        "capsella": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "spins": os.environ.get("GOMP_SPINCOUNT", "default"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "system": platform.system(),
    }


def hardware(made_with: Mapping[str, Any]) -> str:
    """Return the GPU's name, or without a GPU the threads and the processor, from what `environment` returned.

    >>> hardware({"gpu": "none", "threads": 1, "cpu": "abacus"}), hardware({"gpu": "loom"})
    ('1 thread, abacus', 'loom')
    """
    if made_with["gpu"] != "none":
        return str(made_with["gpu"])
    return f"{pluralize(made_with['threads'], 'thread')}, {made_with['cpu']}"


def machine(made_with: Mapping[str, Any]) -> str:
    """Return the processor, threads and GPU as one text."""
    return f"{made_with['cpu']}, {pluralize(made_with['threads'], 'thread')}; GPU: {made_with['gpu']}"


def versions(made_with: Mapping[str, Any]) -> str:
    """Return the versions of capsella and PyTorch as one text."""
    return f"capsella {made_with['capsella']}, torch {made_with['torch']}"


def processor() -> str:
    """Return the processor's name; Linux reports it only in /proc/cpuinfo."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def free_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes available without swapping, within a container's limit; None on other systems than Linux."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min([*free, *_left_by_cgroups(root)], default=None)


def _left_by_cgroups(root: Path) -> Iterator[int]:
    """Yield the bytes left under each memory limit of this process's control groups, e.g. of a container or Slurm."""
    listed = root / "proc/self/cgroup"
    for line in listed.read_text().splitlines() if listed.exists() else []:
        own = root / "sys/fs/cgroup" / line.rpartition(":")[2].lstrip("/")
        for folder in (own, *own.parents):
            with suppress(OSError, ValueError, KeyError):  # there is no limit
                most, now = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
                stat = dict(entry.split() for entry in (folder / "memory.stat").read_text().splitlines())
                yield max(0, most - now + int(stat["inactive_file"]))


def _commit() -> str:
    """Return the commit of this source tree, followed by "+" if tracked files have changed, or "unknown"."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return "unknown"

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        return git("rev-parse", "--short=12", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):  # there is no git, or it does not trust the folder's owner
        return "unknown"

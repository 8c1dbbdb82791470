"""What a number was measured with: versions, processor, threads."""

import os
import platform
import subprocess
from pathlib import Path

import torch

from capsella.version import __version__


def environment() -> dict[str, str | int]:
    """Versions and hardware, JSON-ready."""
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


def processor() -> str:
    """The processor's name; Linux tells it in /proc/cpuinfo only."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """The checked-out commit of this source tree, "+" behind it where files differ from it; "unknown" elsewhere."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return "unknown"

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        ).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + (
        "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    )

"""Memory of a step: its peak, and how many images fit.

`python -m benchmarks.memory CASE CONTENDER THREADS` is the fresh process in which the peak on a CPU is measured.
"""

import gc
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.cases import CASES, Case, select
from benchmarks.contenders import CONTENDERS, Contender, UnavailableError, first_call
from capsella.errors import CapsellaError

ROOT = Path(__file__).parents[1]
MOST_IMAGES = 1 << 16
STEPS = 2  # the second one finds the gradients of the first, as every later one does


def peak_memory_mib(case: Case, contender: Contender, device: torch.device) -> float | None:
    """Peak memory of steps above that of the process that holds the module and its inputs.

    On a CPU: resident memory of a fresh process, which Linux alone tells; elsewhere None. On a GPU: what PyTorch
    allocated there.

    Raises:
        UnavailableError: the contender cannot run this case.
        CapsellaError: the fresh process failed.
    """
    if device.type == "cuda":
        return _peak_on_gpu(case, contender, device)
    if not Path("/proc/self/clear_refs").exists():
        return None
    words = [sys.executable, "-m", "benchmarks.memory", case.name, contender.name, str(torch.get_num_threads())]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise CapsellaError(f"the memory of {case.name} with {contender.name} was not measured: {run.stderr[-2000:]}")
    answer = json.loads(run.stdout)
    if answer["unavailable"] is not None:
        raise UnavailableError(answer["unavailable"])
    return float(answer["mib"])


def peak_resident_mib(case: Case, contender: Contender) -> float:
    """Peak resident memory of steps in this process above what it held before them (Linux).

    Raises:
        UnavailableError: the contender cannot run this case.
    """
    step = contender.step(case, torch.device("cpu"))
    torch.mm(torch.ones(64, 64), torch.ones(64, 64))  # starts the threads, whose memory belongs to the process
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls to what is resident now
    before = _status_kib("VmHWM")
    for _ in range(STEPS):
        first_call(step)
    return (_status_kib("VmHWM") - before) / 1024


def _status_kib(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def _peak_on_gpu(case: Case, contender: Contender, device: torch.device) -> float:
    step = contender.step(case, device)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    for _ in range(STEPS):
        first_call(step)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def largest_batch(case: Case, contender: Contender, device: torch.device) -> int:
    """The most images whose step fits into the GPU's memory, to within a sixteenth.

    Raises:
        ValueError: a device that swaps instead of refusing.
        UnavailableError: the contender cannot run this case, or not one image fits.
    """
    if device.type != "cuda":
        raise ValueError(f"device: must be cuda for the largest batch, got {device}")
    first_call(contender.step(replace(case, batch=1), device))
    least, most = 1, 2
    while most <= MOST_IMAGES and _fits(replace(case, batch=most), contender, device):
        least, most = most, 2 * most
    while most <= MOST_IMAGES and most - least > max(1, least // 16):
        middle = (least + most) // 2
        least, most = (middle, most) if _fits(replace(case, batch=middle), contender, device) else (least, middle)
    return least


def _fits(case: Case, contender: Contender, device: torch.device) -> bool:
    gc.collect()
    torch.cuda.empty_cache()
    try:
        contender.step(case, device)()
    except torch.OutOfMemoryError:
        return False
    return True


def _main(case: str, contender: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    answer: dict[str, float | str | None] = {"mib": None, "unavailable": None}
    try:
        answer["mib"] = peak_resident_mib(select(CASES, case)[0], CONTENDERS[contender])
    except UnavailableError as error:
        answer["unavailable"] = str(error)
    print(json.dumps(answer))


if __name__ == "__main__":
    _main(*sys.argv[1:])

"""`--precision auto`: bfloat16 if this machine multiplies it clearly faster than float32; measured once, remembered.

Some processors have no instructions for bfloat16; PyTorch then computes the same numbers at half the speed of float32.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pooch
import torch
from torch import nn

from capsella.environment import processor
from capsella.errors import CapsellaError, warn_once
from capsella.files import write_json
from capsella.training.config import Exact

# bfloat16 must be this many times as fast as float32: a smaller gain is not worth another rounding.
CLEARLY_FASTER = 1.2
ROUNDS = 5
# In the timed batch. With fewer images a processor may take another algorithm: one was slower with bfloat16 up to eight
# images, and 1.6 times as fast from sixteen on.
IMAGES = 16
# Remembers measured ratios by processor, version of PyTorch, threads and images.
MEMORY = Path(pooch.os_cache("capsella")) / "precision.json"


@dataclass(frozen=True)
class PrecisionChoice:
    """The meaning of "auto" on this machine, and why, in a few words."""

    precision: Exact
    why: str

    def __str__(self) -> str:
        return f"auto → {self.precision}: {self.why}"


def choose_precision(accelerator: str, memory: Path | None = None) -> PrecisionChoice:
    """Resolve "auto": on a GPU by its abilities, on a processor by times that are measured once and remembered.

    Args:
        accelerator: "cpu", "cuda", or "auto" as in `ComputeOptions`.
        memory: the file that remembers; default: `MEMORY`, in the user's cache folder.
    """
    if kind_of(accelerator) == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        why = f"the GPU has {'' if fast else 'no '}bfloat16 units"
        return PrecisionChoice("bf16-mixed" if fast else "32-true", why)
    memory = memory or MEMORY
    key = f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads, {IMAGES} images"
    ratio, is_kept = _read_ratios(memory).get(key), True
    if ratio is None:
        ratio = measure_ratio()
        is_kept = _write_ratio(memory, key, ratio)
    kept = f"remembered in {memory}" if is_kept else "not remembered"
    why = f"bfloat16 is {ratio:.2g} times as fast as float32 here (measured once, {kept})"
    return PrecisionChoice(faster(ratio), why)


def faster(ratio: float) -> Exact:
    """Return the precision for a processor on which bfloat16 is `ratio` times as fast as float32.

    >>> faster(2.1), faster(1.1), faster(0.5)
    ('bf16-mixed', '32-true', '32-true')
    """
    return "bf16-mixed" if ratio >= CLEARLY_FASTER else "32-true"


def measure_ratio() -> float:
    """Measure how many times as fast bfloat16 is, on a convolution and a matrix product; takes a second or two."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        # CapsNet's second convolution with half of its inputs, and a layer of its decoder.
        convolution, images = nn.Conv2d(128, 256, 9, stride=2), torch.randn(IMAGES, 128, 20, 20)
        dense, vectors = nn.Linear(512, 1024), torch.randn(128, 512)

        def step(enabled: bool) -> None:
            for layer, inputs in ((convolution, images), (dense, vectors)):
                with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                    output = layer(inputs)
                output.float().square().mean().backward()

        float32, bfloat16 = _least_seconds(lambda: step(False), lambda: step(True))
    return float32 / bfloat16


def _least_seconds(*steps: Callable[[], None]) -> list[float]:
    """Return the least seconds of each step, called in turn, after one call without the clock.

    Other work on the machine only ever adds to a time, and what it added would be remembered.
    """
    seconds: list[list[float]] = [[] for _ in steps]
    for done in range(1 + ROUNDS):
        for step, times in zip(steps, seconds, strict=True):
            started = time.perf_counter()
            step()
            if done:
                times.append(time.perf_counter() - started)
    return [min(times) for times in seconds]


def kind_of(accelerator: str) -> str:
    """Resolve "auto" to CUDA if there is such a GPU, else to the CPU.

    Apple's GPU is not used: it has no float64, in which error rates and scores are computed.
    """
    if accelerator != "auto":
        return accelerator
    return "cuda" if torch.cuda.is_available() else "cpu"


def _read_ratios(memory: Path) -> dict[str, float]:
    """Read the ratios; none from a missing or damaged file, so that they are measured again."""
    try:
        values = json.loads(memory.read_text(encoding="utf-8"), parse_int=float)
    except (OSError, ValueError, RecursionError):
        return {}
    entries = values.items() if isinstance(values, dict) else ()
    return {key: ratio for key, ratio in entries if isinstance(ratio, float) and 0 < ratio < math.inf}


def _write_ratio(memory: Path, key: str, ratio: float) -> bool:
    """Add a ratio to the file; warn once and return False if that fails."""
    try:
        write_json(memory, {**_read_ratios(memory), key: round(ratio, 3)})
    except (OSError, CapsellaError) as error:
        warn_once(
            "precision.json",
            f"cannot remember what --precision auto measured: {error}; every training measures it again unless "
            "--precision is 32-true or bf16-mixed",
        )
        return False
    return True

"""`--precision auto`: bfloat16 where this machine multiplies it clearly faster than float32; measured once, remembered.

Some processors have no instructions for bfloat16: PyTorch then computes the same numbers at a half of float32's speed.
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
from capsella.training.options import Exact

CLEARLY_FASTER = 1.2
"""So many times as fast as float32 must bfloat16 be: what less would gain is not worth another rounding."""
ROUNDS = 5
IMAGES = 16
"""In the batch that is timed. With fewer, a processor may take another algorithm: one was slower with bfloat16 up to
eight images, and 1.6 times as fast from sixteen on."""
MEMORY = Path(pooch.os_cache("capsella")) / "precision.json"
"""The file that remembers what was measured: ratios by processor, version of PyTorch, threads and images."""


@dataclass(frozen=True)
class PrecisionChoice:
    """What "auto" is on this machine, and why, in a few words."""

    precision: Exact
    why: str

    def __str__(self) -> str:
        return f"auto → {self.precision}: {self.why}"


def choose_precision(accelerator: str, memory: Path | None = None) -> PrecisionChoice:
    """What "auto" is: on a GPU by its abilities, on a processor by times that are measured once and remembered.

    Args:
        accelerator: "cpu", "cuda", or "auto" as in `Machine`.
        memory: the file that remembers; default: `MEMORY`, in the user's cache folder.
    """
    kind = kind_of(accelerator)
    if kind == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        why = f"the GPU has {'' if fast else 'no '}bfloat16 units"
        return PrecisionChoice("bf16-mixed" if fast else "32-true", why)
    memory = memory or MEMORY
    key = f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads, {IMAGES} images"
    ratio = _remembered(memory).get(key)
    if ratio is None:
        ratio = measure_ratio()
        kept = f"remembered in {memory}" if _remember(memory, key, ratio) else "not remembered"
    else:
        kept = f"remembered in {memory}"
    why = f"bfloat16 is {ratio:.2g} times as fast as float32 here (measured once, {kept})"
    return PrecisionChoice(faster(ratio), why)


def faster(ratio: float) -> Exact:
    """The precision for a processor on which bfloat16 is `ratio` times as fast as float32.

    >>> faster(2.1), faster(1.1), faster(0.5)
    ('bf16-mixed', '32-true', '32-true')
    """
    return "bf16-mixed" if ratio >= CLEARLY_FASTER else "32-true"


def measure_ratio() -> float:
    """How many times as fast bfloat16 is: a convolution and a matrix product, forward and backward; a second or two."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        # CapsNet's second convolution with half of its inputs, and a layer of its decoder.
        convolution, images = nn.Conv2d(128, 256, 9, stride=2), torch.randn(IMAGES, 128, 20, 20)
        dense, vectors = nn.Linear(512, 1024), torch.randn(128, 512)

        def step(enabled: bool) -> None:
            for layer, inputs in ((convolution, images), (dense, vectors)):
                with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                    output = layer(inputs)
                output.float().square().mean().backward()

        float32, bfloat16 = _interleaved(lambda: step(False), lambda: step(True))
    return float32 / bfloat16


def _interleaved(*steps: Callable[[], None]) -> list[float]:
    """The least seconds of each step, called in turn, after one call that is not timed.

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
    """What "auto" is: CUDA where there is a GPU of it, else the processor; others are what they are called.

    Apple's GPU is not taken: it has no float64, in which error rates and scores are computed.
    """
    if accelerator != "auto":
        return accelerator
    return "cuda" if torch.cuda.is_available() else "cpu"


def _remembered(memory: Path) -> dict[str, float]:
    """Ratios by processor, version and threads; none where the file is missing or damaged: they are measured again."""
    try:
        values = json.loads(memory.read_text(encoding="utf-8"), parse_int=float)
    except (OSError, ValueError, RecursionError):
        return {}
    entries = values.items() if isinstance(values, dict) else ()
    return {key: ratio for key, ratio in entries if isinstance(ratio, float) and 0 < ratio < math.inf}


def _remember(memory: Path, key: str, ratio: float) -> bool:
    """Add a ratio to the file; where that cannot be written, say so once, and return False."""
    try:
        write_json(memory, {**_remembered(memory), key: round(ratio, 3)})
    except (OSError, CapsellaError) as error:
        warn_once(
            "precision.json",
            f"what --precision auto measured cannot be remembered: {error}; each training measures it anew, "
            "unless --precision is 32-true or bf16-mixed",
        )
        return False
    return True

"""`--precision auto`: bfloat16 if this machine multiplies it clearly faster than float32; measured once, remembered.

Some processors have no instructions for bfloat16; PyTorch then computes the same numbers at half the speed of float32.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import pooch
import torch
from torch import nn

from capsella.environment import processor
from capsella.errors import CapsellaError, warn_once
from capsella.files import read_json, write_json
from capsella.training.config import ResolvedPrecision

# bfloat16 must be this many times as fast as float32: a smaller gain is not worth the lower precision.
CLEARLY_FASTER = 1.2
ROUNDS = 5
# Images in the timed batch. With fewer images a processor may take another algorithm: one was slower with bfloat16 up
# to eight images, and 1.6 times as fast from sixteen on.
IMAGES = 16
# Remembers measured ratios by processor, version of PyTorch, threads and images.
MEMORY = Path(pooch.os_cache("capsella")) / "precision.json"


@dataclass(frozen=True)
class PrecisionChoice:
    """The value that `precision="auto"` resolves to on this machine, and the reason."""

    precision: ResolvedPrecision
    why: str

    def __str__(self) -> str:
        return f"auto → {self.precision}: {self.why}"


def choose_precision(accelerator: str, memory: Path | None = None) -> PrecisionChoice:
    """Resolve `precision="auto"`: by hardware support on a GPU, by times measured once and remembered on a CPU.

    Args:
        accelerator: "cpu", "cuda", or "auto" as in `ComputeOptions`.
        memory: the JSON file of measured ratios; default: `MEMORY`, in the user's cache folder.
    """
    if resolve_accelerator(accelerator) == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        why = f"the GPU has {'' if fast else 'no '}bfloat16 units"
        return PrecisionChoice("bf16-mixed" if fast else "32-true", why)
    memory = memory or MEMORY
    key = f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads, {IMAGES} images"
    try:
        known = dict(read_json(memory))
    except (CapsellaError, TypeError, ValueError):  # missing or damaged
        known = {}
    ratio = known.get(key)
    if not (isinstance(ratio, float) and 0 < ratio < math.inf):
        ratio = measure_ratio()
        try:
            write_json(memory, {**known, key: round(ratio, 3)})
        except (OSError, ValueError, CapsellaError) as error:
            what = "each training with --precision auto measures again; --precision 32-true or bf16-mixed avoids this"
            warn_once("precision.json", f"{error}; {what}")
    why = f"bfloat16 is {ratio:.2g} times as fast as float32 here (measured once, remembered in {memory})"
    return PrecisionChoice("bf16-mixed" if ratio >= CLEARLY_FASTER else "32-true", why)


def measure_ratio() -> float:
    """Return how many times as fast bfloat16 is as float32, on a convolution and a matrix product; takes seconds."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        # CapsNet's second convolution with half of its inputs, and a layer of its decoder.
        convolution, images = nn.Conv2d(128, 256, 9, stride=2), torch.randn(IMAGES, 128, 20, 20)
        dense, vectors = nn.Linear(512, 1024), torch.randn(128, 512)

        def step(enabled: bool) -> None:
            for layer, inputs in ((convolution, images), (dense, vectors)):
                with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                    output = layer(inputs)
                output.float().square().mean().backward()

        # Other load on the machine only ever adds time, so take the minimum, without the first call.
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for enabled in (False, True) * (1 + ROUNDS):
            started = time.perf_counter()
            step(enabled)
            seconds[enabled].append(time.perf_counter() - started)
    return min(seconds[False][1:]) / min(seconds[True][1:])


def resolve_accelerator(accelerator: str) -> str:
    """Return the accelerator, with "auto" resolved to "cuda" if there is a CUDA GPU, else to "cpu".

    Apple's GPU is not used: it has no float64, in which error rates and scores are computed.
    """
    if accelerator != "auto":
        return accelerator
    return "cuda" if torch.cuda.is_available() else "cpu"

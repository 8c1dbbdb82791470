"""Time of a step."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

MOST_ROUNDS = 1000


class Timing(NamedTuple):
    """Seconds of a step over `rounds` calls."""

    median: float
    shortest: float
    longest: float
    rounds: int


def interleaved(
    steps: Mapping[str, Callable[[], Any]], repeats: int, seconds: float, device: torch.device
) -> dict[str, Timing]:
    """Time all steps in turn, A B C A B C …, so that a busy moment of the machine meets all of them.

    At least `repeats` rounds, and more until `seconds` have passed. The steps have been called before.

    Raises:
        ValueError: `repeats` is below 1.
    """
    if repeats < 1:
        raise ValueError(f"repeats: must be at least 1, got {repeats}")
    taken: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    start = time.perf_counter()
    for done in range(MOST_ROUNDS):
        if done >= repeats and time.perf_counter() - start > seconds:
            break
        for name, step in steps.items():
            taken[name].append(_once(step, device))
    return {name: Timing(statistics.median(t), min(t), max(t), len(t)) for name, t in taken.items()}


def _once(step: Callable[[], Any], device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        step()
        return time.perf_counter() - began
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    step()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last)) / 1000

"""How long one answer takes, and how many a second there can be."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from capsella.data import ImageSet
from capsella.errors import ArgumentError, check_argument, check_minimum, not_negative
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.inference import inference

LEAST_CALLS = 100
"""Fewer have no 99th percentile."""
BLOCK = 10
"""Calls of one backend in a row."""
WARM_UP = 3
"""Untimed calls before each block: they bring weights back into the caches, and outlast the threads of the backend
before, which wait for more work on the same cores for some milliseconds."""


@dataclass(frozen=True)
class Latency:
    """Milliseconds of single calls: percentiles over `calls`, interpolated linearly between neighbours.

    p99: None of fewer than 100 calls.
    """

    p50: float
    p95: float
    p99: float | None
    calls: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Latency":
        """Percentiles of the times of single calls.

        Raises:
            ValueError: no call.
        """
        if not len(seconds):
            raise ArgumentError("seconds", "be of at least one call", None)
        p50, p95, p99 = (1000 * float(p) for p in np.percentile(seconds, [50, 95, 99]))
        return cls(p50, p95, p99 if len(seconds) >= LEAST_CALLS else None, len(seconds))


@dataclass(frozen=True)
class Throughput:
    """Images a second at the batch size that had most."""

    images_per_second: float
    batch_size: int


def latencies(
    steps: Mapping[str, Callable[[], Any]], calls: int = 200, warm_up: int = WARM_UP, most_seconds: float | None = None
) -> dict[str, Latency]:
    """Time all steps in turn, in blocks A…A B…B A…A …, so that a busy moment of the machine meets all of them.

    Args:
        steps: called without arguments. They have been called before: compilation is no latency.
        calls: timed calls of each, rounded up to whole blocks of 10.
        warm_up: untimed calls before each block.
        most_seconds: a step whose timed calls took so long has no more blocks, and maybe fewer calls than asked for.

    Raises:
        ValueError: fewer than 100 calls, a negative warm-up, seconds that are not positive.
    """
    check_argument(calls >= LEAST_CALLS, f"be at least {LEAST_CALLS} for a 99th percentile", calls=calls)
    not_negative(warm_up=warm_up)
    check_argument(most_seconds is None or most_seconds > 0, "be positive", most_seconds=most_seconds)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()  # a collection is Python's, at a moment of its own choice, and would be one backend's p99
    try:
        for _ in range(-(-calls // BLOCK)):
            for name, step in steps.items():
                if most_seconds is not None and sum(taken[name]) >= most_seconds:
                    continue
                for _ in range(warm_up):
                    step()
                taken[name] += [timed(step) for _ in range(BLOCK)]
    finally:
        if enabled:
            gc.enable()
    return {name: Latency.of(seconds) for name, seconds in taken.items()}


def network_latencies(models: Mapping[str, ImageClassifier], images: ImageSet) -> dict[str, Latency]:
    """Times of one image a call, from pixels to class activations, all networks in turn; decoders are not asked."""
    pixels = images.images[:1].float() / 255

    def step(model: ImageClassifier) -> object:
        return model.encode(pixels) if isinstance(model, CapsuleClassifier) else model(pixels)

    with ExitStack() as modes:  # to enter them takes as long as a small network's call, and is no part of it
        for model in models.values():
            modes.enter_context(inference(model))
            step(model)
        return latencies({name: partial(step, model) for name, model in models.items()}, calls=LEAST_CALLS)


def best_throughput(
    step: Callable[[int], Any], batch_sizes: Sequence[int], calls: int = 5, most_seconds: float | None = None
) -> Throughput:
    """The best of increasing batch sizes, by the median of `calls` calls after an untimed one.

    Stops at the second size in a row that is not better: larger batches only leave the caches further; and before a
    size that would take more than `most_seconds` at the best rate so far.

    Raises:
        ValueError: no batch sizes, fewer than one call, seconds that are not positive.
    """
    check_argument(most_seconds is None or most_seconds > 0, "be positive", most_seconds=most_seconds)
    sizes = list(batch_sizes)
    check_argument(bool(sizes) and min(sizes) >= 1, "be at least one number of at least 1", batch_sizes=sizes)
    check_minimum(1, calls=calls)
    best, not_better = Throughput(0.0, 0), 0
    for size in sorted(batch_sizes):
        if most_seconds is not None and (calls + 1) * size > most_seconds * best.images_per_second > 0:
            break
        step(size)
        rate = size / float(np.median([timed(lambda: step(size)) for _ in range(calls)]))  # noqa: B023  called here
        if rate > best.images_per_second:
            best, not_better = Throughput(rate, size), 0
        else:
            not_better += 1
        if not_better == 2:
            break
    return best


def timed(step: Callable[[], Any]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    step()
    return time.perf_counter() - began

"""Stopwatch: steps timed in turn, latencies of single images, throughput, and times of training batches."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from capsella.errors import CapsellaError, check_argument, check_minimum
from capsella.losses import LossOptions, total_loss
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.inference import inference, optimize_for_inference

MIN_CALLS = 100  # fewer have no 99th percentile
BLOCK = 10  # calls of one step in a row, where latencies are measured
# Untimed calls before each block bring weights back into the caches. They also outlast the threads of the previous
# step, which wait on the same cores for more work for some milliseconds.
WARM_UP = 3
MAX_ROUNDS = 1000
CPU = torch.device("cpu")


class Timing(NamedTuple):
    """The time of a step in seconds, over `rounds` calls."""

    median: float
    shortest: float
    longest: float
    rounds: int


@dataclass(frozen=True)
class Latency:
    """Percentiles of the time of single calls in milliseconds, interpolated linearly. calls: number of calls.

    p99: None for fewer than 100 calls.
    """

    p50: float
    p95: float
    p99: float | None
    calls: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Latency":
        """Compute percentiles of the times of at least one call."""
        p50, p95, p99 = (1000 * float(p) for p in np.percentile(seconds, [50, 95, 99]))
        return cls(p50, p95, p99 if len(seconds) >= MIN_CALLS else None, len(seconds))


class Throughput(NamedTuple):
    """The most images per second, and the batch size that reached it."""

    images_per_second: float
    batch_size: int


def timed(step: Callable[[], Any], device: torch.device = CPU) -> float:
    """Return the seconds of one call; on a GPU, until its work is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def time_in_turns(
    steps: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    block: int = 1,
    warm_up: int = 0,
    min_seconds: float = 0.0,
    max_seconds: float | None = None,
    device: torch.device = CPU,
) -> dict[str, list[float]]:
    """Time steps in turn, A…A B…B A…A …, so that a busy moment of the machine affects all of them.

    Args:
        steps: functions without arguments. Call each before, so that compilation is not timed.
        rounds: minimum number of rounds.
        block: timed calls of each step in a round.
        warm_up: untimed calls before each block.
        min_seconds: go on until this many seconds have passed, for up to 1,000 rounds.
        max_seconds: a step is skipped once its timed calls have taken this long.
        device: device that the steps compute on.

    Returns:
        The seconds of each timed call, by step.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()  # a garbage collection during one step would set its 99th percentile
    try:
        start = time.perf_counter()
        for done in range(max(rounds, MAX_ROUNDS)):
            if done >= rounds and (min_seconds <= 0 or time.perf_counter() - start > min_seconds):
                break
            for name, step in steps.items():
                if max_seconds is not None and sum(seconds[name]) >= max_seconds:
                    continue
                for _ in range(warm_up):
                    step()
                seconds[name] += [timed(step, device) for _ in range(block)]
    finally:
        if enabled:
            gc.enable()
    return seconds


def timings(
    steps: Mapping[str, Callable[[], Any]], repeats: int, seconds: float, device: torch.device = CPU
) -> dict[str, Timing]:
    """Time steps in turn, A B C A B C …, for at least `repeats` rounds and until `seconds` have passed."""
    check_minimum(1, repeats=repeats)
    taken = time_in_turns(steps, repeats, min_seconds=seconds, device=device)
    return {name: Timing(float(np.median(t)), min(t), max(t), len(t)) for name, t in taken.items()}


def latencies(
    steps: Mapping[str, Callable[[], Any]], calls: int = 200, max_seconds: float | None = None
) -> dict[str, Latency]:
    """Time steps in turn, in blocks of 10 calls.

    Args:
        steps: see `time_in_turns`.
        calls: timed calls of each step, at least 100, rounded up to whole blocks.
        max_seconds: a step whose timed calls took this long may have fewer calls.
    """
    check_argument(calls >= MIN_CALLS, f"be at least {MIN_CALLS} for a 99th percentile", calls=calls)
    check_argument(max_seconds is None or max_seconds > 0, "be positive", max_seconds=max_seconds)
    taken = time_in_turns(steps, -(-calls // BLOCK), block=BLOCK, warm_up=WARM_UP, max_seconds=max_seconds)
    return {name: Latency.of(seconds) for name, seconds in taken.items()}


def network_latencies(models: Mapping[str, ImageClassifier]) -> dict[str, Latency]:
    """Time one image per call, from pixels to class activations without a decoder, all networks in turn."""

    def step(model: ImageClassifier) -> object:
        pixels = torch.full((1, model.channels, *model.image_size), 0.5)
        return model.encode(pixels) if isinstance(model, CapsuleClassifier) else model(pixels)

    with ExitStack() as modes:  # entering them takes as long as a call of a small network, and is not timed
        for model in models.values():
            modes.enter_context(inference(model))
            step(model)
        return latencies({name: partial(step, model) for name, model in models.items()}, calls=MIN_CALLS)


def best_throughput(
    step: Callable[[int], Any], batch_sizes: Sequence[int], max_seconds: float | None = None
) -> Throughput:
    """Find the best of increasing batch sizes, by the median of 5 calls after an untimed one.

    The search stops at the second size in a row that is not better, since larger batches only leave the caches further,
    and before a size that would take more than `max_seconds` at the best rate so far.
    """
    best, not_better = Throughput(0.0, 0), 0
    for size in sorted(batch_sizes):
        if not_better == 2 or (max_seconds is not None and 6 * size > max_seconds * best.images_per_second > 0):
            break
        step(size)
        rate = size / float(np.median([timed(partial(step, size)) for _ in range(5)]))
        not_better = 0 if rate > best.images_per_second else not_better + 1
        best = max(best, Throughput(rate, size))
    return best


# Training batches


class ExecutionTime(NamedTuple):
    """The time of a batch in one network, in seconds. backward: with loss and gradients, else only the forward pass."""

    network: str
    batch: int
    backward: bool
    timing: Timing


def execution_times(
    networks: Mapping[str, ImageClassifier],
    batch_sizes: Sequence[int] = (1, 5),
    *,
    repeats: int = 7,
    seconds: float = 2.0,
) -> list[ExecutionTime]:
    """Time networks in turn on random images: forward, and forward with loss and backward, at each batch size.

    Forslöv 2018, Table 5, times both passes together at batch 5; an instrument only runs the forward pass at batch 1.
    The forward pass runs as predictions do, optimised for inference and without gradients, with the decoder if there is
    one. The backward pass follows the margin loss, or cross-entropy for a network with logits; the optimizer's step is
    not timed.

    Args:
        networks: networks by name, on the CPU; they get gradients.
        batch_sizes: images per batch.
        repeats, seconds: see `timings`, for each batch size and pass.

    Raises:
        CapsellaError: a network cannot run a batch of that size.
    """
    rows = []
    for batch in batch_sizes:
        for backward in (False, True):
            steps = {name: _warm_step(network, batch, backward) for name, network in networks.items()}
            timed_steps = timings(steps, repeats, seconds)
            rows += [ExecutionTime(name, batch, backward, timing) for name, timing in timed_steps.items()]
    return rows


def _warm_step(network: ImageClassifier, batch: int, backward: bool) -> Callable[[], object]:
    """Return a function that runs one pass, after two calls: memory is then allocated, kernels are chosen."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, network.channels, *network.image_size, generator=generator)
    labels = torch.randint(len(network.classes), (batch,), generator=generator)
    fast = network if backward else optimize_for_inference(network)

    def forward() -> object:
        with torch.inference_mode():
            return fast(images)

    def forward_backward() -> None:
        network.train()
        network.zero_grad(set_to_none=True)
        output = network(images, labels)
        loss = LossOptions(name="margin" if output.logits is None else "cross_entropy")
        total_loss(output, images, labels, loss).total.backward()

    step = forward_backward if backward else forward
    try:
        step()
        step()
    except ValueError as error:  # batch normalisation, for one image whose map is one pixel
        raise CapsellaError(f"{network.name}: cannot run a batch of {batch}: {error}") from error
    return step

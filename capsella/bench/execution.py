"""How long networks take: forward, and forward with backward (Forslöv 2018, §8.4, Table 5), timed in turn."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from rich.table import Table

from capsella.bench.latency import timed
from capsella.environment import environment
from capsella.errors import ArgumentError, CapsellaError, check_argument, check_minimum, unknown_name
from capsella.losses import LossOptions, total_loss
from capsella.models import ImageClassifier
from capsella.models.inference import optimize_for_inference

MOST_ROUNDS = 1000
WARM_UP = 2  # calls before the clock starts: memory is allocated, kernels are compiled or chosen


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
    check_minimum(1, repeats=repeats)
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
        return timed(step)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    step()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last)) / 1000


@dataclass(frozen=True)
class ExecutionTime:
    """Seconds of a batch through one network. backward: with loss and gradients, else the forward pass alone."""

    network: str
    decoder: bool
    image_size: tuple[int, int]
    channels: int
    batch: int
    backward: bool
    timing: Timing


@dataclass(frozen=True)
class ExecutionTimes:
    """The times of several networks on one device.

    threads: of the processor, used by PyTorch. base: the network that the others are compared with.
    """

    device: str
    threads: int
    base: str
    rows: tuple[ExecutionTime, ...]

    def ratio(self, row: ExecutionTime) -> float:
        """How many times as long as the base network takes for the same."""
        (base,) = (one for one in self.rows if (one.network, *_case(one)) == (self.base, *_case(row)))
        return row.timing.median / base.timing.median

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; times in seconds."""
        return {
            "device": self.device,
            "threads": self.threads,
            "base": self.base,
            "environment": environment(),
            "rows": [
                {**asdict(row), "timing": row.timing._asdict(), "times_as_long_as_base": self.ratio(row)}
                for row in self.rows
            ],
        }

    def table(self) -> Table:
        """For a terminal: a row a network, medians in milliseconds a batch, and × how long the base takes below."""
        where = f"{self.device}, {self.threads} thread{'s' if self.threads > 1 else ''}"
        table = Table(title=f"ms a batch, × {self.base}; {where}", title_justify="left", show_lines=True, padding=0)
        table.add_column("network", overflow="fold")
        cases = list(dict.fromkeys(map(_case, self.rows)))
        for batch, backward in cases:
            passes = "forward\n+ backward" if backward else "forward"
            table.add_column(f"batch {batch}\n{passes}", justify="right")
        by_case = {(row.network, *_case(row)): row for row in self.rows}
        for network in dict.fromkeys(row.network for row in self.rows):
            rows = [by_case[network, *case] for case in cases]
            table.add_row(network, *(f"{1e3 * row.timing.median:.1f}\n× {self.ratio(row):.2f}" for row in rows))
        return table


def execution_times(
    networks: Mapping[str, ImageClassifier],
    batch_sizes: Sequence[int] = (1, 5),
    *,
    base: str | None = None,
    repeats: int = 7,
    seconds: float = 2.0,
    device: torch.device | str = "cpu",
) -> ExecutionTimes:
    """Time networks in turn on random images: forward, and forward with loss and backward, at each batch size.

    Forslöv 2018, Table 5, has batch 5 and both passes together; an instrument has batch 1 and the forward pass alone.
    Forward is timed as predictions run, `packed`, without gradients; a decoder, where there is one, is part of it.
    Backward follows the margin loss, or cross-entropy for a network with logits; the optimizer's step is not timed.

    Args:
        networks: by the name they are shown under; they are moved to the device, and get gradients.
        batch_sizes: images a batch.
        base: the network that the others are compared with; None takes the first.
        repeats, seconds: so many rounds at least, and more until so many seconds have passed, for each batch and pass.
        device: where to compute.

    Raises:
        ValueError: no networks, a base that is none of them, a batch size or `repeats` below 1, a device not there.
        CapsellaError: a network cannot run a batch of that size.
    """
    base = _check(networks, batch_sizes, base, repeats)
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device", "be there on this machine", place)
    rows = []
    for batch in batch_sizes:
        for backward in (False, True):
            steps = {name: _warm_step(network.to(place), batch, backward, place) for name, network in networks.items()}
            for name, timing in interleaved(steps, repeats, seconds, place).items():
                one = networks[name]
                rows.append(ExecutionTime(name, one.has_decoder, one.image_size, one.channels, batch, backward, timing))
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else str(environment()["cpu"])
    return ExecutionTimes(f"{place.type} ({name})", torch.get_num_threads(), base, tuple(rows))


def _case(row: ExecutionTime) -> tuple[int, bool]:
    return row.batch, row.backward


def _warm_step(network: ImageClassifier, batch: int, backward: bool, device: torch.device) -> Callable[[], object]:
    """One pass, called before."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, network.channels, *network.image_size, generator=generator).to(device)
    labels = torch.randint(len(network.classes), (batch,), generator=generator).to(device)

    quick = network if backward else optimize_for_inference(network)

    def forward() -> object:
        with torch.inference_mode():
            return quick(images)

    def forward_backward() -> None:
        network.train()
        network.zero_grad(set_to_none=True)
        output = network(images, labels)
        loss = LossOptions(name="margin" if output.logits is None else "cross_entropy")
        total_loss(output, images, labels, loss).total.backward()

    step = forward_backward if backward else forward
    try:
        for _ in range(WARM_UP):
            step()
    except ValueError as error:  # batch normalisation, of one image whose map is one pixel
        passes = "forward and backward" if backward else "forward"
        raise CapsellaError(f"{network.name}: cannot run {passes} on a batch of {batch}: {error}") from error
    return step


def _check(networks: Mapping[str, ImageClassifier], batch_sizes: Sequence[int], base: str | None, repeats: int) -> str:
    """The base network's name."""
    if not networks:
        raise ArgumentError("networks", "hold at least one network", None)
    different = len(set(batch_sizes)) == len(batch_sizes) > 0 and min(batch_sizes) >= 1
    check_argument(different, "be different numbers of at least 1", batch_sizes=list(batch_sizes))
    check_minimum(1, repeats=repeats)
    if base is None:
        return next(iter(networks))
    if base not in networks:
        raise unknown_name("base", base, networks)
    return base

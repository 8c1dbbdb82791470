"""Times of batches: forward, and forward with backward (Forslöv 2018, §8.4, Table 5), all networks in turn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.table import Table

from capsella.bench.stopwatch import Timing, timings
from capsella.environment import environment
from capsella.errors import ArgumentError, CapsellaError, check_argument, check_minimum, pluralize, unknown_name
from capsella.losses import LossOptions, total_loss
from capsella.models import ImageClassifier
from capsella.models.inference import optimize_for_inference

WARM_UP = 2  # untimed calls: memory is allocated, kernels are compiled or chosen


@dataclass(frozen=True)
class ExecutionTime:
    """The time of a batch in one network, in seconds. backward: with loss and gradients, else only the forward pass."""

    network: str
    decoder: bool
    image_size: tuple[int, int]
    channels: int
    batch: int
    backward: bool
    timing: Timing

    @property
    def case(self) -> tuple[int, bool]:
        """The batch size, and whether the backward pass is included."""
        return self.batch, self.backward


@dataclass(frozen=True)
class ExecutionTimes:
    """The times of several networks on one device.

    threads: CPU threads that PyTorch used. base: the network that the others are compared with.
    """

    device: str
    threads: int
    base: str
    rows: tuple[ExecutionTime, ...]

    def ratio(self, row: ExecutionTime) -> float:
        """Return a row's median time divided by that of the base network."""
        (base,) = (other for other in self.rows if (other.network, other.case) == (self.base, row.case))
        return row.timing.median / base.timing.median

    def to_dict(self) -> dict[str, Any]:
        """Return all times in seconds, ready for JSON."""
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
        """Return a table with a row per network: median milliseconds per batch, and the ratio to the base network."""
        where = f"{self.device}, {pluralize(self.threads, 'thread')}"
        table = Table(title=f"ms per batch, × {self.base}; {where}", title_justify="left", show_lines=True, padding=0)
        table.add_column("network", overflow="fold")
        cases = list(dict.fromkeys(row.case for row in self.rows))
        for batch, backward in cases:
            passes = "forward\n+ backward" if backward else "forward"
            table.add_column(f"batch {batch}\n{passes}", justify="right")
        by_case = {(row.network, row.case): row for row in self.rows}
        for network in dict.fromkeys(row.network for row in self.rows):
            rows = [by_case[network, case] for case in cases]
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

    Forslöv 2018, Table 5, times both passes together at batch 5; an instrument only runs the forward pass at batch 1.
    The forward pass runs as predictions do, optimised for inference and without gradients, with the decoder if there is
    one. The backward pass follows the margin loss, or cross-entropy for a network with logits; the optimizer's step is
    not timed.

    Args:
        networks: networks by the name to show; they are moved to the device, and get gradients.
        batch_sizes: images per batch.
        base: network that the others are compared with; default: the first.
        repeats, seconds: see `timings`, for each batch size and pass.
        device: where to compute.

    Raises:
        ArgumentError: no networks, an unknown base, a batch size or `repeats` below 1, a device that is not there.
        CapsellaError: a network cannot run a batch of that size.
    """
    if not networks:
        raise ArgumentError("networks", "hold at least one network", None)
    different = len(set(batch_sizes)) == len(batch_sizes) > 0 and min(batch_sizes) >= 1
    check_argument(different, "be different numbers of at least 1", batch_sizes=list(batch_sizes))
    check_minimum(1, repeats=repeats)
    base = next(iter(networks)) if base is None else base
    if base not in networks:
        raise unknown_name("base", base, networks)
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device", "be available on this machine", place)
    rows = []
    for batch in batch_sizes:
        for backward in (False, True):
            steps = {name: _warm_step(network.to(place), batch, backward, place) for name, network in networks.items()}
            for name, timing in timings(steps, repeats, seconds, place).items():
                network = networks[name]
                shape = (network.has_decoder, network.image_size, network.channels)
                rows.append(ExecutionTime(name, *shape, batch, backward, timing))
    processor = torch.cuda.get_device_name(place) if place.type == "cuda" else str(environment()["cpu"])
    return ExecutionTimes(f"{place.type} ({processor})", torch.get_num_threads(), base, tuple(rows))


def _warm_step(network: ImageClassifier, batch: int, backward: bool, device: torch.device) -> Callable[[], object]:
    """Return a function that runs one pass, after `WARM_UP` calls of it."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, network.channels, *network.image_size, generator=generator).to(device)
    labels = torch.randint(len(network.classes), (batch,), generator=generator).to(device)
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
        for _ in range(WARM_UP):
            step()
    except ValueError as error:  # batch normalisation, for one image whose map is one pixel
        passes = "forward and backward" if backward else "forward"
        raise CapsellaError(f"{network.name}: cannot run {passes} on a batch of {batch}: {error}") from error
    return step

"""`capsella bench`."""

import json
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from capsella.cli.flags import parse, positional
from capsella.cli.screen import console, show
from capsella.errors import check_minimum
from capsella.files import write_json

if TYPE_CHECKING:
    from capsella.bench import Bench as Measured


@dataclass(frozen=True, kw_only=True)
class BenchCommon:
    """Measure the speed of networks on this machine.

    Times single images (p50, p95, p99) and batches in every backend on the CPU.
    With --training, times forward and backward passes instead.
    """

    networks: Annotated[tuple[str, ...], *positional("RUN|MODEL…", "Runs, models, or patterns of models such as '*'.")]
    training: bool = False
    """Time forward passes, and forward with backward passes, of random images."""
    backends: tuple[str, ...] = ()
    """Backends to time. Default: all that are installed."""
    batch: tuple[int, ...] = (1, 5)
    """With --training: batch sizes."""
    size: int | None = None
    """With --training: height and width of a model's images in pixels. Default: as published."""
    threads: int | None = None
    """CPU threads. Default: PyTorch's choice."""
    json: bool = False
    """Print JSON instead of tables."""
    out: Path | None = None
    """JSON file, written after each network."""


@dataclass(frozen=True, kw_only=True)
class Bench(BenchCommon):
    """All flags."""

    calls: int = 200
    """Timed calls per backend, at least 100."""
    seconds: float | None = None
    """Stop timing a backend after this many seconds. With --training: time each case for this long (default 2)."""
    channels: int | None = None
    """With --training: channels of a model's images. Default: as published."""
    classes: int | None = None
    """With --training: number of classes of a model. Default: as published."""
    decoder: Literal["both", "with", "without"] = "both"
    """With --training: time networks with their decoder, without it, or both."""
    accelerator: Literal["cpu", "cuda"] = "cpu"
    """With --training: the device."""

    def __post_init__(self) -> None:
        check_minimum(1, threads=self.threads)


def run(arguments: list[str]) -> None:
    """Measure and print."""
    options = parse(Bench, arguments, "bench")

    import torch

    from capsella.bench import BACKENDS, bench_networks, execution_times
    from capsella.bench.subjects import load_with_images, network_names, with_decoders

    names = network_names(options.networks)
    if options.training:
        torch.set_num_threads(options.threads or torch.get_num_threads())
        sizes = {"image_size": options.size, "channels": options.channels, "classes": options.classes}
        given = {name: value for name, value in sizes.items() if value is not None}
        networks, seconds = with_decoders(names, options.decoder, given), options.seconds or 2.0
        times = execution_times(networks, options.batch, seconds=seconds, device=options.accelerator)
        values = times.to_dict()
        if not options.json:
            show(times.table())
        if options.out is not None:
            write_json(options.out, values)
    else:
        backends, threads = options.backends or tuple(BACKENDS), options.threads or torch.get_num_threads()
        values = bench_networks(
            {name: partial(load_with_images, name) for name in names},
            {"backends": backends, "threads": threads, "calls": options.calls, "max_seconds": options.seconds},
            command=shlex.join(["capsella", "bench", *arguments]),
            out=options.out,
            console=console(stderr=True) if len(names) > 1 else None,
            show=(lambda *_: None) if options.json else _print,
        )
    if options.json:
        print(json.dumps(values, indent=2))


def _print(result: "Measured", images: str) -> None:
    from capsella.bench import BACKENDS

    show(result.table())
    print(f"timed on {images}; difference: largest difference of any activation from PyTorch")
    for name, reason in result.unavailable.items():
        print(f"{BACKENDS[name]}: not measured, {reason}")

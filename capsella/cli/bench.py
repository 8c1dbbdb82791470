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
    """Measure how long networks take on this machine.

    One image (p50, p95, p99) and the best batch in every backend on the CPU;
    with --training, batches forward, and forward with backward.
    """

    networks: Annotated[tuple[str, ...], *positional("RUN|MODEL…", "Runs, models, or patterns of models; '*' is all.")]
    training: bool = False
    """Time batches of random images, forward and with backward, in turn."""
    backends: tuple[str, ...] = ()
    """Backends to time. Default: all; those that are not installed are listed."""
    batch: tuple[int, ...] = (1, 5)
    """With --training: batch sizes."""
    size: int | None = None
    """With --training: pixels a side of models' images. Default: as published."""
    threads: int | None = None
    """Threads. Default: PyTorch's choice."""
    json: bool = False
    """Print JSON instead of tables."""
    out: Path | None = None
    """Also write JSON to this file, after each network."""


@dataclass(frozen=True, kw_only=True)
class Bench(BenchCommon):
    """All flags."""

    calls: int = 200
    """Calls to time in each backend, at least 100; with --training at least 7 are timed, for --seconds."""
    seconds: float | None = None
    """Stop timing a backend after this many seconds. With --training: time each case for this long (default 2)."""
    channels: int | None = None
    """With --training: channels of models' images. Default: as published."""
    classes: int | None = None
    """With --training: number of classes of models. Default: as published."""
    decoder: Literal["both", "with", "without"] = "both"
    """With --training: networks with their decoder, without it, or both."""
    accelerator: Literal["cpu", "cuda"] = "cpu"
    """With --training: where to compute."""

    def __post_init__(self) -> None:
        check_minimum(1, threads=self.threads)


def run(arguments: list[str]) -> None:
    """Measure and print."""
    options = parse(Bench, arguments, "bench")
    if options.training:
        _time_training(options)
    else:
        _time_backends(options, shlex.join(["capsella", "bench", *arguments]))


def _time_backends(options: Bench, command: str) -> None:
    import torch

    from capsella.bench import BACKENDS, bench_networks
    from capsella.bench.subjects import networks_of, with_images

    backends = options.backends or tuple(BACKENDS)
    names, threads = networks_of(options.networks), options.threads or torch.get_num_threads()
    values = bench_networks(
        {name: partial(with_images, name) for name in names},
        {"backends": backends, "threads": threads, "calls": options.calls, "max_seconds": options.seconds},
        command=command,
        out=options.out,
        console=console(stderr=True) if len(names) > 1 else None,
        show=(lambda *_: None) if options.json else _print,
    )
    if options.json:
        print(json.dumps(values, indent=2))


def _print(result: "Measured", images: str) -> None:
    from capsella.bench import BACKENDS

    show(result.table())
    print(f"timed on {images}; difference: the largest in any activation from PyTorch")
    for name, reason in result.unavailable.items():
        print(f"{BACKENDS[name]}: not measured, {reason}")


def _time_training(options: Bench) -> None:
    import torch

    from capsella.bench import execution_times
    from capsella.bench.subjects import networks_of, with_decoders

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    sizes = {"image_size": options.size, "channels": options.channels, "classes": options.classes}
    given = {name: value for name, value in sizes.items() if value is not None}
    networks = with_decoders(networks_of(options.networks), options.decoder, given)
    seconds = 2.0 if options.seconds is None else options.seconds
    times = execution_times(networks, options.batch, seconds=seconds, device=options.accelerator)
    if options.json:
        print(json.dumps(times.to_dict(), indent=2))
    else:
        show(times.table())
    if options.out is not None:
        write_json(options.out, times.to_dict())

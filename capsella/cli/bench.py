"""`capsella bench`."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsella.cli.flags import parse, positional
from capsella.cli.screen import show
from capsella.errors import check_minimum

if TYPE_CHECKING:
    from capsella.bench import Bench as Measured


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure the speed of networks on this machine.

    Times single images (p50, p95, p99) and batches in every backend on the CPU.
    """

    networks: Annotated[tuple[str, ...], *positional("RUN|MODEL…", "Runs, models, or patterns of models such as '*'.")]
    backends: tuple[str, ...] = ()
    """Backends to time. Default: all that are installed."""
    threads: int | None = None
    """CPU threads. Default: PyTorch's choice."""
    out: Path | None = None
    """JSON file, written after each network."""
    calls: int = 200
    """Timed calls per backend, at least 100."""
    seconds: float | None = None
    """Stop timing a backend after this many seconds."""

    def __post_init__(self) -> None:
        check_minimum(1, threads=self.threads)


def run(arguments: list[str]) -> None:
    """Measure and print."""
    options = parse(Bench, arguments, "bench")

    import torch

    from capsella.bench import BACKENDS, bench_networks, network_names

    backends, threads = options.backends or tuple(BACKENDS), options.threads or torch.get_num_threads()
    bench_networks(
        network_names(options.networks),
        {"backends": backends, "threads": threads, "calls": options.calls, "max_seconds": options.seconds},
        command=shlex.join(["capsella", "bench", *arguments]),
        out=options.out,
        show=_print,
    )


def _print(result: "Measured", images: str) -> None:
    from capsella.bench import BACKENDS

    show(result.table())
    print(f"timed on {images}; difference: largest difference of any activation from PyTorch")
    for name, reason in result.unavailable.items():
        print(f"{BACKENDS[name]}: not measured, {reason}")

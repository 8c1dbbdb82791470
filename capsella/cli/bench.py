"""`capsella bench`."""

import json
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from capsella.data import ImageSet, load_data, single_images
from capsella.export import bench
from capsella.export.networks import Subject, bench_networks
from capsella.models import create_model, list_models
from capsella.training import load_run


@dataclass(frozen=True)
class Bench:
    """Latency of one image (p50, p95, p99) and the best throughput on the CPU, in every backend that is installed."""

    networks: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL…")]
    """Folders of runs, timed on their training images, and registered networks, with fresh weights and random images;
    a pattern is every network that it matches, and '*' all."""
    backends: tuple[str, ...] = tuple(bench.BACKENDS)
    """Which."""
    threads: int | None = None
    """Of each backend; default: as many as PyTorch takes (OMP_NUM_THREADS, or the cores)."""
    calls: int = 200
    """Timed calls of each backend with one image; at least 100."""
    seconds: float | None = None
    """Stop timing a backend after so many seconds, with fewer calls; below 100 there is no p99."""
    json: bool = False
    """Print JSON instead of tables."""
    out: Path | None = None
    """Where the JSON goes, if anywhere; written after each network."""
    resume: bool = False
    """Keep the networks that the file holds already, and measure the others."""


def run(arguments: list[str]) -> None:
    """Measure and print."""
    options = tyro.cli(Bench, args=arguments, prog="capsella bench")
    if options.resume and options.out is None:
        raise ValueError("resume: must come with --out, the file to go on with")
    names = _names(options.networks)
    console = Console(highlight=False, soft_wrap=True)
    values = bench_networks(
        {name: partial(_model_and_images, name) for name in names},
        {
            "backends": options.backends,
            "threads": options.threads or torch.get_num_threads(),
            "calls": options.calls,
            "most_seconds": options.seconds,
        },
        command=shlex.join(["capsella", "bench", *arguments]),
        out=options.out,
        resume=options.resume,
        console=Console(stderr=True, highlight=False) if len(names) > 1 else None,
        show=(lambda *_: None) if options.json else partial(_print, console),
    )
    if options.json:
        print(json.dumps(values, indent=2))


def _names(words: tuple[str, ...]) -> list[str]:
    """Every run and network once, in the order given."""
    names: list[str] = []
    for word in words:
        is_pattern = not Path(word).is_dir() and any(sign in word for sign in "*?[")
        found = list_models(word) if is_pattern else [word]
        if not found:
            raise ValueError(f"networks: must match a registered network, got {word!r}; `capsella models` lists them")
        names += found
    if not names:
        raise ValueError("networks: must name at least one run or network")
    return list(dict.fromkeys(names))


def _print(console: Console, result: bench.Bench, images: str) -> None:
    console.print(result.table())
    console.print(f"timed on {images}; difference: the largest of any activation from PyTorch's", markup=False)
    for name, reason in result.unavailable.items():
        console.print(f"{bench.BACKENDS[name]}: not measured, {reason}", markup=False)


def _model_and_images(name: str) -> Subject:
    if Path(name).is_dir():
        trained = load_run(name)
        images = single_images(load_data(trained.recipe.data).train, "benchmarks")
        return trained.model, images, f"training images of {trained.name}"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = create_model(name)
        pixels = torch.randint(256, (64, model.channels, *model.image_size), dtype=torch.uint8)
    return model, ImageSet(pixels, torch.zeros(64, dtype=torch.long), model.classes), "random images, fresh weights"

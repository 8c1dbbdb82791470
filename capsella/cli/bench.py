"""`capsella bench`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from capsella.data import ImageSet, load_data, single_images
from capsella.export.bench import BACKENDS, bench
from capsella.files import write_json
from capsella.models import ImageClassifier, create_model
from capsella.training import load_run
from capsella.training.environment import environment


@dataclass(frozen=True)
class Bench:
    """Latency of one image (p50, p95, p99) and the best throughput on the CPU, in every backend that is installed."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL")]
    """Folder of a run, timed on its training images, or a registered network, with fresh weights and random images."""
    backends: tuple[str, ...] = tuple(BACKENDS)
    """Which."""
    threads: int | None = None
    """Of each backend; default: as many as PyTorch takes (OMP_NUM_THREADS, or the cores)."""
    calls: int = 200
    """Timed calls of each backend with one image; at least 100."""
    json: bool = False
    """Print JSON instead of the table."""
    out: Path | None = None
    """Where the JSON goes, if anywhere."""


def run(arguments: list[str]) -> None:
    """Measure and print."""
    options = tyro.cli(Bench, args=arguments, prog="capsella bench")
    model, images, shown = _model_and_images(options.model)
    result = bench(model, images, backends=options.backends, threads=options.threads, calls=options.calls)
    values = {**result.to_dict(), "images": shown, "environment": {**environment(), "threads": result.threads}}
    if options.out is not None:
        write_json(options.out, values)
    if options.json:
        print(json.dumps(values, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(result.table())
    console.print(f"timed on {shown}; difference: the largest of any activation from PyTorch's", markup=False)
    for name, reason in result.unavailable.items():
        console.print(f"{BACKENDS[name]}: not measured, {reason}", markup=False)


def _model_and_images(name: str) -> tuple[ImageClassifier, ImageSet, str]:
    if Path(name).is_dir():
        trained = load_run(name)
        images = single_images(load_data(trained.recipe.data).train)
        return trained.model, images, f"training images of {trained.name}"
    model = create_model(name)
    pixels = torch.randint(256, (64, model.channels, *model.image_size), dtype=torch.uint8)
    return model, ImageSet(pixels, torch.zeros(64, dtype=torch.long), model.classes), "random images, fresh weights"

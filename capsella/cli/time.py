"""`capsella time`."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console

from capsella.evaluation import execution_times
from capsella.files import write_json
from capsella.models import ImageClassifier, create_model, list_models, model_function

DECODER = " + decoder"


@dataclass(frozen=True)
class Time:
    """Time networks in turn on random images: forward, and forward with backward, as medians.

    Networks start with fresh weights, each with its published image size, channels and classes unless these are given.
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL…")]
    """Registered networks, or shell patterns of them, as in 'sabour2017_*'."""
    batch: tuple[int, ...] = (1, 5)
    """Images a batch."""
    size: int | None = None
    """Pixels a side, for all networks."""
    channels: int | None = None
    """Channels of the images, for all networks."""
    classes: int | None = None
    """Number of classes, for all networks."""
    decoder: Literal["both", "with", "without"] = "both"
    """Networks that can have a decoder: timed with and without it, or only so."""
    base: str | None = None
    """What the others are compared with, as the table names it; default: the first."""
    repeats: int = 7
    """Rounds at least."""
    seconds: float = 2.0
    """More rounds until these have passed, for each batch size and pass."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to compute."""
    threads: int | None = None
    """Threads of the processor; default: PyTorch's choice."""
    out: Path | None = None
    """Also write the times as JSON."""


def run(arguments: list[str]) -> None:
    """Time, print, and write where asked."""
    options = tyro.cli(Time, args=arguments, prog="capsella time")
    if not options.models:
        raise ValueError("models: must name at least one network; `capsella models` lists them")
    if options.threads is not None:
        if options.threads < 1:
            raise ValueError(f"threads: must be at least 1, got {options.threads}")
        torch.set_num_threads(options.threads)
    asked = {"image_size": options.size, "channels": options.channels, "classes": options.classes}
    given = {key: value for key, value in asked.items() if value is not None}
    networks: dict[str, ImageClassifier] = {}
    for name in _names(options.models):
        networks |= _variants(name, given, options.decoder)
    if not networks:
        raise ValueError(f"decoder: none of {', '.join(options.models)} can have a decoder, got 'with'")
    times = execution_times(
        networks,
        options.batch,
        base=options.base,
        repeats=options.repeats,
        seconds=options.seconds,
        device=options.device,
    )
    console = Console(highlight=False)
    console.print(times.table())
    if options.out is not None:
        write_json(options.out, times.to_dict())
        console.print(f"written to {options.out}", soft_wrap=True, markup=False)


def _names(patterns: Sequence[str]) -> list[str]:
    names: dict[str, None] = {}
    for pattern in patterns:
        found = list_models(pattern)
        if not found:
            model_function(pattern)  # raises, with the nearest name
        names |= dict.fromkeys(found)
    return list(names)


def _variants(name: str, given: dict[str, Any], decoder: str) -> dict[str, ImageClassifier]:
    """The network without and with its decoder, of those that are asked for; a network that has none, as it is."""
    if "reconstruction" not in inspect.signature(model_function(name)).parameters:
        return {} if decoder == "with" else {name: create_model(name, **given)}
    variants = {}
    if decoder != "with":
        variants[name] = create_model(name, **given, reconstruction=False)
    if decoder != "without":
        variants[name + DECODER] = create_model(name, **given, reconstruction=True)
    return variants

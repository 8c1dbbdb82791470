"""Several networks, one after the other, each in every backend: a JSON that grows, and can be gone on with."""

import gc
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from capsella.bench.backends import Bench, bench
from capsella.data.images import ImageSet
from capsella.environment import environment
from capsella.errors import ArgumentError, CapsellaError
from capsella.files import write_json
from capsella.models import ImageClassifier

ONE_MEASUREMENT = ("cpu", "torch", "capsella", "commit")
"""What must be the same for times to stand in one file."""

Subject = tuple[ImageClassifier, ImageSet, str]
"""A network, the images that it is timed on, and what these are."""


def bench_networks(
    networks: Mapping[str, Callable[[], Subject]],
    settings: Mapping[str, Any],
    *,
    command: str,
    out: Path | None = None,
    resume: bool = False,
    console: Console | None = None,
    show: Callable[[Bench, str], None] = lambda result, images: None,
) -> dict[str, Any]:
    """Measure each network with `bench`; returns what `out` holds, JSON-ready.

    Args:
        networks: by name, each made when its turn comes, so that there is one in memory.
        settings: keywords of `bench`, the same for all.
        command, out: what makes the file, and the file, written after each network.
        resume: keep the networks that `out` holds already, if it is there.
        console: gets a line a network with the time left.
        show: called with each result and what its images are.

    Raises:
        ValueError: no networks; from `bench`.
        CapsellaError: `out` was measured with other settings, or is no such file.
    """
    if not networks:
        raise ArgumentError("networks", "hold at least one", None)
    wanted = json.loads(json.dumps(settings))
    done = _older(out, wanted) if resume and out is not None and out.exists() else {}
    values = {"command": command, "settings": wanted, "environment": environment(), "networks": done}
    waiting = [name for name in networks if name not in done]
    began = time.monotonic()
    for number, name in enumerate(waiting):
        left = (time.monotonic() - began) / number * (len(waiting) - number) / 60 if number else None
        _tell(console, name, len(networks) - len(waiting) + number + 1, len(networks), left)
        result, done[name] = _measure(networks[name], settings)
        values["environment"] = {**environment(), "threads": result.threads}
        show(result, done[name]["images"])
        if out is not None:
            write_json(out, values)
    return values


def _measure(make: Callable[[], Subject], settings: Mapping[str, Any]) -> tuple[Bench, dict[str, Any]]:
    model, images, shown = make()
    result = bench(model, images, **settings)
    torch._dynamo.reset()  # what torch.compile keeps of a network that is gone
    gc.collect()
    return result, {**result.to_dict(), "images": shown, "size": [model.channels, *model.image_size]}


def _tell(console: Console | None, name: str, number: int, total: int, minutes_left: float | None) -> None:
    left = "" if minutes_left is None else f", about {minutes_left:.1f} minutes left"
    if console is not None:
        console.print(f"{name}: network {number} of {total}{left}", markup=False)


def _older(out: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The networks in `out`, measured as they would be now: by the same settings, processor and programs."""
    try:
        older = json.loads(out.read_text(encoding="utf-8"))
        was, networks = older["settings"], older["networks"]
        machine = {name: older["environment"][name] for name in ONE_MEASUREMENT}
    except (ValueError, KeyError, TypeError) as error:
        raise CapsellaError(f"{out} is no file of capsella bench; choose another, or leave out --resume") from error
    for name, value in machine.items():
        if value != (now := environment()[name]):
            raise CapsellaError(
                f"{out} was measured with {name} {value}, not {now}: the times cannot stand in one file"
            )
    if differing := [key for key in settings if was.get(key) != settings[key]]:
        key = differing[0]
        raise CapsellaError(
            f"{out} was measured with {key} {was.get(key)}, not {settings[key]}; --resume needs the same"
        )
    return dict(networks)

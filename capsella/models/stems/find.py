"""Where a stem is: in a folder, in a run, on the Hugging Face hub, or a registered network with fresh weights."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from capsella.errors import ArgumentError, CapsellaError, check_minimum
from capsella.layers import EnlargeImages
from capsella.models.base import ImageClassifier, create_model, list_models
from capsella.models.saving import is_outline
from capsella.models.shapes import grid_after
from capsella.models.stems import backbones, runs
from capsella.models.stems.description import Kind, StemDescription
from capsella.models.stems.stem import Stem

FRESH_SIZES = 32, 64
"""A registered network as a fresh stem is made for images of the larger size if the images are as large, or else of the
smaller: its last layers are not needed, and those before take any size."""
LARGEST = 1024
"""Pixels on the shorter side to which images are enlarged at most."""


@dataclass(frozen=True)
class _Found:
    """A stem before the size of its images is settled. load: the network with its weights."""

    kind: Kind
    config: dict[str, Any]
    learned: bool
    channels: int
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    load: Callable[[], nn.Module]


def find_stem(
    stem: str, image_size: tuple[int, int], channels: int, stage: int | None = None, positions: int = 4
) -> tuple[StemDescription, nn.Module]:
    """A stem for images of a size.

    Args:
        stem: a folder with a backbone of `transformers`, a run, a registered network, or a name on the hub.
        image_size, channels: of the images.
        stage: of a backbone: see `backbones.settled`.
        positions: images are enlarged until the maps have so many rows and columns.

    Returns:
        Its description, and its network with its weights; on the meta device, without them.

    Raises:
        ValueError: `stem`, `stage` or `positions` is not as it must be, or the channels do not fit.
        CapsellaError: the stem is not there, damaged, or of a kind that is not known here.
    """
    check_minimum(2, positions=positions)
    grid_after(image_size, [])
    found = _find(stem, image_size, channels, stage, positions)
    size, maps = _geometry(found, image_size, positions)
    description = StemDescription(
        found.kind, found.config, found.learned, found.channels, found.mean, found.std, size, maps
    )
    return description, description.build() if is_outline() else found.load()


def _find(stem: str, image_size: tuple[int, int], channels: int, stage: int | None, positions: int) -> _Found:
    if stem and runs.is_saved(Path(stem)):
        return _of_run(Path(stem), stage)
    if (stem and Path(stem).is_dir()) or _may_be_on_hub(stem):
        config = backbones.settled(backbones.read_config(stem), stage, image_size, positions)
        count = config["num_channels"]
        mean, std = backbones.normalisation(stem, count)
        return _Found("backbone", config, True, count, mean, std, lambda: backbones.load(stem, config))
    if stem not in list_models():
        is_gone = "/" in stem and not Path(stem).exists()
        remedy = "; there is no such folder: put it back, or give another with --stem" if is_gone else ""
        raise ValueError(
            "stem: must be a name on the Hugging Face hub, a folder with a backbone, a run, or a registered network, "
            f"got {stem!r}{remedy or '; give one with --stem'}"
        )
    _no_stage(stage)
    size = FRESH_SIZES[min(image_size) >= FRESH_SIZES[1]]
    with torch.device("cpu"):
        model = create_model(stem, image_size=size, channels=channels, classes=2)
    config = runs.config_of(model)
    return _Found("network", config, False, channels, None, None, lambda: runs.stem_of(model))


def _of_run(folder: Path, stage: int | None) -> _Found:
    _no_stage(stage)
    with torch.device("cpu"):
        model = ImageClassifier.from_pretrained(folder)
    inner = next((module for module in model.modules() if isinstance(module, Stem)), None)
    if inner is not None:  # of a network that has a stem itself, the stem, as it was trained on
        old = inner.description
        return _Found(old.kind, dict(old.config), True, old.channels, old.mean, old.std, lambda: inner.network)
    config = runs.config_of(model)
    return _Found("network", config, True, model.channels, None, None, lambda: runs.stem_of(model))


def _no_stage(stage: int | None) -> None:
    if stage is not None:
        raise ArgumentError("stage", "be None, for this stem has no stages to choose from", stage)


def _may_be_on_hub(stem: str) -> bool:
    """Whether it has the form OWNER/NAME, and neither is here: beside other runs, a name is mistyped."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", stem) is not None and not Path(stem).parent.is_dir()


def _geometry(
    found: _Found, image_size: tuple[int, int], positions: int
) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """The size to which images are brought, and the shape of the maps.

    A backbone's are found without memory. That would make PyTorch import its compiler, which takes seconds; a network
    of capsella is there anyway.
    """
    device = "cpu" if found.kind == "network" else "meta"
    with torch.device(device), torch.no_grad():
        network = found.load() if found.kind == "network" else backbones.build(found.config)
        modes = [(module, module.training) for module in network.modules()]
        network.eval()
        least = min(image_size)
        while least <= LARGEST or least == min(image_size):
            size = EnlargeImages(image_size, least).size
            try:
                width, rows, columns = network(torch.zeros(1, found.channels, *size)).shape[1:]
            except (RuntimeError, ValueError) as error:  # too small for a kernel
                width = rows = columns = 0
                why = f": {error}"
            else:
                why = ""
            if min(rows, columns) >= positions:
                break
            least = max(least + 1, -(-least * positions // (min(rows, columns) + 1)))
        else:
            raise CapsellaError(
                f"stem: its maps must have {positions}×{positions} positions, but have {rows}×{columns} even for "
                f"images enlarged to {LARGEST} pixels{why}"
            )
    for module, training in modes:
        module.training = training
    return size, (width, rows, columns)

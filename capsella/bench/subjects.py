"""The networks to time: runs and models by name, with images and with or without their decoders."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from capsella.bench.backends import TimedNetwork
from capsella.data import ImageSet, load_data, single_images
from capsella.errors import ArgumentError, check_argument, near_names
from capsella.models import CapsuleClassifier, ImageClassifier, create_model, list_models, model_function
from capsella.training.trained import open_network


def network_names(words: Sequence[str]) -> list[str]:
    """Return run folders and model names, each once, in the order given; a word may be a pattern of model names."""
    names: list[str] = []
    for word in words:
        found = [word] if Path(word).is_dir() else list_models(word)
        if not found:
            raise ArgumentError("networks", "be runs or models", word, near_names(word, list_models()))
        names += found
    check_argument(bool(names), "name at least one run or model", networks=names)
    return list(dict.fromkeys(names))


def load_with_images(name: str) -> TimedNetwork:
    """Load a run with its training images, or create a model with random ones; return a description of these, too."""
    source = "random images"
    if Path(name).is_dir():
        model, run = open_network(Path(name))
        if run is not None:
            images = single_images(load_data(run.recipe.data).train, "benchmarks")
            return model, images, f"training images of {run.name}"
    else:
        source = "random images, fresh weights"
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = create_model(name)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (64, model.channels, *model.image_size), dtype=torch.uint8, generator=generator)
    return model, ImageSet(pixels, torch.zeros(64, dtype=torch.long), model.classes), source


def with_decoders(
    names: Sequence[str], decoder: Literal["both", "with", "without"], options: dict[str, Any]
) -> dict[str, ImageClassifier]:
    """Return each network with its decoder, without it, or both.

    Args:
        names: as `network_names` returns them.
        decoder: which versions to return.
        options: arguments of `create_model`, e.g. image_size; empty for runs.
    """
    made: dict[str, ImageClassifier] = {}
    for name in names:
        for has in {"both": (False, True), "with": (True,), "without": (False,)}[decoder]:
            network = _decoding(name, has, options)
            if network is not None:
                made[f"{name} + decoder" if has else name] = network
    check_argument(bool(made), "be both or without for these networks", decoder=decoder)
    return made


def _decoding(name: str, has: bool, options: dict[str, Any]) -> ImageClassifier | None:
    """Return the network with or without a decoder; None if it should have one but cannot."""
    if not Path(name).is_dir():
        if "reconstruction" in inspect.signature(model_function(name)).parameters:
            return create_model(name, **options, reconstruction=has)
        return None if has else create_model(name, **options)
    check_argument(not options, "be left out for a run", **options)
    model, _ = open_network(Path(name))
    if isinstance(model, CapsuleClassifier) and model.has_decoder:
        if not has:
            model.decoder = None  # the network was loaded only for this
        return model
    return None if has else model

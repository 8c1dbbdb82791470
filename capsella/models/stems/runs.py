"""Stems out of networks of capsella: of a trained run, or of a registered network with fresh weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from capsella.errors import check_argument
from capsella.layers import CropImages
from capsella.models.base import ImageClassifier, create_model


def is_saved(folder: Path) -> bool:
    """Whether a folder is a run, or what `save_pretrained` wrote."""
    return (folder / "model.json").exists()


def build(config: Mapping[str, Any]) -> nn.Module:
    """The stem of a registered network with fresh weights; `config` is its name and options.

    Raises:
        ValueError: the network has a stem of another one, or cannot be made.
        CapsellaError: it has no stem.
    """
    check_argument("stem" not in config, "be a network without a stem of another one", stem=config.get("name"))
    return stem_of(create_model(**config))


def config_of(model: ImageClassifier) -> dict[str, Any]:
    """What `build` needs to build the same, as JSON has it."""
    config: dict[str, Any] = json.loads(json.dumps({"name": model.name, **model.options}))
    return config


def stem_of(model: ImageClassifier) -> nn.Module:
    """The layers from images to feature maps.

    Raises:
        CapsellaError: the network has none, or cuts images to a size of its own.
    """
    stem = model.feature_layers()
    cuts = any(isinstance(module, CropImages) for module in stem.modules())
    check_argument(not cuts, "be a network that takes whole images, without a crop", stem=model.name)
    check_argument(
        next(stem.parameters(), None) is not None, "be a network with weights before its capsules", stem=model.name
    )
    return stem

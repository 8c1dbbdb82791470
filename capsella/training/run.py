"""The folder of a run: what training writes, and how to get it back."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsella.errors import CapsellaError
from capsella.files import write_json
from capsella.models import ImageClassifier
from capsella.training.environment import environment
from capsella.training.recipe import Recipe


@dataclass(frozen=True)
class Run:
    """A trained run: config.json, metrics.csv, summary.json, TensorBoard events, model.json and model.safetensors.

    model: the network with the weights of the epoch that the recipe keeps, in evaluation mode.
    """

    folder: Path
    name: str
    recipe: Recipe
    model: ImageClassifier
    environment: dict[str, Any]


def new_run_folder(runs: Path, name: str) -> Path:
    """`runs/name`, or `runs/name-2`, `-3`, … where a run has that name already."""
    number = 1
    while (folder := runs / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return folder


def check_unused(folder: Path) -> None:
    """No run is lost.

    Raises:
        CapsellaError: a run is there already.
    """
    if (folder / "config.json").exists():
        raise CapsellaError(f"{folder} holds a run already; continue it with --resume, or choose another folder")


def write_config(folder: Path, name: str, recipe: Recipe) -> None:
    """config.json: the complete recipe, and what it ran on."""
    write_json(folder / "config.json", {"name": name, "recipe": recipe.to_dict(), "environment": environment()})


def read_config(folder: str | Path) -> tuple[str, Recipe, dict[str, Any]]:
    """Name, recipe and environment from config.json.

    Raises:
        CapsellaError: missing or damaged.
    """
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return config["name"], Recipe.from_dict(config["recipe"]), config["environment"]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CapsellaError(f"{folder} is not a run folder: it has no config.json") from error
    except CapsellaError as error:
        raise CapsellaError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CapsellaError(f"{path} is damaged: {error!r}") from error


def load_run(folder: str | Path) -> Run:
    """A run with the weights that were kept.

    Raises:
        CapsellaError: not a run folder, or one that is only half written (says what is missing).
    """
    folder = Path(folder)
    name, recipe, measured_on = read_config(folder)
    model = ImageClassifier.from_pretrained(folder).eval()
    return Run(folder, name, recipe, model, measured_on)

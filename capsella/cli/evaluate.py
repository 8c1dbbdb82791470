"""`capsella evaluate`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from capsella.data import load_data
from capsella.evaluation import evaluate
from capsella.files import write_json
from capsella.training import load_run


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a run: a table for people, and the same numbers as JSON."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    split: Literal["test", "validation", "train"] = "test"
    """Which of its images."""
    batch_size: int = 128
    """Images at a time."""
    json: bool = False
    """Print JSON instead of the table."""
    out: Path | None = None
    """Where the JSON goes; default: SPLIT.json in the run's folder."""


def run(arguments: list[str]) -> None:
    """Evaluate and print."""
    options = tyro.cli(Evaluate, args=arguments, prog="capsella evaluate")
    trained = load_run(options.run)
    images = load_data(trained.recipe.data).named()[options.split]
    evaluation = evaluate(trained.model, images, options.batch_size, progress=True)
    out = options.out or options.run / f"{options.split}.json"
    write_json(out, evaluation.to_dict())
    if options.json:
        print(json.dumps(evaluation.to_dict(), indent=2))
    else:
        console = Console(highlight=False)
        console.print(evaluation.table())
        console.print(f"written to {out}", soft_wrap=True, markup=False)

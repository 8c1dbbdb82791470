"""`capsella predict`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from capsella.evaluation import predict_files, write_csv
from capsella.training import load_run


@dataclass(frozen=True)
class Predict:
    """Classify images into a CSV table: file, class, and the activation of every class."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATHS…")]
    """Image files, or folders to look for images in."""
    out: Path | None = None
    """The table; default: standard output."""
    batch_size: int = 64
    """Images at a time."""
    skip_broken: bool = False
    """Leave out images that cannot be read, and list them at the end, instead of stopping at the first."""


def run(arguments: list[str]) -> None:
    """Predict and write."""
    options = tyro.cli(Predict, args=arguments, prog="capsella predict")
    if not options.paths:
        raise ValueError("paths: must name at least one image or folder")
    trained = load_run(options.run)
    model, classes = trained.model, 2 if trained.recipe.data.is_paired else 1
    broken: list[str] | None = [] if options.skip_broken else None
    predictions = predict_files(model, options.paths, batch_size=options.batch_size, broken=broken, classes=classes)
    rows = write_csv(predictions, model.classes, options.out)
    console = Console(stderr=True, highlight=False)
    if broken:
        console.print(f"left out {len(broken)} broken images:", *broken, sep="\n  ", soft_wrap=True, markup=False)
    if options.out is not None:
        console.print(f"{rows} predictions written to {options.out}", soft_wrap=True, markup=False)

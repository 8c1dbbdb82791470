"""`capsella explain`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from capsella.data import PairSet, load_data
from capsella.explain import explain_images, explain_pairs
from capsella.training import load_run


@dataclass(frozen=True)
class Explain:
    """For each image a picture: the input, the class activations, the reconstruction, and the dimension tweaks.

    A network with EM routing gets a second one: the distances of votes to the class capsules' means, by iteration.
    A run on pairs of images needs none named: its test pairs are drawn beside the reconstruction of each image.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES…")] = ()
    """Image files, or folders to look for images in."""
    out: Path | None = None
    """Folder for the pictures; default: explain/ in the run's folder."""


def run(arguments: list[str]) -> None:
    """Draw and say where."""
    options = tyro.cli(Explain, args=arguments, prog="capsella explain")
    trained = load_run(options.run)
    out = options.out or options.run / "explain"
    if options.images:
        pictures = explain_images(trained.model, options.images, out)
    elif trained.recipe.data.is_paired:
        test = load_data(trained.recipe.data).test
        pictures = [explain_pairs(trained.model, test, out)] if isinstance(test, PairSet) else []
    else:
        raise ValueError("images: must name at least one image or folder")
    for picture in pictures:
        Console(highlight=False).print(str(picture), soft_wrap=True, markup=False)

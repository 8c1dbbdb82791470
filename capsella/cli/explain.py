"""`capsella explain`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from capsella.explain import explain_images
from capsella.training import load_run


@dataclass(frozen=True)
class Explain:
    """For each image a picture: the input, the class activations, the reconstruction, and the dimension tweaks.

    A network with EM routing gets a second one: the distances of votes to the class capsules' means, by iteration.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES…")]
    """Image files, or folders to look for images in."""
    out: Path | None = None
    """Folder for the pictures; default: explain/ in the run's folder."""


def run(arguments: list[str]) -> None:
    """Draw and say where."""
    options = tyro.cli(Explain, args=arguments, prog="capsella explain")
    if not options.images:
        raise ValueError("images: must name at least one image or folder")
    model = load_run(options.run).model
    for picture in explain_images(model, options.images, options.out or options.run / "explain"):
        Console(highlight=False).print(str(picture), soft_wrap=True, markup=False)

"""`capsella explain`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from capsella.cli.runs import open_run
from capsella.data import PairSet
from capsella.errors import CapsellaError
from capsella.evaluation import UnreadableFile, passed_over, set_scale
from capsella.image_options import check_range
from capsella.report import explain_images, explain_pairs
from capsella.training import load_splits


@dataclass(frozen=True)
class Explain:
    """Draw what a run sees in each image: what `capsella explore` shows in a browser.

    Activations, reconstruction and dimension tweaks, the routing, the votes.

    A run on pairs needs no images: its test pairs are drawn, reconstructed.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES…")] = ()
    """Image files, or folders to look for images in."""
    out: Path | None = None
    """Folder for the pictures; default: explain/ in the run's folder."""
    cell_radius: float | None = None
    """Of stained cells that a network cuts out: the radius of a usual nucleus in pixels of the files; default: the
    median of 100 of them, as for `capsella predict`."""
    range: tuple[float, float] | None = None
    """The values that are black and white in files of more than 8 bits a channel; default: as the model was trained."""
    skip_broken: bool = False
    """Leave out images that cannot be read, and list them at the end, instead of stopping at the first."""


def run(arguments: list[str]) -> None:
    """Draw and say where."""
    options = tyro.cli(Explain, args=arguments, prog="capsella explain")
    check_range(options.range)
    trained = open_run(options.run)
    trained.model.value_range = options.range or trained.model.value_range
    out = options.out or options.run / "explain"
    paired = trained.recipe.data.is_paired
    broken: list[UnreadableFile] = []
    if options.images:
        if note := set_scale(trained.model, options.images, options.cell_radius):
            print(f"note: {note}", file=sys.stderr)
        for note in passed_over(options.images):
            print(f"note: {note}", file=sys.stderr)
        kept = broken if options.skip_broken else None
        pictures = explain_images(trained.model, options.images, out, classes=2 if paired else 1, broken=kept)
    elif paired:
        test = load_splits(trained, skip_broken=True).test
        pictures = [explain_pairs(trained.model, test, out)] if isinstance(test, PairSet) else []
    else:
        raise ValueError("images: must name at least one image or folder")
    for picture in pictures:
        print(picture)
    for file in broken:
        print(f"left out {file.file}: {file.reason}", file=sys.stderr)
    if not pictures:
        raise CapsellaError("explain: none of the images could be read")

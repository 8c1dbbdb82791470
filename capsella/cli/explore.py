"""`capsella explore`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from capsella.cli import train
from capsella.cli.laboratory import shown_from_home
from capsella.cli.runs import load_runs
from capsella.cli.screen import console
from capsella.errors import check_argument
from capsella.evaluation import set_scale
from capsella.explorer import open_subject
from capsella.explorer.server import check_host, check_port, check_starlette, serve
from capsella.models import ImageClassifier
from capsella.share.shared import parted

DEMO = Path("runs/demo")


@dataclass(frozen=True)
class Explore:
    """Open a page in the browser: choose, upload or draw an image, turn its dials.

    It is the page of `capsella share`, with any test image, and runs of any size.

    Without a run it shows runs/demo, the demo's, and trains that first if need be.
    """

    runs: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[RUN…]", help_behavior_hint="(default: runs/demo)"),
    ] = ()
    """Folders of runs; of two, one may be a CNN's: its features stand beside the capsules."""
    images: int = 500
    """Test images that are looked at first, spread evenly: to be found by class, by right and wrong."""
    cell_radius: float | None = None
    """Of stained cells that a network cuts out of uploads: the radius of a usual nucleus in pixels of these files;
    default: that of the training images."""
    port: int = 7860
    """Port of the page."""
    host: str = "127.0.0.1"
    """Another address lets other machines in, with the password in the environment variable CAPSELLA_PASSWORD."""
    name: str | None = None
    """The name under which a proxy shows the page, as explore.example.org; other names are refused."""
    browser: bool = True
    """Open the page in this machine's browser."""


def run(arguments: list[str]) -> None:
    """Check all that may be wrong before anything is loaded, load, and serve until interrupted."""
    options = tyro.cli(Explore, args=arguments, prog="capsella explore")
    password = os.environ.get("CAPSELLA_PASSWORD")
    check_host(options.host, password)
    check_port(options.host, options.port)
    check_starlette()
    if not options.runs and not (DEMO / "model.safetensors").exists():
        print(f"no run given, and none in {DEMO}: training the demo first, about 3 minutes on two cores", flush=True)
        train.run(["demo", "--out", str(DEMO)])
    runs = load_runs(options.runs or (DEMO,))
    if options.cell_radius is not None:
        _set_radius(options.cell_radius, [run.model for run in runs.values()])
    for line in shown_from_home(runs):
        print(line, flush=True)
    runs, cnns = parted(runs)
    subjects = [open_subject(run, name, options.images, cnns) for name, run in runs.items()]
    serve(
        subjects,
        host=options.host,
        port=options.port,
        password=password,
        name=options.name,
        browser=options.browser,
        console=console(),
    )


def _set_radius(radius: float, models: Sequence[ImageClassifier]) -> None:
    """Of the cells that are cut out of uploads. Test images stay as they were made."""
    cutting = [model for model in models if model.cut is not None]
    check_argument(bool(cutting), "be None: no run cuts cells out", cell_radius=radius)
    for model in cutting:
        set_scale(model, (), radius)

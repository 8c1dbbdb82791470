"""`capsella explore`."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from capsella.explorer import open_run
from capsella.explorer.server import check_gradio, check_host, check_port, serve


@dataclass(frozen=True)
class Explore:
    """One page in the browser: choose, upload or draw an image, turn the dials of its capsules, look at the routing.

    The first run has the dials; others can be compared with it.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")]
    """Folders of runs."""
    images: int = 500
    """Test images on the page, evenly spread through the test set."""
    port: int = 7860
    """Where the page is served."""
    host: str = "127.0.0.1"
    """Another address lets other machines in; they need the password in the environment variable CAPSELLA_PASSWORD."""
    browser: bool = False
    """Open the page in this machine's browser."""


def run(arguments: list[str]) -> None:
    """Serve until interrupted."""
    options = tyro.cli(Explore, args=arguments, prog="capsella explore")
    explore(options)


def explore(options: Explore) -> None:
    """Check all that may be wrong before anything is loaded, load, and serve."""
    if not options.runs:
        raise ValueError("runs: must name the folder of at least one run")
    password = os.environ.get("CAPSELLA_PASSWORD")
    check_host(options.host, password)
    check_port(options.host, options.port)
    check_gradio()
    subjects = [open_run(folder, options.images) for folder in options.runs]
    serve(
        subjects,
        host=options.host,
        port=options.port,
        password=password,
        browser=options.browser,
        console=Console(highlight=False),
    )

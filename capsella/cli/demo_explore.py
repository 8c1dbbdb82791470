"""`capsella demo-explore`."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from capsella.cli import train
from capsella.cli.explore import Explore, explore
from capsella.explorer.server import check_gradio, check_port


@dataclass(frozen=True)
class DemoExplore:
    """The explorer on the run that `capsella train demo` left; trains it first where there is none."""

    run: Path = Path("runs/demo")
    """Folder of the run."""
    port: int = 7860
    """Where the page is served."""
    browser: bool = True
    """Open the page in this machine's browser."""


def run(arguments: list[str]) -> None:
    """Train if need be, and serve until interrupted."""
    options = tyro.cli(DemoExplore, args=arguments, prog="capsella demo-explore")
    check_port("127.0.0.1", options.port)
    check_gradio()
    if not (options.run / "model.safetensors").exists():
        Console(highlight=False).print(f"no run in {options.run} yet: training it", soft_wrap=True, markup=False)
        train.run(["demo", "--out", str(options.run)])
    explore(Explore((options.run,), port=options.port, browser=options.browser))

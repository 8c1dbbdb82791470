"""`capsella share`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from capsella.cli.laboratory import shown_from_home
from capsella.cli.runs import load_runs
from capsella.share import MOST_IMAGES, MOST_MEGABYTES, share_runs


@dataclass(frozen=True)
class Share:
    """Write a run as one HTML page that explains its capsules, with live dials.

    The page opens from a disk. It needs no server and no network.

    Test images are in it: whoever gets the page can see them.
    """

    runs: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN]", help_behavior_hint="(required)")
    ]
    """Folder of the run, or of two to compare, of which one may be a CNN's."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="PAGE.HTML")] = None
    """The page to write; default: share.html in the first run's folder."""
    images: int = MOST_IMAGES
    """Test images on the page: every class, mistakes, and images of which no capsule is sure."""
    network: bool = False
    """Put the network in as well: whoever has the page can draw or drop an image of their own. It adds 6 MB,
    and 4 MB for each million of weights."""
    megabytes: float = MOST_MEGABYTES
    """The largest page to write."""


def run(arguments: list[str]) -> None:
    """Write the page, and say what is in it."""
    options = tyro.cli(Share, args=arguments, prog="capsella share")
    runs = load_runs(options.runs)
    for line in shown_from_home(runs):
        print(line)
    shared = share_runs(
        list(runs.values()),
        options.out or options.runs[0] / "share.html",
        images=options.images,
        megabytes=options.megabytes,
        network=options.network,
    )
    for name, numbers in shared.images.items():
        listed = ", ".join(map(str, sorted(numbers)))
        print(f"{name}: {len(numbers)} test images are in the page, and whoever gets it can see them: {listed}")
    if shared.compared is None:
        print("not compared with PyTorch: Node is not installed (https://nodejs.org); the page says so, too")
    else:
        print(f"compared with PyTorch: {shared.compared}")
    print(f"{shared.path}: {shared.megabytes:.1f} MB; open it in a browser")

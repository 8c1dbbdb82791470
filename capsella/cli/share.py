"""`capsella share`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from capsella.cli.flags import parse, positional


@dataclass(frozen=True, kw_only=True)
class Share:
    """Write a trained capsule network as one HTML page with live dials.

    The page opens from a disk. It needs no server and no internet.

    It contains test images: whoever gets the page can see them.
    """

    runs: Annotated[tuple[Path, ...], *positional("RUN [RUN]", "A run, or two to compare; one may be a CNN.")]
    out: Path | None = None
    """The page. Default: share.html in the first run's folder."""
    images: int = 20
    """Number of test images on the page: every class, mistakes, and images that the network is uncertain about."""
    network: bool = False
    """Include the network, so that readers can draw or drop their own images. Adds 6 MB, and 4 MB per million
    weights."""
    megabytes: float = 10.0
    """Largest size of the page."""


def run(arguments: list[str]) -> None:
    """Write the page, and print what is in it."""
    options = parse(Share, arguments, "share")

    from capsella.evaluation.domain import notes_on_adapted
    from capsella.training.trained import open_runs
    from capsella.web import share_runs

    runs = open_runs(options.runs)
    for line in notes_on_adapted(runs):
        print(line)
    out = options.out or options.runs[0] / "share.html"
    shared = share_runs(
        list(runs.values()), out, images=options.images, megabytes=options.megabytes, network=options.network
    )
    for name, numbers in shared.images.items():
        print(f"{name}: {len(numbers)} test images are on the page, and whoever gets it can see them: "
              f"{', '.join(map(str, sorted(numbers)))}")  # fmt: skip
    print(f"{shared.path}: {shared.megabytes:.1f} MB; open it in a browser")

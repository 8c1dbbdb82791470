"""`capsella share`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from capsella.cli.flags import parse, positional


@dataclass(frozen=True, kw_only=True)
class Share:
    """Write a trained capsule network as one interactive HTML page.

    The page needs no server and no internet connection. It contains test
    images: everybody who gets the file can see them.
    """

    runs: Annotated[tuple[Path, ...], *positional("RUN [RUN]", "A run, or two to compare; one may be a CNN.")]
    out: Path | None = None
    """The HTML file. Default: share.html in the folder of the first run."""
    images: int = 20
    """Number of test images: from every class, with mistakes and uncertain predictions."""
    network: bool = False
    """Include the network, so that readers can try images of their own. Adds 6 MB, and 5 MB per million weights."""
    megabytes: float = 10.0
    """Largest size of the file."""


def run(arguments: list[str]) -> None:
    """Write the page and print which images it contains."""
    options = parse(Share, arguments, "share")

    from capsella.evaluation.domain import notes_on_adapted
    from capsella.training.trained import open_runs_with_capsules
    from capsella.web import share_runs

    runs = open_runs_with_capsules(options.runs)
    for line in notes_on_adapted(runs):
        print(line)
    out = options.out or next(iter(runs.values())).folder / "share.html"
    shared = share_runs(
        list(runs.values()), out, images=options.images, megabytes=options.megabytes, network=options.network
    )
    for name, numbers in shared.images.items():
        print(f"{name}: everybody who gets the page can see test images {', '.join(map(str, sorted(numbers)))}")
    print(f"page written to {shared.path} ({shared.megabytes:.1f} MB); open it in a browser")

"""`capsella explore`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from capsella.cli.flags import parse, positional
from capsella.cli.screen import console, note
from capsella.errors import CapsellaError, check_argument
from capsella.image_options import check_range

DEMO = Path("runs/demo")


@dataclass(frozen=True, kw_only=True)
class Explore:
    """Look inside a network: activations, reconstructions, dials, routing, votes.

        capsella explore RUN                           an interactive page in the browser
        capsella explore RUN --data IMAGES --out DIR   pictures of these images

    The page is that of capsella share, plus all test images and uploads.
    """

    runs: Annotated[
        tuple[Path, ...],
        *positional("[RUN…]", "Runs; one of two may be a CNN. Default: runs/demo, which is trained if missing."),
    ] = ()
    data: tuple[Path, ...] = ()
    """With --out: image files or folders to draw."""
    out: Path | None = None
    """Draw pictures into this folder instead of opening a page."""
    images: int = 500
    """Number of test images that can be filtered by class and by correctness."""
    cell_radius: float | None = None
    """For networks that crop stained cells: radius of a typical nucleus in pixels of your files. Default: measured on
    100 of the images; for uploads, the one from training."""
    range: tuple[float, float] | None = None
    """With --out: values that become black and white in files with more than 8 bits. Default: as in training."""
    skip_broken: bool = False
    """With --out: skip images that cannot be read, and list them at the end."""
    port: int = 7860
    """Port of the page."""
    host: str = "127.0.0.1"
    """Address to listen on. With any other, the URL contains a random token; everybody who has the URL has access."""
    browser: bool = True
    """Open the page in the browser."""

    def __post_init__(self) -> None:
        check_argument(self.out is not None or not self.data, "come with --out", data=tuple(map(str, self.data)))
        check_range(self.range)


def run(arguments: list[str]) -> None:
    """Draw, or serve the page until interrupted."""
    options = parse(Explore, arguments, "explore")
    if options.out is not None:
        _draw(options, options.out)
    else:
        _serve(options)


def _serve(options: Explore) -> None:
    """Serve the page. Check whatever can fail before loading anything."""
    from capsella.cli import train
    from capsella.evaluation import set_scale
    from capsella.evaluation.domain import notes_on_adapted
    from capsella.training.trained import open_runs_with_capsules
    from capsella.web.served_run import open_served_run
    from capsella.web.server import check_port, check_starlette, serve
    from capsella.web.share import split_cnn

    check_port(options.host, options.port)
    check_starlette()
    if not options.runs and not (DEMO / "model.safetensors").exists():
        print(f"training the demo first ({DEMO}), about a minute on two cores", flush=True)
        train.run(["demo", "--out", str(DEMO)])
    runs = open_runs_with_capsules(options.runs or (DEMO,))
    if options.cell_radius is not None:
        cropping = [run.model for run in runs.values() if run.model.cut is not None]
        check_argument(bool(cropping), "be left out: no network crops cells", cell_radius=options.cell_radius)
        for model in cropping:
            set_scale(model, (), options.cell_radius)
    for line in notes_on_adapted(runs):
        print(line, flush=True)
    runs, cnn = split_cnn(runs)
    served_runs = [open_served_run(run, name, options.images, cnn) for name, run in runs.items()]
    serve(served_runs, host=options.host, port=options.port, browser=options.browser, console=console())


def _draw(options: Explore, out: Path) -> None:
    from capsella.evaluation import passed_over, set_scale
    from capsella.report import explain_images
    from capsella.training.trained import open_network

    check_argument(len(options.runs) == 1, "be a single run with --out", runs=tuple(map(str, options.runs)))
    check_argument(bool(options.data), "name at least one image or folder", data=())
    model, _ = open_network(options.runs[0], final=True)
    model.value_range = options.range or model.value_range
    note(*filter(None, (set_scale(model, options.data, options.cell_radius), *passed_over(options.data))))
    pictures, broken = explain_images(model, options.data, out, skip_broken=options.skip_broken)
    print(*pictures, sep="\n")
    for file in broken:
        print(f"skipped {file.file}: {file.reason}", file=sys.stderr)
    if not pictures:
        raise CapsellaError("none of the images could be read")

"""`capsella adapt`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from capsella.cli.flags import Group, parse, positional
from capsella.cli.screen import console, show
from capsella.image_options import check_range
from capsella.training.config import AdaptOptions


@dataclass(frozen=True, kw_only=True)
class Adapt:
    """Adapt a trained network to another domain with a few labelled images.

    All other images of the domain are tested before and after. The result is a
    run folder for capsella predict, explore and export.
    """

    run: Annotated[Path, *positional("RUN", "A run, or a comparison's folder. It is not changed.")]
    images: Annotated[str, *positional("IMAGES", "The other domain: a folder, an .npz file or a named data set.")]
    out: Path
    """Folder of the adapted run."""
    group: str | None = None
    """A regular expression with one capture group that finds the patient or slide in a path, e.g. 'patient([0-9]+)';
    for an .npz file the name of an array; or a table (patients.csv). Keeps patients on one side; intervals are then
    over patients."""
    range: tuple[float, float] | None = None
    """Values that become black and white in files with more than 8 bits. Default: percentiles 0.1 and 99.9 of up to
    100 images."""
    skip_broken: bool = False
    """Skip images that cannot be read, or that show no cell if cells are cropped."""
    how: Annotated[AdaptOptions, Group] = AdaptOptions()

    def __post_init__(self) -> None:
        check_range(self.range)


def run(arguments: list[str]) -> None:
    """Adapt, test, save and print."""
    options, out = parse(Adapt, arguments, "adapt"), console()

    from capsella.evaluation.domain import adapt_run
    from capsella.report.terminal import adaptation_lines, adaptation_table
    from capsella.training.trained import open_run

    adapted = adapt_run(
        open_run(options.run),
        options.images,
        options.out,
        options.how,
        group=options.group,
        value_range=options.range,
        skip_broken=options.skip_broken,
        say=partial(out.print, markup=False, soft_wrap=True),
    )
    show(adaptation_table(adapted))
    out.print(*adaptation_lines(adapted), sep="\n", markup=False, soft_wrap=True)

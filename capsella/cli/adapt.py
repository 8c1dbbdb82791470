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

    All other images of that domain test it, and choose nothing. The result is a
    run folder, for capsella predict, export and explore.
    """

    run: Annotated[Path, *positional("RUN", "A run, or a comparison's folder; it stays as it is.")]
    images: Annotated[str, *positional("IMAGES", "The other domain: a folder, an .npz file or a named source.")]
    out: Path
    """Folder of the adapted run."""
    group: str | None = None
    """A regular expression whose one capture group, found in the path, names the patient or slide, e.g.
    'patient([0-9]+)'; for an .npz file an array of integers. No patient is both learned from and tested."""
    range: tuple[float, float] | None = None
    """The values that become 0 and 255 in files of more than 8 bits. Default: what the files state, or else the
    percentiles 0.1 and 99.9 of their values."""
    skip_broken: bool = False
    """Leave out images that cannot be read, or show no cell if cells are cropped."""
    how: Annotated[AdaptOptions, Group] = AdaptOptions()

    def __post_init__(self) -> None:
        check_range(self.range)


def run(arguments: list[str]) -> None:
    """Adapt, test, save and print."""
    options, out = parse(Adapt, arguments, "adapt"), console()

    from capsella.evaluation.adaptation import adapt_run
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

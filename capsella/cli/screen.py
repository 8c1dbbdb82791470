"""What verbs print: tables and lists in which no name is ever cut."""

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table

PIPE_WIDTH = 120
ANY_WIDTH = 10_000


def console(*, stderr: bool = False) -> Console:
    """A plain console; a file or pipe, which has no width of its own, is 120 columns wide, or COLUMNS."""
    made = Console(highlight=False, stderr=stderr)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PIPE_WIDTH
    return made


def show(*shown: RenderableType) -> None:
    """Print tables, and texts between them. No word of a table is cut: on a narrow screen its lines are too long."""
    for one in shown:
        if isinstance(one, Group):
            show(*one.renderables)
            continue
        out = console()
        if isinstance(one, Table):
            out.width = max(out.width, _keep_words(one, out))
        out.print(one, crop=False)


def list_entries(groups: Mapping[str, Iterable[tuple[str, str]]]) -> None:
    """Print each name on a line of its own, what it is below it, under the heading of its group."""
    out = console()
    for heading, entries in groups.items():
        out.print(heading, style="bold", markup=False, soft_wrap=True)
        for name, text in entries:
            print(f"  {name}")
            print(_filled(text, out.width, "    "))


def list_names(groups: Mapping[str, Sequence[str]]) -> None:
    """Print names, as many a line as have room, under the headings of their groups."""
    out = console()
    for heading, names in groups.items():
        out.print(heading, style="bold", markup=False, soft_wrap=True)
        print(_filled("  ".join(names), out.width, "  "))


def note_one_seed(seeds: Sequence[int]) -> None:
    """Say so where one seed was named that is not 0: as a number of seeds it would have been meant otherwise."""
    if len(seeds) == 1 and seeds[0] > 0:
        text = f"note: one seed, number {seeds[0]}; several are named one by one, as --seeds 0 1 2"
        console(stderr=True).print(text, soft_wrap=True, markup=False)


def by_paper(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by the paper that they begin with.

    >>> by_paper(["sabour2017_cnn", "hinton2018-1", "sabour2017-3"])
    {'sabour2017': ['sabour2017_cnn', 'sabour2017-3'], 'hinton2018': ['hinton2018-1']}
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.replace("_", "-").partition("-")[0], []).append(name)
    return groups


def _filled(text: str, width: int, indent: str) -> str:
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _keep_words(table: Table, out: Console) -> int:
    """Make no column narrower than its longest word; columns of single words do not shrink. Returns the least width."""
    options = out.options.update(width=ANY_WIDTH)
    for column in table.columns:
        cells = [Measurement.get(out, options, cell) for cell in (column.header, *column.cells)]
        column.min_width = max(cell.minimum for cell in cells)
        column.no_wrap = all(cell.minimum == cell.maximum for cell in cells)
    return Measurement.get(out, options, table).minimum

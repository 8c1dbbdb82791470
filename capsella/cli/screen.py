"""Prints tables and lists without ever cutting off names."""

import os
import textwrap
from collections.abc import Iterable, Mapping

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 120
_ANY_WIDTH = 10_000


def console(*, stderr: bool = False) -> Console:
    """Return a console without highlighting. Files and pipes, which have no width, get COLUMNS or 120 columns."""
    made = Console(highlight=False, stderr=stderr)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PIPE_WIDTH
    return made


def show(*shown: RenderableType) -> None:
    """Print tables and texts. A narrow screen wraps the lines of a table instead of cutting its words."""
    for item in shown:
        if isinstance(item, Group):
            show(*item.renderables)
            continue
        out = console()
        if isinstance(item, Table):
            out.width = max(out.width, _width_for_words(item, out))
        if isinstance(item, Text):  # whose own settings `print` ignores
            out.print(item, crop=False, no_wrap=item.no_wrap, overflow=item.overflow)
        else:
            out.print(item, crop=False)


def note(*lines: str) -> None:
    """Print lines to standard error, each as "note: …"."""
    for line in lines:
        console(stderr=True).print(f"note: {line}", soft_wrap=True, markup=False)


def list_entries(groups: Mapping[str, Iterable[tuple[str, str]]]) -> None:
    """Print names, each with a text below it, under the headings of their groups."""
    out = console()
    for heading, entries in groups.items():
        out.print(heading, style="bold", markup=False, soft_wrap=True)
        for name, text in entries:
            print(f"  {name}")
            filled = textwrap.fill(text, max(20, out.width - 4), break_long_words=False, break_on_hyphens=False)
            print(textwrap.indent(filled, "    "))


def by_paper(names: Iterable[str]) -> dict[str, list[str]]:
    """Group names by the paper that they begin with.

    >>> by_paper(["sabour2017_cnn", "hinton2018-1", "sabour2017-3"])
    {'sabour2017': ['sabour2017_cnn', 'sabour2017-3'], 'hinton2018': ['hinton2018-1']}
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.replace("_", "-").partition("-")[0], []).append(name)
    return groups


def _width_for_words(table: Table, out: Console) -> int:
    """Make columns at least as wide as their longest word, those of single words unshrinkable; return the width."""
    options = out.options.update(width=_ANY_WIDTH)
    for column in table.columns:
        cells = [Measurement.get(out, options, cell) for cell in (column.header, *column.cells)]
        column.min_width = max(cell.minimum for cell in cells)
        column.no_wrap = all(cell.minimum == cell.maximum for cell in cells)
    return Measurement.get(out, options, table).minimum

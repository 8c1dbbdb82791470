"""What every published figure has in common: its plotted numbers as JSON, and a picture drawn from them.

A figure is a class with what `PublishedFigure` names; published.py lists them all, beside the tables.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console

from capsella.explain.panels import Panel, panels_figure
from capsella.explain.plots import write_png
from capsella.files import write_json


class PublishedFigure(Protocol):
    """A figure of a paper: it trains what is missing, and draws our numbers, beside the paper's where it prints any."""

    @property
    def title(self) -> str:
        """Paper, number and what it shows."""
        ...

    @property
    def family(self) -> str | None:
        """Name of the folder of runs that it shares with the tables of its paper, or None for a folder of its own."""
        ...

    def on(self, source: str) -> Self:
        """The same figure on the images of another source."""
        ...

    def path(self, folder: Path) -> Path:
        """Where `run` writes the picture; the numbers are beside it, as .json."""
        ...

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Run what is missing, write the picture at `path(folder)` and its numbers, and return these."""
        ...


def write_panels(
    path: Path, panels: Sequence[Panel], *, title: str, note: str, measured: str, command: str, **more: Any
) -> dict[str, Any]:
    """Draw panels as a picture at `path` and write what is drawn as JSON beside it.

    Args:
        path: of the PNG.
        panels: of the figure.
        title, note, measured, command: as for `table_values`.
        more: what else the JSON holds.

    Returns:
        What the JSON holds.
    """
    values: dict[str, Any] = {"title": title, "note": note, "measured": measured, "command": command}
    values |= {"panels": [asdict(panel) for panel in panels], **more}
    write_json(path.with_suffix(".json"), values)
    write_png(panels_figure(panels), path)
    return values

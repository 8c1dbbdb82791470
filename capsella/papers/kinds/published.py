"""What every published table and figure has in common: other images, a folder of runs, and its numbers as JSON.

A kind of table is a class with what `PublishedTable` names, as `ErrorTable`; one of figures has what `Published` names.
`capsella.papers.published` lists them all.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from rich.console import Console
from rich.table import Table

from capsella.evaluation import Spread

BudgetName = Literal["small", "full"]


class Published(Protocol):
    """A table or figure of a paper: it trains and measures what is missing, and sets the paper's values beside ours."""

    @property
    def title(self) -> str:
        """Paper, number and what it shows."""
        ...

    @property
    def family(self) -> str | None:
        """Name of the folder of runs that tables and figures of one paper share, or None for a folder of its own."""
        ...

    def on(self, source: str) -> Self:
        """The same on the images of another source, as on the copy of a set at hand."""
        ...

    def path(self, folder: Path) -> Path:
        """Where `run` writes the table's JSON, or the figure's picture, with its numbers beside it as .json."""
        ...

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Run what is missing, write `path(folder)` and return what the JSON holds.

        Args:
            folder: of the runs; each has a folder of its own in it, and one that is finished is read.
            seeds: of each run.
            command: that makes this table or figure, to be kept beside the numbers.
            console: for progress.

        Raises:
            ValueError: no seed, or one twice.
            CapsellaError: a run of another recipe is in the folder, or images are not to be had.
        """
        ...


class PublishedTable(Published, Protocol):
    """A table: what it has beside what figures have, too."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Heads of its rows' own labels."""
        ...

    @property
    def rows(self) -> Sequence[object]:
        """What it runs."""
        ...


class FolderTable:
    """A table whose JSON has the name of the folder of its runs."""

    def path(self, folder: Path) -> Path:
        """`folder`/`folder's name`.json."""
        return folder / f"{folder.name}.json"


def table_values(
    *,
    title: str,
    note: str,
    measured: str,
    command: str,
    labels: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """A table's JSON.

    Args:
        title: paper and number.
        note: what a reader of the numbers must know.
        measured: one sentence on what was measured, on which data, over how many seeds, on which hardware.
        command: that makes this table.
        labels: heads of the first columns, whose cells say what a row is.
        columns: heads of the columns of numbers behind them.
        rows: each with its text under "cells", as many as there are heads, and beside it all it was made from.

    Raises:
        ValueError: a row has more or fewer cells than there are heads.
    """
    heads = [*labels, *columns]
    for row in rows:
        if len(row["cells"]) != len(heads):
            raise ValueError(f"cells: must be {len(heads)}, one for each of {heads}, got {row['cells']}")
    return {
        "title": title,
        "note": note,
        "measured": measured,
        "command": command,
        "heads": heads,
        "labels": len(labels),
        "rows": list(rows),
    }


def draw_table(values: dict[str, Any]) -> Table:
    """A table's JSON for a terminal."""
    caption = " ".join(text for text in (values["measured"], values["note"]) if text)
    table = Table(*values["heads"], title=values["title"], caption=caption)
    for column in table.columns:
        column.overflow = "fold"  # a number cut short is no number
    for row in values["rows"]:
        table.add_row(*row["cells"])
    return table


def hardware_of(results: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """The processors on which runs, by row or name, were trained, each once."""
    return " and ".join(dict.fromkeys(hardware(run["environment"]) for runs in results.values() for run in runs))


def hardware(environment: dict[str, Any]) -> str:
    """The processor that a run or a measurement names, in a few words."""
    if environment["gpu"] != "none":
        return str(environment["gpu"])
    threads = environment["threads"]
    return f"{threads} thread{'s' if threads > 1 else ''}, {environment['cpu']}"


def mean_cell(values: Sequence[float], *, signed: bool = False) -> str:
    """The mean of one number a seed, with its standard deviation where there are several; a difference has a sign."""
    text = str(Spread.of(list(values))) if len(values) > 1 else f"{values[0]:.2f}"
    return f"+{text}" if signed and not text.startswith("-") else text


def seeds_phrase(seeds: int) -> str:
    """What the numbers of a table are, from how many seeds."""
    return f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"

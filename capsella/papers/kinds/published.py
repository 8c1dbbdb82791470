"""What every published table and figure has in common: other images, a folder of runs, and its numbers as JSON.

A kind of table is a class with what `PublishedTable` names, as `ErrorTable`; one of figures has what `Published` names.
`capsella.papers.published` lists them all.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from rich.console import Console
from rich.table import Table

from capsella.data import DataOptions
from capsella.environment import hardware
from capsella.errors import ArgumentError, CapsellaError, pluralize
from capsella.evaluation import over_seeds
from capsella.grid import Grid, Results, Row, of_common_seeds

NOT_RUN = "not run"
"""The cell of a row whose training was left out."""
DIVERGED = "diverged"
"""The cell of a row whose every training diverged."""
SHORT = "short"
"""What stands behind a number of the small budget."""
_GAP = "gap"
_NUMBER = re.compile(r"[+-]?\d")
_OURS = re.compile(r"(\bours( %)?|, accuracy %)$")  # heads of what trained networks reached, beside a paper's


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

    @property
    def needs_all(self) -> bool:
        """Whether it cannot be made before all its rows are trained with a common seed."""
        ...

    def mark_of(self, slug: str) -> str:
        """What stands behind every number of a row's network, as "few images"; empty where nothing does."""
        ...

    def trainings(self) -> Sequence[Row]:
        """The rows that are trained for it; none where it measures or counts without.

        Raises:
            CapsellaError: images by which the rows are chosen are not to be had.
        """
        ...

    def images(self) -> Iterable[DataOptions]:
        """All images that it reads, those first by which its rows are chosen; raises as `trainings`."""
        ...

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """Measure what is missing beside the trainings, write `path(folder)` and return what the JSON holds.

        Args:
            results: of its trainings, in `folder`; at least one. Rows without any are marked as `NOT_RUN`, and rows may
                have different seeds, but not where it `needs_all`.
            folder: of the runs.
            command: that makes this table or figure, to be kept beside the numbers.
            console: for progress.
        """
        ...

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Train what is missing, and make it of that: as `made_of`.

        Args:
            folder: of the runs; each has a folder of its own in it, and one that is finished is read.
            seeds: of each run.
            command, console: as for `made_of`.

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


class FromTrainings(ABC):
    """What is made of trainings: `Published.run`, by `trainings` and `made_of`."""

    needs_all: ClassVar[bool] = False

    def mark_of(self, slug: str) -> str:
        """What stands behind every number of ours in a row, as "few images"; empty where nothing does."""
        return ""

    @abstractmethod
    def trainings(self) -> Sequence[Row]:
        """As `Published.trainings`."""

    def images(self) -> Iterator[DataOptions]:
        """As `Published.images`."""
        for row in self.trainings():
            yield row.recipe.data

    @abstractmethod
    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`."""

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """As `Published.run`."""
        results = Grid(folder, console).results(self.trainings(), seeds)
        gone = [slug for slug, runs in results.items() if len(runs) < len(seeds)]
        results = of_common_seeds(results) if self.needs_all and results else results
        if gone and not any(results.values()):
            raise CapsellaError(f"{folder}: diverged with some seed or all: {', '.join(gone)}; remove to train anew")
        return self.made_of(results, folder, command, console)


class FolderTable(FromTrainings):
    """A table whose JSON has the name of the folder of its runs, which it shares with no other."""

    family: ClassVar[None] = None

    def path(self, folder: Path) -> Path:
        """`folder`/`folder's name`.json."""
        return folder / f"{folder.resolve().name}.json"


def table_values(
    *,
    title: str,
    note: str,
    measured: str,
    command: str,
    labels: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[dict[str, Any]],
    folder: Path | None = None,
    mark: str = "",
) -> dict[str, Any]:
    """A table's JSON.

    Args:
        title: paper and number.
        note: what a reader of the numbers must know.
        measured: one sentence on what was measured, on which data, over how many seeds, on which hardware.
        command: that makes this table.
        labels: heads of the first columns, whose cells say what a row is.
        columns: heads of the columns of numbers behind them.
        rows: each with its text under "cells", as many as there are heads, and beside it all it was made from; under
            "slugs", in the order of `ours_columns`, the rows whose networks reached what stands there.
        folder: of these rows' runs; what diverged there is named in the cells.
        mark: what must stand behind every number of ours, in a few words; see `marked_cells`.

    Raises:
        ValueError: a row has more or fewer cells than there are heads.
    """
    heads = [*labels, *columns]
    for row in rows:
        if len(row["cells"]) != len(heads):
            raise ArgumentError("cells", f"be {len(heads)}, one for each of {heads}", row["cells"])
    values = {"title": title, "note": note, "measured": measured, "command": command, "heads": heads}
    if folder is not None:
        rows = [_with_diverged(row, ours_columns(values), folder) for row in rows]
    return {**values, "labels": len(labels), **({"mark": mark} if mark else {}), "rows": list(rows)}


def _with_diverged(row: dict[str, Any], ours: Sequence[int], folder: Path) -> dict[str, Any]:
    """A row whose cells in these columns say which trainings diverged: `DIVERGED`, or "1.5 (1 seed diverged)"."""
    cells = list(row["cells"])
    for at, slug in zip(ours, row.get("slugs", []), strict=False):
        if gone := len(list(folder.glob(f"{slug}-seed*/diverged.json"))):
            note = f"{cells[at]} ({pluralize(gone, 'seed')} diverged)"
            cells[at] = DIVERGED if cells[at] == NOT_RUN else note
    return {**row, "cells": cells}


def draw_table(values: dict[str, Any]) -> Table:
    """A table's JSON for a terminal."""
    caption = " ".join(text for text in (values["measured"], values["note"]) if text)
    table = Table(*values["heads"], title=values["title"], caption=caption)
    for column in table.columns:
        column.overflow = "fold"  # a number cut short is no number
    for cells in marked_cells(values):
        table.add_row(*cells)
    return table


def marked_cells(values: Mapping[str, Any]) -> list[list[str]]:
    """The cells of a table's JSON, where what networks reached says in its cell that it is far from the paper's.

    >>> small = {"heads": ["data", "paper %", "ours %", "gap"], "command": "capsella table x --budget small"}
    >>> marked_cells({**small, "rows": [{"cells": ["MNIST", "0.25", "3.10", "+2.85"]}]})
    [['MNIST', '0.25', '3.10 (short)', '–']]
    """
    return [[f"{text} ({mark})" if mark else text for text, mark in row] for row in cells_and_marks(values)]


def cells_and_marks(values: Mapping[str, Any], states: Mapping[str, str] | None = None) -> list[list[tuple[str, str]]]:
    """Each cell of a table's JSON, and what must stand behind it, or nothing.

    A table's own mark stands behind every number of ours; without one, `SHORT` does at the small budget. A gap of such
    a row to the paper's value says nothing, so there is none.

    Args:
        values: as of `table_values`.
        states: by row, what its training is; it stands in place of the table's mark.
    """
    usual, ours = values.get("mark") or (SHORT if is_short(values) else ""), ours_columns(values)

    def marks(row: Mapping[str, Any]) -> dict[int, str]:
        of_column = dict(zip(ours, row.get("slugs", []), strict=False))
        found = {at: (states or {}).get(of_column.get(at, "")) or usual for at in ours}
        return {at: mark for at, mark in found.items() if mark and _NUMBER.match(row["cells"][at])}

    def marked(row: Mapping[str, Any]) -> list[tuple[str, str]]:
        found = marks(row)
        gone = {at for at, head in enumerate(values["heads"]) if head == _GAP} if found else set()
        return [("–" if at in gone else text, found.get(at, "")) for at, text in enumerate(row["cells"])]

    return [marked(row) for row in values["rows"]]


def ours_columns(values: Mapping[str, Any]) -> list[int]:
    """Which columns of a table's JSON hold what trained networks reached, beside what a paper prints."""
    return [at for at, head in enumerate(values["heads"]) if _OURS.search(head)]


def is_short(values: Mapping[str, Any]) -> bool:
    """Whether a table or figure is of the small budget, by the command that made it."""
    return "--budget small" in values["command"]


def hardware_of(results: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """The processors on which runs, by row or name, were trained, each once."""
    return " and ".join(dict.fromkeys(hardware(run["environment"]) for runs in results.values() for run in runs))


def mean_cell(values: Sequence[float], *, signed: bool = False) -> str:
    """The mean of one number a seed, with its standard deviation where there are several; a difference has a sign."""
    text = over_seeds(values)
    return f"+{text}" if signed and not text.startswith("-") else text


def seeds_phrase(results: Results) -> str:
    """What the numbers of a table are, from how many seeds.

    >>> seeds_phrase({"a": [{}], "b": []}), seeds_phrase({"a": [{}, {}, {}], "b": [{}]})
    ('one seed', 'mean ± standard deviation over 1 to 3 seeds a row')
    """
    counts = sorted({len(runs) for runs in results.values() if runs})
    if counts == [1]:
        return "one seed"
    seeds = f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds a row"
    return f"mean ± standard deviation over {seeds}"


def diverged_phrase(folder: Path, slugs: Iterable[str]) -> str:
    """Which of these rows' runs diverged, as a sentence behind another; empty where none did."""
    gone = sorted(path.parent.name for slug in slugs for path in folder.glob(f"{slug}-seed*/diverged.json"))
    return f" Diverged: {', '.join(gone)}." if gone else ""


def seeds_of(results: Results) -> list[int]:
    """The seeds of all runs, each once."""
    return list(dict.fromkeys(run["seed"] for runs in results.values() for run in runs))

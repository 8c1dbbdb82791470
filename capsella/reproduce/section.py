"""One table or figure on the page: its cells with what must stand in them, its picture, its learning curves."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsella.compare.figures import learning_figure
from capsella.errors import CapsellaError
from capsella.evaluation import accuracy_interval
from capsella.experiments import CorrectnessTable, Results
from capsella.files import read_json
from capsella.papers.table_types import cells_with_caveats, ours_columns
from capsella.report.pages import embedded
from capsella.reproduce.entries import Entry, tested
from capsella.reproduce.verdicts import state_of
from capsella.training import RunFolder

CURVES = 7
"""Rows in one picture of learning curves."""


@dataclass(frozen=True)
class Cell:
    """A cell. mark: what must stand beside its number. interval: its 95 % interval, or nothing."""

    text: str
    mark: str = ""
    interval: str = ""


@dataclass(frozen=True)
class Section:
    """A table or figure; where it is not made, `problem` says why. runs: how each row was trained, as commands."""

    name: str
    title: str
    command: str
    texts: Sequence[str]
    problem: str
    heads: Sequence[str]
    labels: int
    rows: Sequence[Sequence[Cell]]
    pictures: Sequence[str]
    curves: Sequence[str]
    runs: Sequence[tuple[str, str]]


def section_of(entry: Entry, seeds: int, problem: str | None) -> Section:
    """From what is written in the entry's folder.

    Raises:
        CapsellaError: unreadable metrics or results of a run, or numbers of the entry.
    """
    results: Results = {row.slug: tested(row, entry.folder, seeds) for row in entry.rows}
    values = read_json(entry.numbers) if entry.numbers.exists() else {}
    if not values and problem is None:
        waits = (
            "all its rows are trained with one seed"
            if entry.published.requires_common_seeds
            else "one of its rows is trained"
        )
        problem = f"Not made yet: it waits until {waits}."
    stand_in = f"Images: {entry.source}, in place of the paper's." if entry.source else ""
    texts = [stand_in, values.get("measured", ""), values.get("note", "")]
    return Section(
        name=entry.name,
        title=entry.published.title,
        command=entry.command(seeds),
        texts=[text for text in texts if text],
        problem=problem or "",
        heads=values.get("heads", []),
        labels=values.get("labels", 0),
        rows=_cells(entry, values, results) if "rows" in values and "heads" in values else [],
        pictures=_pictures(entry, values),
        curves=_curves(entry, results, _names(values)) if entry.verb == "table" else [],
        runs=[(slug, runs[0]["command"]) for slug, runs in results.items() if runs],
    )


def _cells(entry: Entry, values: Mapping[str, Any], results: Results) -> list[list[Cell]]:
    """Every number that a network reached with its interval, and with the state of its training."""
    states = {slug: state_of(entry, slug, runs) for slug, runs in results.items()}
    ours, marked = ours_columns(values), cells_with_caveats(values, states)
    rows = []
    for row, cells in zip(values["rows"], marked, strict=True):
        intervals = dict(zip(ours, _intervals(row, ours), strict=False))
        rows.append([Cell(text, mark, intervals.get(at, "")) for at, (text, mark) in enumerate(cells)])
    return rows


def _intervals(row: Mapping[str, Any], ours: Sequence[int]) -> list[str]:
    """Of a row's numbers in order, over seeds and test images; none where tests do not say which were right."""
    runs = row.get("runs", [])
    if not isinstance(runs, list):  # of several networks, by name, before they are attacked
        return []
    tests = [[run[key] for run in runs] for key in row.get("keys", ["test"])] if runs else []
    if not tests or len(tests) != len(ours):
        return []
    try:
        found = [accuracy_interval(*CorrectnessTable.from_tests(of)) for of in tests]
    except (CapsellaError, ValueError):
        return []
    return [f"{100 * (1 - one.high):.2f}–{100 * (1 - one.low):.2f}" for one in found]


def _pictures(entry: Entry, values: Mapping[str, Any]) -> list[str]:
    """A figure's PNG files in base64."""
    return [base64.b64encode(path.read_bytes()).decode() for path in entry.pictures(values)]


def _names(values: Mapping[str, Any]) -> dict[str, str]:
    """What stands left in the row of each slug; its slug beside it where a row has several."""
    names: dict[str, str] = {}
    for row in values.get("rows", []):
        label = ", ".join(text for text in map(str, row["cells"][: values.get("labels", 0)]) if text != "–")
        slugs = row.get("slugs", [])
        names |= {slug: label if len(slugs) == 1 else f"{label} ({slug})" for slug in slugs}
    return names if len(set(names.values())) == len(names) else {}


def _curves(entry: Entry, trained: Results, names: Mapping[str, str]) -> list[str]:
    """Errors against epochs, some rows a picture; a row without a name has its slug."""
    rows = [row for row in entry.rows if trained[row.slug]]
    pictures = []
    for number, start in enumerate(range(0, len(rows), CURVES)):
        tables = {
            names.get(row.slug, row.slug): [
                RunFolder(row.folder(entry.folder, run["seed"])).read_metrics() for run in trained[row.slug]
            ]
            for row in rows[start : start + CURVES]
        }
        training, validation = (
            {row: [table[name] for table in of] for row, of in tables.items()}
            for name in ("train_error", "validation_error")
        )
        figure = learning_figure(training, validation, {row: f"C{n}" for n, row in enumerate(tables)})
        pictures.append(embedded(figure, entry.folder / "figures" / f"{entry.name}-curves{number}.png"))
    return pictures

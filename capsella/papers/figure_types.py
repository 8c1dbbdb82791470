"""Types of published figures: pictures made with a trained network, and line plots of the results of many runs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from capsella.data import LabelledImages, load_data
from capsella.experiments import Results, Row
from capsella.files import write_json
from capsella.models import ImageClassifier
from capsella.papers.table_types import Published
from capsella.report.figures import axes_in_rows, printable, write_png
from capsella.training import load_run

Drawn = tuple[Figure, dict[str, Any]]  # a picture, and what it shows in numbers
# Okabe and Ito 2008: safe for the colour-blind. Their yellow is too pale for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKED_POINTS = 12  # lines with more points are drawn without markers


@dataclass(frozen=True, kw_only=True)
class RunFigure(Published):
    """A figure that a trained network and its test images make.

    rows: the run, shared with a table of the `family`. draw: function of the model and its test images; if the numbers
    it returns contain "note", that is added to the note of the figure.
    """

    suffix: ClassVar[str] = "png"

    rows: tuple[Row, ...]
    draw: Callable[[ImageClassifier, LabelledImages], Drawn]

    def build(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """See `Published.build`: draw a picture per seed, and write the numbers they show as JSON."""
        drawn: list[dict[str, Any]] = []
        (row,), path = self.rows, self.path(folder)
        test, runs = load_data(row.recipe.data).test, results[row.slug]
        for run in runs:
            figure, shown = self.draw(load_run(row.folder(folder, run["seed"])).model, test)
            picture = path if run is runs[0] else path.with_stem(f"{path.stem}-seed{run['seed']}")
            write_png(figure, picture)
            drawn.append({"picture": picture.name, "shown": shown, "run": run})
        errors = ", ".join(f"{run['test']['error_percent']:.2f}" for run in runs)
        seen = ", ".join(f"{run['training']['best']['images_seen']:,}" for run in runs)
        values = {
            "title": self.title,
            "note": f"{self.note} {drawn[0]['shown'].pop('note', '')}".strip(),
            "measured": f"{errors} % error on {runs[0]['test']['images']:,} test images of {runs[0]['data']}; {seen} "
            "seen in training.",
            "command": command,
            "figures": drawn,
        }
        write_json(path.with_suffix(".json"), values)
        return values


@dataclass(frozen=True)
class Series:
    """A line of a panel.

    name: legend entry; lines with the same name share a colour. sd: standard deviations over seeds, None for points
    with a single seed. paper: the numbers are the paper's; the line is dashed with hollow markers.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    sd: tuple[float | None, ...] | None = None
    paper: bool = False


@dataclass(frozen=True)
class Panel:
    """One plot of several lines. log: logarithmic x axis. chance: y of a dotted line."""

    title: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    log: bool = False
    chance: float | None = None


def panels_figure(panels: Sequence[Panel]) -> Figure:
    """Return a figure of the panels, three in a row, each with a legend and a y axis from 0 to 1."""
    figure, every = axes_in_rows(len(panels), 3, (4.6, 4.0), (0.4, 0))
    for panel, axes in zip(panels, every, strict=True):
        _draw(axes, panel)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    colours = dict(zip(dict.fromkeys(series.name for series in panel.series), cycle(COLOURS), strict=False))
    for series in panel.series:
        look: dict[str, Any] = {"color": colours[series.name], "markersize": 5}
        look["marker"] = "o" if len(series.x) <= MARKED_POINTS else None
        if series.paper:
            axes.plot(series.x, series.y, linestyle="--", linewidth=1, markerfacecolor="none", alpha=0.8, **look)
        else:
            bars = None if series.sd is None else [math.nan if sd is None else sd for sd in series.sd]
            axes.errorbar(series.x, series.y, bars, linewidth=1.4, capsize=2, label=printable(series.name), **look)
    if any(series.paper for series in panel.series):
        axes.plot([], [], color="#555555", linestyle="--", marker="o", markerfacecolor="none", label="the paper's")
    if panel.chance is not None:
        axes.axhline(panel.chance, color="#555555", linestyle=":", linewidth=1, label="chance")
    axes.legend(fontsize=8, loc="best")
    axes.set(title=panel.title, xlabel=panel.x_name, ylabel=panel.y_name, ylim=(0, 1.02))
    if panel.log:
        axes.set_xscale("log")
    axes.grid(alpha=0.25)

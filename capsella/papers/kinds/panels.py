"""Panels of lines, a paper's beside ours, drawn from plain numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from capsella.errors import ArgumentError
from capsella.report.figures import axes_in_rows, printable

# Okabe and Ito 2008: told apart by the colour-blind; their yellow is too pale for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "osD^vPX"
FEW = 12  # points of a line that has a marker at each


@dataclass(frozen=True)
class Series:
    """A line. name: in the legend; lines of one name have one colour and marker. x, y, sd: as many numbers each, sd
    the standard deviation over seeds; None for a point of one seed, and where all points are. paper: whether a paper
    printed the numbers: hollow markers, dashed.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    sd: tuple[float | None, ...] | None = None
    paper: bool = False

    def __post_init__(self) -> None:
        for what in ("y", "sd"):
            numbers = getattr(self, what)
            if numbers is not None and len(numbers) != len(self.x):
                raise ArgumentError(f"{what}", f"be {len(self.x)} numbers, one for each x", len(numbers))


@dataclass(frozen=True)
class Panel:
    """Lines over one pair of axes. ticks: where x is marked, or None. log: x on a logarithmic scale. level: a named
    height, drawn as a dotted line, as chance is.
    """

    title: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    ticks: tuple[float, ...] | None = None
    log: bool = False
    level: tuple[str, float] | None = None


def panels_figure(panels: Sequence[Panel]) -> Figure:
    """The panels side by side, three in a row, with the same heights from 0 to 1 and a legend each.

    Raises:
        ValueError: no panels.
    """
    if not panels:
        raise ArgumentError("panels", "hold at least one", None)
    figure, every = axes_in_rows(len(panels), 3, (4.6, 4.0), (0.4, 0))
    for panel, axes in zip(panels, every, strict=True):
        _draw(axes, panel)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    names = dict.fromkeys(series.name for series in panel.series)
    looks = dict(zip(names, cycle(zip(COLOURS, MARKERS, strict=True)), strict=False))
    for series in panel.series:
        colour, marker = looks[series.name]
        look: dict[str, Any] = {"color": colour, "marker": marker if len(series.x) <= FEW else None, "markersize": 5}
        if series.paper:
            axes.plot(series.x, series.y, linestyle="--", linewidth=1, markerfacecolor="none", alpha=0.8, **look)
        else:
            bars = None if series.sd is None else [math.nan if sd is None else sd for sd in series.sd]
            axes.errorbar(series.x, series.y, bars, linewidth=1.4, capsize=2, **look)
    handles = [Line2D([], [], color=colour, marker=marker) for colour, marker in looks.values()]
    labels = [printable(name) for name in looks]
    if any(series.paper for series in panel.series):
        handles.append(Line2D([], [], color="#555555", linestyle="--", marker="o", markerfacecolor="none"))
        labels.append("as the paper prints it")
    if panel.level is not None:
        axes.axhline(panel.level[1], color="#555555", linestyle=":", linewidth=1)
        handles.append(Line2D([], [], color="#555555", linestyle=":"))
        labels.append(panel.level[0])
    axes.legend(handles, labels, fontsize=8, loc="best")
    axes.set(title=panel.title, xlabel=panel.x_name, ylabel=panel.y_name, ylim=(0, 1.02))
    if panel.log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    if panel.ticks is not None:
        axes.set_xticks(panel.ticks, [f"{tick:,.0f}" for tick in panel.ticks], rotation=45 if panel.log else 0)
    axes.grid(alpha=0.25)

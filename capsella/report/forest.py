"""A forest plot: one line per comparison of two networks, with its difference, interval and adjusted p-value."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

LOWER, OPEN, UNTESTED = "#1b6e3c", "#1f6f9f", "#999999"


class ForestLine(NamedTuple):
    """A comparison: its gain in percentage points, the 95 % interval, and the adjusted p-value (None if untested)."""

    label: str
    gain: float
    low: float
    high: float
    p_value: float | None


def forest_figure(lines: Sequence[ForestLine], level: float = 0.05) -> Figure:
    """Draw, for each claim, how much lower the error of the network that it favours is.

    Differences are drawn on a scale that is linear up to one point and logarithmic beyond, since they range from
    hundredths of a point to more than ten. Grey: not tested; filled: significant after adjustment.
    """
    figure = Figure(figsize=(9, 1.1 + 0.27 * len(lines)), layout="constrained")
    axes = figure.add_subplot()
    for row, line in enumerate(lines):
        decided = line.p_value is not None and line.p_value < level
        colour = UNTESTED if line.p_value is None else LOWER if decided else OPEN
        axes.plot([line.low, line.high], [row, row], color=colour, linewidth=1.5)
        axes.plot(line.gain, row, "o", color=colour, markerfacecolor=colour if decided else "white", markersize=6)
        text = "not tested" if line.p_value is None else f"p {line.p_value:.2g}"
        axes.annotate(text, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xscale("symlog", linthresh=1)
    ticks = [-10, -3, -1, -0.5, 0, 0.5, 1, 3, 10]
    axes.set_xticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(lines)), [line.label for line in lines], fontsize=8, parse_math=False)
    axes.set(ylim=(len(lines) - 0.4, -0.6), xlabel="error lower by, percentage points (95 % interval)")
    axes.grid(axis="x", alpha=0.3)
    return figure

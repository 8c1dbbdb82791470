"""The figures of a comparison."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from capsella.evaluation import Interval
from capsella.report.figures import shorten


def forest_figure(differences: Mapping[str, Interval], reference: str, measure: str, detectable: float) -> Figure:
    """Draw a row per network: its difference from the reference, with its 95 % interval, in percentage points.

    The grey band covers the differences that the test is too small to detect.
    """
    figure = Figure(figsize=(6.4, 0.55 * len(differences) + 1.1), layout="constrained")
    axes = figure.add_subplot()
    axes.axvspan(-100 * detectable, 100 * detectable, color="0.5", alpha=0.15, linewidth=0)
    axes.axvline(0, color="0.4", linewidth=1)
    for row, interval in enumerate(differences.values()):
        reach = 100 * np.array([[interval.estimate - interval.low], [interval.high - interval.estimate]])
        axes.errorbar(100 * interval.estimate, row, xerr=reach, fmt="s", color="C0", capsize=4, markersize=7)
    axes.set_yticks(range(len(differences)), [shorten(name, 34) for name in differences], parse_math=False)
    axes.set(xlabel=f"points of {measure} more than {reference}", ylim=(len(differences) - 0.5, -0.5))
    axes.grid(axis="x", alpha=0.25)
    return figure


def curve_figure(curves: Mapping[str, Mapping[int, Interval]], measure: str) -> Figure:
    """Draw the measure against the number of training images, with 95 % intervals."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, curve) in enumerate(curves.items()):
        images = np.array(list(curve)) * (1 + 0.015 * number)  # side by side, so that all intervals are seen
        means = np.array([interval.estimate for interval in curve.values()])
        reach = np.array([[value.estimate - value.low, value.high - value.estimate] for value in curve.values()]).T
        axes.errorbar(
            images, 100 * means, yerr=100 * reach, fmt="o-", color=f"C{number % 10}", capsize=4, label=shorten(name, 34)
        )
    ticks: Sequence[int] = max(map(list, curves.values()), key=len)
    axes.set(xlabel="training images", ylabel=f"{measure} %", xscale="log")
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    legend = figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure

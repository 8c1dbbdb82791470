"""The figures of a search: the front, what the trials cost, and which fields mattered."""

from collections.abc import Mapping, Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from capsella.search.front import front
from capsella.search.outcome import Outcome
from capsella.search.schedule import BASE

AXES = {"ms": "milliseconds an image", "parameters": "parameters"}
BLUE, ORANGE, GREY = "#1f6f9f", "#c2571a", "#9aa3a8"


def front_figure(outcome: Outcome, objective: str) -> Figure:
    """Error against another objective: the finalists with their spread over seeds, the front joined, the others grey.

    Of the others, the error is that of the last rung which they reached. The front is that of these two objectives.
    """
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    column, error = outcome.objectives.index(objective), outcome.rules.error
    ends = {one.candidate for one in outcome.finalists}
    last = {r.job.candidate: r.values for r in sorted(outcome.records, key=lambda r: r.job.rung) if r.state == "done"}
    early = [values for candidate, values in last.items() if candidate not in ends]
    axes.plot([v[column] for v in early], [v[error] for v in early], "o", color=GREY, markersize=4, label="dropped")
    points = [(one.costs[objective], one.error) for one in outcome.whole]
    within = [(one.costs[objective], one.error) for one in outcome.whole if one in outcome.allowed]
    joined = sorted(within[n] for n in front(within))
    if joined:
        axes.step(*zip(*joined, strict=True), where="post", color=BLUE, alpha=0.6, label="front of these two")
    for one in outcome.finalists:
        colour = ORANGE if one.candidate == BASE else BLUE
        at = one.costs[objective]
        axes.errorbar(at, one.error, yerr=one.spread, fmt="D", color=colour, capsize=4, markersize=6)
        if one.candidate == BASE or (at, one.error) in joined:
            name = "the recipe" if one.candidate == BASE else str(one.candidate)
            axes.annotate(name, (at, one.error), xytext=(6, 6), textcoords="offset points", fontsize=9)
    axes.set(xlabel=AXES[objective], ylabel=f"{outcome.error_name} %")
    axes.margins(x=0.1)
    _scale(axes, "x", [*(v[column] for v in early), *(at for at, _ in points)])
    _scale(axes, "y", [*(v[error] for v in early), *(one for _, one in points)])
    axes.legend(fontsize=8, loc="upper center")
    axes.grid(alpha=0.25)
    return figure


def _scale(axes: Axes, name: Literal["x", "y"], values: Sequence[float]) -> None:
    """Logarithmic where numbers differ tenfold, linear below 1 where one is 0; ticks have no exponents."""
    axis, low, high = axes.xaxis if name == "x" else axes.yaxis, min(values), max(values)
    if high <= 10 * low:
        axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    else:
        least, zero = (low, []) if low > 0 else (1.0, [0.0])
        set_scale = axes.set_xscale if name == "x" else axes.set_yscale
        set_scale(**({"value": "symlog", "linthresh": 1.0} if zero else {"value": "log"}))
        digits = (1, 2, 5) if high <= 200 * least else (1,)
        ticks = [digit * 10.0**power for power in range(-6, 12) for digit in digits]
        axis.set_major_locator(FixedLocator([*zero, *(one for one in ticks if least <= one <= high)]))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def rungs_figure(outcome: Outcome) -> Figure:
    """A line a candidate: its validation error at the end of each rung that it reached."""
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.add_subplot()
    lines: dict[int, list[tuple[int, float]]] = {}
    for record in outcome.records:
        if record.state == "done" and record.job.seed == 0:
            point = outcome.rules.rungs[record.job.rung], record.values[outcome.rules.error]
            lines.setdefault(record.job.candidate, []).append(point)
    for candidate, points in lines.items():
        colour = ORANGE if candidate == BASE else BLUE
        alpha = 1.0 if candidate == BASE else 0.55
        label = "the recipe" if candidate == BASE else None
        axes.plot(*zip(*sorted(points), strict=True), "o-", color=colour, alpha=alpha, markersize=4, label=label)
    axes.set(xlabel="epochs", ylabel=f"{outcome.error_name} %", xscale="log")
    _scale(axes, "y", [error for points in lines.values() for _, error in points])
    axes.set_xticks(outcome.rules.rungs, [str(epochs) for epochs in outcome.rules.rungs])
    axes.minorticks_off()
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)
    return figure


def importance_figure(importances: Mapping[str, float]) -> Figure:
    """A bar a field: its share of what the error varies by."""
    figure = Figure(figsize=(7.2, 0.35 * len(importances) + 0.9), layout="constrained")
    axes = figure.add_subplot()
    names = list(importances)[::-1]
    axes.barh(names, [100 * importances[name] for name in names], color=BLUE)
    axes.set(xlabel="share of the variance of the error, %", xlim=(0, 100))
    axes.tick_params(axis="y", labelsize=9)
    return figure

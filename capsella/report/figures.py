"""Figures of numbers: confusion, calibration, training curves, accuracy on changed images."""

import base64
import io
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.legend import Legend
from matplotlib.ticker import MaxNLocator

from capsella.files import write_whole
from capsella.uncertainty import CalibrationCurve, SelectiveClassification

RESOLUTION = 150  # dots per inch of PNG files; figures are at most 5.5 inches wide, so that a phone shows their text
DARK = "#0b0b0b"  # text on light fields; plain black text takes the colour of the page
# In a page, black follows its colour scheme.
_SVG_STYLE = (
    "<style>:root{color:#1d2327}@media(prefers-color-scheme:dark){:root{color:#e6e8e9}}text{fill:currentColor}</style>"
)
# Fonts with letters that Matplotlib's default font lacks; used if installed.
OTHER_SCRIPTS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans", "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Thai"),
    *("Noto Sans Devanagari", "WenQuanYi Zen Hei", "Hiragino Sans", "Yu Gothic", "Microsoft YaHei", "Arial Unicode MS"),
)
TRAIN, VALIDATION, GREY, GRID = "#2b7fb3", "#c2571a", "#777777", "#999999"
# Columns of metrics.csv drawn in each panel, with their colour and line.
LOSSES = {
    "train_loss": (TRAIN, "-"),
    "train_classification": (TRAIN, "--"),
    "train_reconstruction": (TRAIN, ":"),
    "validation_loss": (VALIDATION, "-"),
}
ERRORS = {
    "train_error": (TRAIN, "-"),
    "validation_error": (VALIDATION, "-"),
    "validation_balanced_error": (VALIDATION, "--"),
}
RATES = {"learning_rate": (GREY, "-")}
LOWER, OPEN, UNTESTED = "#1b6e3c", "#1f6f9f", "#999999"  # colours of claims
Panel = tuple[str, Mapping[str, Float[np.ndarray, "4 points"]]]  # label of the x axis, and curves by name


def confusion_figure(confusion: Int[np.ndarray, "true predicted"], classes: Sequence[str]) -> Figure:
    """Draw a confusion matrix. Cells contain counts; their colours are proportions of the true class."""
    n = len(classes)
    cell = min(0.5, 4.2 / n)  # inches
    figure = Figure(figsize=(max(n * cell, 1.5) + 1.2, max(n * cell, 1.5) + 1.0), layout="constrained")
    axes = figure.add_subplot()
    share = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    axes.pcolormesh(np.where(confusion > 0, share, np.nan), cmap="Blues", vmin=-0.1, vmax=1, edgecolors=GRID, lw=0.4)
    size = min(11.0, 72 * cell / (0.75 * max(len(str(confusion.max())), 2) + 0.6))  # points: the longest number fits
    for true, predicted in np.argwhere(confusion):
        colour = "white" if share[true, predicted] > 0.5 else DARK
        count = str(confusion[true, predicted])
        axes.text(predicted + 0.5, true + 0.5, count, ha="center", va="center_baseline", color=colour, fontsize=size)
    names, name_size = [shorten(name) for name in classes], min(10.0, 72 * cell * 0.62)
    straight = max(map(len, names)) <= 3
    places = np.arange(n) + 0.5
    axes.set_xticks(places, names, rotation=0 if straight else 90, fontsize=name_size, parse_math=False)
    axes.set_yticks(places, names, fontsize=name_size, parse_math=False)
    axes.set(xlabel="predicted class", ylabel="true class", aspect="equal")
    axes.invert_yaxis()
    axes.tick_params(length=0)
    return figure


def reliability_figure(curve: CalibrationCurve) -> Figure:
    """Draw accuracy against confidence, above the number of images in each bin."""
    figure = Figure(figsize=(4.6, 3.8), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    centres, width = (curve.edges[:-1] + curve.edges[1:]) / 2, np.diff(curve.edges)
    filled = curve.counts > 0
    upper.plot([0, 1], [0, 1], color=GREY, linestyle="--", label="perfect")
    upper.bar(centres[filled], curve.accuracy[filled], width[filled] * 0.9, color=TRAIN, alpha=0.35)
    upper.plot(curve.confidence[filled], curve.accuracy[filled], "o-", color=TRAIN, label="model")
    upper.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.03))
    upper.legend(loc="upper left", frameon=False)
    upper.set_title(f"expected calibration error {curve.expected_error:.3f}", fontsize=10)
    lower.bar(centres, curve.counts, width * 0.9, color=TRAIN)
    lower.set(xlabel="confidence", ylabel="images")
    return figure


def training_figure(metrics: Mapping[str, Float[np.ndarray, " rows"]]) -> Figure:
    """Draw loss, error rate and learning rate against epochs. metrics: columns of metrics.csv; some may be missing."""
    panels = [("loss", LOSSES), ("error %", ERRORS), ("learning rate", RATES)]
    present = [name for name, column in metrics.items() if np.isfinite(column).any()]
    drawn = [(title, lines) for title, lines in panels if lines.keys() & present]
    figure, every = axes_in_rows(len(drawn), 2, (2.6, 2.4))
    for axes, (title, lines) in zip(every, drawn, strict=True):
        for name, (colour, style) in lines.items():
            if name in present:
                finite = np.isfinite(metrics[name])
                marker = "o" if finite.sum() <= 25 else None  # so that a single epoch is visible
                epochs, values = metrics["epoch"][finite], metrics[name][finite]
                axes.plot(
                    epochs, values, style, color=colour, marker=marker, markersize=3, label=name.replace("_", " ")
                )
        axes.set(xlabel="epoch", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(0, 1.05 * axes.dataLim.ymax or 1)
        axes.grid(alpha=0.25)
        if len(lines) > 1:
            axes.legend(fontsize=8, frameon=False)
    return figure


def accuracy_figure(panels: Mapping[str, Panel]) -> Figure:
    """Draw accuracy in per cent against the strength of a change: titled panels, with a line per curve.

    A curve's rows are strengths, accuracies, and lower and upper ends of intervals.
    """
    figure, every = axes_in_rows(len(panels), 2, (2.6, 2.2), (0, 0.5), sharey=True)
    names = list(dict.fromkeys(name for _, curves in panels.values() for name in curves))
    handles = {}
    for (title, (label, curves)), axes in zip(panels.items(), every, strict=True):
        for name, (strengths, accuracy, low, high) in curves.items():
            number = names.index(name)
            colour, style = f"C{number % 10}", ("o-", "s--", "^:")[number // 10 % 3]
            (handles[name],) = axes.plot(strengths, accuracy, style, color=colour, markersize=4)
            axes.fill_between(strengths, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set(xlabel=label, ylim=(-2, 103))
        axes.set_title(shorten(title), fontsize=10, parse_math=False)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.grid(alpha=0.25)
    for axes in every[::2]:
        axes.set_ylabel("accuracy %")
    place: dict[str, Any] = {
        "loc": "outside lower center",
        "fontsize": 8,
        "frameon": False,
        "ncols": min(2, len(names)),
    }
    _as_written(figure.legend(handles.values(), map(printable, handles), **place))
    return figure


def axes_in_rows(
    n: int, columns: int, each: tuple[float, float], beside: tuple[float, float] = (0, 0), sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure with n axes, at most `columns` per row.

    Args:
        each, beside: width and height in inches of each axes, and added for the whole figure.
    """
    columns = min(columns, n)
    rows = -(-n // columns)
    size = (each[0] * columns + beside[0], each[1] * rows + beside[1])
    figure = Figure(figsize=size, layout="constrained")
    every = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for axes in every[n:]:  # unused axes of the last row
        axes.remove()
    return figure, every[:n]


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


def risk_coverage_figure(result: SelectiveClassification) -> Figure:
    """Draw risk against coverage of test and validation images, with dots at the thresholds from validation."""
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for split, colour, style in (("test", TRAIN, "-"), ("validation", VALIDATION, "--")):
        coverage, risk = result.curves[split]
        axes.plot(100 * coverage, 100 * risk, style, color=colour, label=split, drawstyle="steps-pre")
    dots = [(100 * p.kept / result.images, 100 * p.errors / p.kept) for p in result.points if p.kept]
    axes.plot(*zip(*dots, strict=True), "o", color=TRAIN, label="test, at thresholds from validation")
    axes.set(xlabel="coverage: most confident images kept (%)", ylabel="error rate of those kept (%)", xlim=(0, 101))
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", frameon=False)
    return figure


def _as_written(legend: Legend) -> None:
    """Turn off math mode, so that a dollar sign in a name does not start a formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def activation_bars(axes: Axes, activations: Float[np.ndarray, " classes"], classes: Sequence[str], most: int) -> None:
    """Draw the `most` largest class activations as horizontal bars, the largest on top and highlighted."""
    order = np.argsort(-activations, kind="stable")[:most]
    colours = [VALIDATION] + [TRAIN] * (len(order) - 1)
    axes.barh(range(len(order)), activations[order], color=colours)
    axes.set_yticks(range(len(order)), [shorten(classes[k]) for k in order], parse_math=False)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel="class activation")
    title = "" if len(order) == len(classes) else f"the {len(order)} largest of {len(classes)}"
    axes.set_title(title, fontsize=10)


def write_png(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file."""
    content = _drawn(figure, "png")
    write_whole(path, lambda temporary: temporary.write_bytes(content))


def write_figure(figure: Figure, path: Path) -> str:
    """Write a figure as a PNG file, and return it as an SVG data URI, which is small and has sharp text."""
    write_png(figure, path)
    svg = _drawn(figure, "svg", transparent=True).decode()
    svg = svg[svg.index("<svg") :].replace("#000000", "currentColor").replace("<defs>", f"{_SVG_STYLE}<defs>", 1)
    return f"data:image/svg+xml;base64,{base64.b64encode(printable(svg).encode()).decode()}"


def _drawn(figure: Figure, kind: str, **options: Any) -> bytes:
    """Return the bytes of a figure in a file format."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"font.sans-serif": _fonts(), "svg.fonttype": "none"}):
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")  # a page's reader may have the font
        figure.savefig(buffer, format=kind, dpi=RESOLUTION, bbox_inches="tight", **options)
    return buffer.getvalue()


@cache
def _fonts() -> list[str]:
    """Return Matplotlib's default font and the installed `OTHER_SCRIPTS`."""
    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in OTHER_SCRIPTS if name in installed)]


def printable(text: str) -> str:
    """Replace bytes of a file name that are not UTF-8, so that it can be drawn and written."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def shorten(name: str, most: int = 22) -> str:
    """Return a name cut to `most` characters, with an ellipsis if it is longer."""
    name = printable(name)
    return name if len(name) <= most else name[: most - 1] + "…"

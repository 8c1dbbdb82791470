"""Figures of numbers: confusion, calibration, training curves, robustness, attacks."""

import base64
import io
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.legend import Legend
from matplotlib.ticker import MaxNLocator

from capsella.errors import ArgumentError, warn_once
from capsella.evaluation import PERTURBATIONS, Robustness, Roc, shares
from capsella.files import write_whole
from capsella.uncertainty import CalibrationCurve, OODReport, SelectiveClassification

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
STYLES = ("o-", "s--", "^:")  # line styles of the first ten networks, the next ten, and so on


def confusion_figure(confusion: Int[np.ndarray, "true predicted"], classes: Sequence[str]) -> Figure:
    """Draw a confusion matrix. Cells contain counts; their colours are proportions of the true class."""
    n = len(classes)
    if confusion.shape != (n, n):
        raise ArgumentError("confusion", f"be classes × classes = {(n, n)}", confusion.shape)
    cell = min(0.5, 4.2 / n)  # inches
    figure = Figure(figsize=(max(n * cell, 1.5) + 1.2, max(n * cell, 1.5) + 1.0), layout="constrained")
    axes = figure.add_subplot()
    share = shares(confusion)
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


def roc_figure(curves: Mapping[str, Roc]) -> Figure:
    """Draw sensitivity against 1 − specificity of each class, with the area under the curve in the legend."""
    if not curves:
        raise ArgumentError("curves", "hold at least one class", None)
    figure = Figure(figsize=(4.8, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="by chance (0.500)")
    for number, (name, curve) in enumerate(curves.items()):
        style = ("-", "--", ":")[number // 10 % 3]
        label = f"{shorten(name)} ({curve.auc:.3f})"
        axes.plot(curve.false_positives, curve.true_positives, style, color=f"C{number % 10}", label=label)
    axes.set(xlabel="1 − specificity", ylabel="sensitivity", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    axes.grid(alpha=0.25)
    columns = -(-len(curves) // 20)
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "frameon": False}
    _as_written(axes.legend(fontsize=8, ncols=columns, title="class (AUC)", **place))
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
    if "epoch" not in metrics:
        raise ArgumentError("metrics", "hold the column epoch", sorted(metrics))
    panels = [("loss", LOSSES), ("error %", ERRORS), ("learning rate", RATES)]
    present = [name for name, column in metrics.items() if np.isfinite(column).any()]
    drawn = [(title, lines) for title, lines in panels if lines.keys() & present]
    if not drawn:
        raise ArgumentError("metrics", "hold a loss, an error or the learning rate", sorted(metrics))
    figure, every = axes_in_rows(len(drawn), 2, (2.6, 2.4))
    for axes, (title, lines) in zip(every, drawn, strict=True):
        for name, (colour, style) in lines.items():
            if name in present:
                _curve(axes, metrics["epoch"], metrics[name], colour, style, name.replace("_", " "))
        axes.set(xlabel="epoch", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(0, 1.05 * axes.dataLim.ymax or 1)
        axes.grid(alpha=0.25)
        if len(lines) > 1:
            axes.legend(fontsize=8, frameon=False)
    return figure


def _curve(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str, style: str, label: str) -> None:
    """Draw a line through the finite values, with dots if they are few, so that a single epoch is visible."""
    finite = np.isfinite(x) & np.isfinite(y)
    marker = "o" if finite.sum() <= 25 else None
    axes.plot(x[finite], y[finite], color=colour, linestyle=style, marker=marker, markersize=3, label=label)


def robustness_figure(result: Robustness) -> Figure:
    """Draw accuracy against strength: a panel per perturbation, a line per network with its 95 % interval."""
    names = result.perturbations
    if not names:
        raise ArgumentError("result", "hold at least one point", None)
    figure, panels = axes_in_rows(len(names), 2, (2.6, 2.2), (0, 0.5), sharey=True)
    for name, axes in zip(names, panels, strict=True):
        for number, network in enumerate(result.networks):
            curve = result.curve(network, name)
            strengths, colour = [point.strength for point in curve], f"C{number % 10}"
            style = STYLES[number // 10 % len(STYLES)]
            axes.plot(strengths, [point.accuracy for point in curve], style, color=colour, label=printable(network))
            low, high = zip(*(point.interval for point in curve), strict=True)
            axes.fill_between(strengths, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set(xlabel=PERTURBATIONS[name].unit, ylim=(0, 103))
        axes.set_title(name, fontsize=10)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.grid(alpha=0.25)
    for axes in panels[::2]:
        axes.set_ylabel("accuracy %")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    look: dict[str, Any] = {"loc": "outside lower center", "fontsize": 8, "frameon": False}
    _as_written(figure.legend(handles, labels, ncols=min(2, len(labels)), **look))
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


def attack_figure(epsilons: Sequence[float], curves: Mapping[tuple[str, str], Sequence[float]]) -> Figure:
    """Draw accuracy in per cent against ε, with a curve for each (network, attack).

    Each network has a colour, each attack a marker; transferred attacks are dashed.
    """
    if not curves:
        raise ArgumentError("curves", "hold at least one attack", None)
    for (network, attack), accuracy in curves.items():
        if len(accuracy) != len(epsilons):
            raise ValueError(
                f"curves: must have {len(epsilons)} numbers, one per ε, got {len(accuracy)} for {attack} on {network}"
            )
    figure = Figure(figsize=(5, 4.4), layout="constrained")
    axes = figure.add_subplot()
    networks = list(dict.fromkeys(network for network, _ in curves))
    kinds = list(dict.fromkeys(attack.partition(" ")[0] for _, attack in curves))
    for (network, attack), accuracy in curves.items():
        colour, marker = f"C{networks.index(network)}", "osD^vP"[kinds.index(attack.partition(" ")[0]) % 6]
        style = "--" if " from " in attack else "-"
        label = f"{shorten(network)}: {printable(attack)}"
        axes.plot(epsilons, accuracy, linestyle=style, marker=marker, markersize=4, color=colour, label=label)
    axes.set(xlabel="ε: largest change of a pixel, of images in [0, 1]", ylabel="accuracy %", ylim=(-2, 102))
    axes.grid(alpha=0.25)
    _as_written(figure.legend(fontsize=8, loc="outside lower center", frameon=False))
    return figure


def ood_figure(result: OODReport) -> Figure:
    """Draw ROC curves of OOD detection: a panel per OOD set, a line per score; the combined score is thick."""
    figure, panels = axes_in_rows(len(result.sets), 2, (2.6, 2.4), (0, 0.5), sharey=True)
    for ood, axes in zip(result.sets, panels, strict=True):
        for number, (name, curve) in enumerate(ood.curves.items()):
            style, width = STYLES[number // 10 % len(STYLES)], 1.2 if number else 2.5
            axes.plot(*curve, style, color=f"C{number % 10}", linewidth=width, label=name)
        axes.axvline(result.false_positive_rate, color=GREY, linestyle=":", linewidth=1)
        axes.set(xlabel="false-positive rate", xlim=(-0.01, 1.01), ylim=(-0.01, 1.03))
        axes.set_title(shorten(ood.name), fontsize=10, parse_math=False)
        axes.grid(alpha=0.25)
    for axes in panels[::2]:
        axes.set_ylabel("true-positive rate")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
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
    """Return the bytes of a figure in a file format; warn once if no installed font has some of its letters."""
    buffer = io.BytesIO()
    with (
        warnings.catch_warnings(record=True) as caught,
        rc_context({"font.sans-serif": _fonts(), "svg.fonttype": "none"}),
    ):
        warnings.filterwarnings("always", message=r"Glyph .* missing from font")
        figure.savefig(buffer, format=kind, dpi=RESOLUTION, bbox_inches="tight", **options)
    for warning in caught:
        if "missing from font" not in str(warning.message):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
            continue
        warn_once("fonts", "pictures show boxes for letters that no installed font has; Noto Sans CJK may help")
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

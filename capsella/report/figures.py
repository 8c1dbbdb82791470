"""Figures of numbers: confusion, calibration, training curves, coupling entropy, robustness."""

import io
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.legend import Legend
from matplotlib.ticker import MaxNLocator
from PIL import Image

from capsella.errors import ArgumentError, warn_once
from capsella.evaluation import PERTURBATIONS, OODReport, Robustness, Roc, SelectiveClassification, shares
from capsella.files import write_whole
from capsella.uncertainty import CalibrationCurve

RESOLUTION = 110  # dots an inch
# Fonts for letters that Matplotlib's own does not have, if installed
OTHER_SCRIPTS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans", "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Thai"),
    *("Noto Sans Devanagari", "WenQuanYi Zen Hei", "Hiragino Sans", "Yu Gothic", "Microsoft YaHei", "Arial Unicode MS"),
)
TRAIN, VALIDATION, GREY = "#1f6f9f", "#c2571a", "#777777"
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
STYLES = ("o-", "s--", "^:")  # of the first ten networks, and so on


def confusion_figure(
    confusion: Int[np.ndarray, "true predicted"], classes: Sequence[str], of: Literal["true", "predicted"] = "true"
) -> Figure:
    """Draw a confusion matrix with counts in the cells and colours normalised over rows (true) or columns."""
    n = len(classes)
    if confusion.shape != (n, n):
        raise ArgumentError("confusion", f"be classes × classes = {(n, n)}", confusion.shape)
    cell = 0.55 if n <= 12 else 0.36 if n <= 30 else 0.22  # inches
    side = max(n * cell, 2.4)
    figure = Figure(figsize=(side + 2.6, side + 1.8), layout="constrained")
    axes = figure.add_subplot()
    share = shares(confusion, of)
    picture = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    digits = len(str(confusion.max()))
    size = min(11.0, 72 * cell / (0.75 * max(digits, 2) + 0.6))  # points: the longest number fits into its cell
    for true, predicted in np.argwhere(confusion):
        colour = "white" if share[true, predicted] > 0.5 else "black"
        count = str(confusion[true, predicted])
        axes.text(predicted, true, count, ha="center", va="center", color=colour, fontsize=size)
    names, name_size = [shorten(name) for name in classes], min(10.0, 72 * cell * 0.62)
    straight = max(map(len, names)) <= 3
    axes.set_xticks(range(n), names, rotation=0 if straight else 90, fontsize=name_size, parse_math=False)
    axes.set_yticks(range(n), names, fontsize=name_size, parse_math=False)
    axes.set(xlabel="predicted class", ylabel="true class")
    figure.colorbar(picture, ax=axes, label=f"share of the {of} class", shrink=0.6)
    return figure


def roc_figure(curves: Mapping[str, Roc]) -> Figure:
    """Draw sensitivity against 1 − specificity of each class, with the area under the curve in the legend."""
    if not curves:
        raise ArgumentError("curves", "hold at least one class", None)
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="by chance (0.500)")
    for number, (name, curve) in enumerate(curves.items()):
        style = ("-", "--", ":")[number // 10 % 3]
        label = f"{shorten(name)} ({curve.auc:.3f})"
        axes.plot(curve.false_positives, curve.true_positives, style, color=f"C{number % 10}", label=label)
    axes.set(xlabel="1 − specificity", ylabel="sensitivity", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    axes.grid(alpha=0.25)
    columns = -(-len(curves) // 20)
    _as_written(axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), ncols=columns, title="class (AUC)"))
    return figure


def reliability_figure(curve: CalibrationCurve) -> Figure:
    """Draw accuracy against confidence, above the number of images in each bin."""
    figure = Figure(figsize=(5, 5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    centres, width = (curve.edges[:-1] + curve.edges[1:]) / 2, np.diff(curve.edges)
    filled = curve.counts > 0
    upper.plot([0, 1], [0, 1], color=GREY, linestyle="--", label="perfect")
    upper.bar(centres[filled], curve.accuracy[filled], width[filled] * 0.9, color=TRAIN, alpha=0.35)
    upper.plot(curve.confidence[filled], curve.accuracy[filled], "o-", color=TRAIN, label="model")
    upper.set(ylabel="share right", xlim=(0, 1), ylim=(0, 1.03))
    upper.legend(loc="upper left")
    upper.set_title(f"expected calibration error {curve.expected_error:.3f}", fontsize=10)
    lower.bar(centres, curve.counts, width * 0.9, color=TRAIN)
    lower.set(xlabel="confidence", ylabel="images")
    return figure


def training_figure(metrics: Mapping[str, Float[np.ndarray, " rows"]]) -> Figure:
    """Draw loss, error rate and learning rate against epochs, as far as `metrics` (columns of metrics.csv) has them."""
    if "epoch" not in metrics:
        raise ArgumentError("metrics", "hold the column epoch", sorted(metrics))
    panels = [("loss", LOSSES), ("error %", ERRORS), ("learning rate", RATES)]
    present = [name for name, column in metrics.items() if np.isfinite(column).any()]
    drawn = [(title, lines) for title, lines in panels if lines.keys() & present]
    if not drawn:
        raise ArgumentError("metrics", "hold a loss, an error or the learning rate", sorted(metrics))
    figure, every = axes_in_rows(len(drawn), len(drawn), (4.2, 3.4))
    for axes, (title, lines) in zip(every, drawn, strict=True):
        for name, (colour, style) in lines.items():
            if name in present:
                _curve(axes, metrics["epoch"], metrics[name], colour, style, name.replace("_", " "))
        axes.set(xlabel="epoch", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(0, 1.05 * axes.dataLim.ymax or 1)
        axes.grid(alpha=0.25)
        if len(lines) > 1:
            axes.legend(fontsize=8)
    return figure


def _curve(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str, style: str, label: str) -> None:
    """Draw a line through the rows that have a number, with dots if they are few, so that a single epoch shows."""
    finite = np.isfinite(x) & np.isfinite(y)
    marker = "o" if finite.sum() <= 25 else None
    axes.plot(x[finite], y[finite], color=colour, linestyle=style, marker=marker, markersize=3, label=label)


def entropy_figure(layers: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the normalised coupling entropy of each routed layer against the routing iteration."""
    if not layers:
        raise ArgumentError("layers", "hold at least one routed layer", None)
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for name, entropy in layers.items():
        axes.plot(range(1, len(entropy) + 1), entropy, "o-", label=name)
    axes.axhline(1, color=GREY, linestyle="--", linewidth=1)
    longest = max(map(len, layers.values()))
    axes.set(xlabel="routing iteration", ylabel="coupling entropy / ln(parents)", ylim=(0, 1.05))
    axes.set(xlim=(0.5, longest + 0.5), xticks=range(1, longest + 1))
    axes.legend(fontsize=8)
    return figure


def robustness_figure(result: Robustness) -> Figure:
    """Draw accuracy against strength: a panel per perturbation, a line per network with its 95 % interval."""
    names = result.perturbations
    if not names:
        raise ArgumentError("result", "hold at least one point", None)
    figure, panels = axes_in_rows(len(names), 2, (4.4, 3.3), (0, 0.5), sharey=True)
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
    _as_written(figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)), fontsize=8))
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
    for axes in every[n:]:  # what is left over of the last row
        axes.remove()
    return figure, every[:n]


def attack_figure(epsilons: Sequence[float], curves: Mapping[tuple[str, str], Sequence[float]]) -> Figure:
    """Draw accuracy in per cent against ε, with a curve for each (network, attack).

    A network has one colour, an attack one marker; transferred images are dashed.
    """
    if not curves:
        raise ArgumentError("curves", "hold at least one attack", None)
    for (network, attack), accuracy in curves.items():
        if len(accuracy) != len(epsilons):
            raise ValueError(
                f"curves: must have {len(epsilons)} numbers, one an ε, got {len(accuracy)} for {attack} on {network}"
            )
    figure = Figure(figsize=(8, 4.2), layout="constrained")
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
    _as_written(axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1)))
    return figure


def ood_figure(result: OODReport) -> Figure:
    """Draw ROC curves of OOD detection: a panel per OOD set, a line per score; the combined score is thick."""
    figure, panels = axes_in_rows(len(result.sets), 3, (3.4, 3.2), (0, 0.5), sharey=True)
    for ood, axes in zip(result.sets, panels, strict=True):
        for number, (name, curve) in enumerate(ood.curves.items()):
            style, width = STYLES[number // 10 % len(STYLES)], 1.2 if number else 2.5
            axes.plot(*curve, style, color=f"C{number % 10}", linewidth=width, label=name)
        axes.axvline(result.false_positive_rate, color=GREY, linestyle=":", linewidth=1)
        axes.set(xlabel="false-positive rate", xlim=(-0.01, 1.01), ylim=(-0.01, 1.03))
        axes.set_title(shorten(ood.name), fontsize=10, parse_math=False)
        axes.grid(alpha=0.25)
    for axes in panels[::3]:
        axes.set_ylabel("true-positive rate")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=8)
    return figure


def risk_coverage_figure(result: SelectiveClassification) -> Figure:
    """Draw risk against coverage of test and validation images, with dots at the thresholds from validation."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for split, colour, style in (("test", TRAIN, "-"), ("validation", VALIDATION, "--")):
        coverage, risk = result.curves[split]
        axes.plot(100 * coverage, 100 * risk, style, color=colour, label=split, drawstyle="steps-pre")
    dots = [(100 * p.kept / result.images, 100 * p.errors / p.kept) for p in result.points if p.kept]
    axes.plot(*zip(*dots, strict=True), "o", color=TRAIN, label="test, at thresholds from validation")
    axes.set(xlabel="coverage: most confident images kept (%)", ylabel="error rate of those kept (%)", xlim=(0, 101))
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")
    return figure


def _as_written(legend: Legend) -> None:
    """Turn off math mode, so that a dollar in a name starts no formula."""
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


def write_png(figure: Figure, path: Path, source: Path | None = None) -> bytes:
    """Write a figure as a PNG file; return its bytes. The file that it is made from, if given, is kept in it."""
    picture = png_bytes(figure, {} if source is None else {"Source": printable(str(source.absolute()))})
    write_whole(path, lambda temporary: temporary.write_bytes(picture))
    return picture


def source_of(path: Path) -> str | None:
    """Return the file that a PNG file was made from, as `write_png` kept it; None if there is none."""
    if not path.exists():
        return None
    with Image.open(path) as picture:
        return str(picture.info.get("Source", ""))


def png_bytes(figure: Figure, metadata: Mapping[str, str] = {}) -> bytes:
    """Return a figure as a PNG file."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught, rc_context({"font.sans-serif": _fonts()}):
        warnings.filterwarnings("always", message=r"Glyph .* missing from font")
        figure.savefig(buffer, format="png", dpi=RESOLUTION, bbox_inches="tight", metadata=dict(metadata))
    for warning in caught:
        if "missing from font" not in str(warning.message):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
            continue
        warn_once("fonts", "pictures show boxes for letters that no font here has; installing Noto Sans CJK may help")
    return buffer.getvalue()


@cache
def _fonts() -> list[str]:
    """Return Matplotlib's own font, then installed ones for other scripts."""
    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in OTHER_SCRIPTS if name in installed)]


def printable(text: str) -> str:
    """Replace what is not UTF-8 in a file name, so that it can be drawn and written."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def shorten(name: str, most: int = 22) -> str:
    """Return a name that fits beside an axis, with an ellipsis if it is long."""
    name = printable(name)
    return name if len(name) <= most else name[: most - 1] + "…"

"""Figures of how one image was routed: maps over the image, the types that feed a parent, and the graph of all."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from capsella.errors import ArgumentError
from capsella.report.figures import TRAIN, VALIDATION, shorten
from capsella.report.image_grids import show
from capsella.report.routing_views import RoutedLayer

MOST_TYPES = 10  # child types in a chart, and nodes in a column of the graph
GRAPH_NOTE = "A routing graph, not a proven parse tree: lines show where activity was sent, not what a part means."


def layer_figure(
    layer: RoutedLayer, picture: Float[np.ndarray, "height width c"], parent: int, parent_name: str
) -> Figure:
    """One layer, a column an iteration: what went to a parent over the image, the coupling entropy below it.

    On the right, the child types that feed the parent most, before and after routing.

    Raises:
        ValueError: a parent outside the layer's.
    """
    parents = layer.evidence.shape[4]
    if not 0 <= parent < parents:
        raise ArgumentError("parent", f"be in 0…{parents - 1}", parent)
    columns = layer.iterations
    figure = Figure(figsize=(2.3 * columns + 4.2, 5.2), layout="constrained")
    figure.suptitle(f"{layer.title}: what went to {shorten(parent_name, 40)}", fontsize=11, parse_math=False)
    grid = figure.add_gridspec(2, columns + 1, width_ratios=(*[1] * columns, 1.5))
    routed = layer.evidence[..., parent].sum(3)  # [iterations h w]
    for column in range(columns):
        above, below = (figure.add_subplot(grid[row, column]) for row in (0, 1))
        _overlay(above, picture, layer.fields.spread(routed[column], picture.shape[:2]), routed.max())
        above.set_title(f"iteration {column + 1}", fontsize=9)
        _entropy(below, layer.entropy_map[column], layer.entropy[column])
    _feeding(figure.add_subplot(grid[:, columns]), layer.between_types[..., parent])
    figure.axes[0].set_ylabel("routed evidence\non the input", fontsize=9)
    figure.axes[1].set_ylabel("coupling entropy\nover positions", fontsize=9)
    return figure


def _overlay(axes: Axes, picture: np.ndarray, spread: np.ndarray, largest: float) -> None:
    """The image in grey under a heat map, with lines at half and nine tenths of the most of all iterations."""
    show(axes, picture.mean(2, keepdims=True) * 0.7)
    axes.imshow(spread, cmap="inferno", alpha=0.6, vmin=0, vmax=largest or 1)
    levels = [part * largest for part in (0.5, 0.9) if spread.min() < part * largest < spread.max()]
    if levels:
        lines = axes.contour(spread, levels, colors="white", linewidths=0.8)
        axes.clabel(lines, fmt={level: f"{level / largest:.0%}" for level in levels}, fontsize=7)


def _entropy(axes: Axes, grid: np.ndarray, mean: float) -> None:
    """Heat map with the number in each cell, where cells are few enough to read them."""
    axes.imshow(grid, cmap="viridis", vmin=0, vmax=1)
    if max(grid.shape) <= 8:
        for row, column in np.argwhere(np.isfinite(grid)):
            value = grid[row, column]
            text = f"{value:.2f}".lstrip("0") if value < 1 else "1"
            axes.text(column, row, text, ha="center", va="center", fontsize=6, color="black" if value > 0.6 else "w")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(f"mean {mean:.3f}" if np.isfinite(mean) else "one parent: no choice", fontsize=9)


def _feeding(axes: Axes, given: Float[np.ndarray, "iterations c_in"]) -> None:
    """The child types that give most, after the last iteration (bars) and after the first (dots)."""
    order = np.argsort(-given[-1], kind="stable")[:MOST_TYPES]
    axes.barh(range(len(order)), given[-1][order], color=TRAIN, label="last iteration")
    if len(given) > 1:
        axes.plot(given[0][order], range(len(order)), "D", color=VALIDATION, markersize=4, label="first iteration")
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
    axes.set_yticks(range(len(order)), [f"type {k + 1}" for k in order], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("Σ coupling · activation", fontsize=9)
    axes.set_title(f"the {len(order)} types that feed it most, of {given.shape[1]}", fontsize=9)


def graph_figure(layers: Sequence[RoutedLayer], classes: Sequence[str], target: int) -> Figure:
    """Types as nodes, a column a layer, the classes last; lines as strong as what was sent along them.

    A column shows the types that give most to those of the next one, and the last but one those that give most to the
    class `target`: other classes' lines from types that are not shown are left out. Beside each step stands its
    coupling entropy: near 1, routing decided nothing, whatever the lines look like.

    Raises:
        ValueError: no layers, or names that are not one a class.
    """
    if not layers:
        raise ArgumentError("layers", "hold at least one routed layer", None)
    if len(classes) != layers[-1].evidence.shape[4]:
        raise ArgumentError("classes", f"name each of {layers[-1].evidence.shape[4]} classes", len(classes))
    columns = _nodes(layers, target)
    figure = Figure(figsize=(2.6 * len(columns) + 2, 5.4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    for number, layer in enumerate(layers):
        chosen = target if number == len(layers) - 1 else None
        _edges(axes, number, columns[number], columns[number + 1], layer.between_types[-1], chosen)
        middle, entropy = number + 0.5, layer.entropy
        text = f"{layer.title}\nentropy {entropy[0]:.3f} → {entropy[-1]:.3f}"
        axes.text(middle, 1.07, text if np.isfinite(entropy[-1]) else layer.title, ha="center", fontsize=8)
    for number, nodes in enumerate(columns[:-1]):
        _column(axes, number, {node: f"type {node + 1}" for node in nodes}, None)
    _column(axes, len(layers), {node: shorten(classes[node]) for node in columns[-1]}, target)
    axes.set(xlim=(-0.45, len(layers) + 0.6), ylim=(-0.05, 1.2))
    figure.supxlabel(GRAPH_NOTE, fontsize=8)
    return figure


def _column(axes: Axes, number: int, names: dict[int, str], target: int | None) -> None:
    """Nodes under their names: classes, of which `target` is marked, on the right, types (no target) on the left."""
    beside, side = (-0.05, "right") if target is None else (0.05, "left")
    for (node, name), height in zip(names.items(), _heights(list(names)), strict=True):
        chosen = node == target
        axes.plot(number, height, "o", color=VALIDATION if chosen else TRAIN, zorder=3)
        text = f"▸ {name}" if chosen else name
        axes.text(number + beside, height, text, ha=side, va="center", fontsize=8, parse_math=False)


def _nodes(layers: Sequence[RoutedLayer], target: int) -> list[list[int]]:
    """Types of each column: the classes that got most, the target among them, and back to the primary capsules."""
    received = layers[-1].between_types[-1].sum(0)
    others = [int(k) for k in np.argsort(-received, kind="stable") if k != target]
    columns = [sorted([target, *others[: MOST_TYPES - 1]])]
    wanted = [target]
    for layer in reversed(layers):
        given = layer.between_types[-1][:, wanted].sum(1)
        wanted = sorted(int(k) for k in np.argsort(-given, kind="stable")[:MOST_TYPES])
        columns.insert(0, wanted)
    return columns


def _heights(nodes: Sequence[int]) -> list[float]:
    """Evenly from top to bottom."""
    return [1 - (k + 0.5) / len(nodes) for k in range(len(nodes))]


def _edges(
    axes: Axes, number: int, below: list[int], above: list[int], weights: np.ndarray, target: int | None
) -> None:
    """Lines between two columns; those to the target, if it stands in the upper one, solid, the others dashed."""
    shown = weights[np.ix_(below, above)]
    largest = shown.max() or 1.0
    for k, low in enumerate(_heights(below)):
        for j, high in enumerate(_heights(above)):
            share = shown[k, j] / largest
            if share < 0.05:
                continue
            line, colour, layer = ("-", VALIDATION, 2) if above[j] == target else ("--", TRAIN, 1)
            width, alpha = 0.3 + 2.7 * share, 0.25 + 0.6 * share
            ends = (number, number + 1), (low, high)
            axes.plot(*ends, line, color=colour, linewidth=width, alpha=alpha, zorder=layer)

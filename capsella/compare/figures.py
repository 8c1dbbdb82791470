"""The figures that compare networks."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from capsella.errors import ArgumentError
from capsella.evaluation import FoldInterval, Interval

Curves = Mapping[str, Sequence[Float[np.ndarray, " epochs"]]]


def accuracy_figure(
    accuracies: Mapping[str, Interval | FoldInterval],
    by_seed: Mapping[str, Sequence[float]],
    colours: Mapping[str, str],
) -> Figure:
    """Draw a row per network: the mean over seeds, or folds, with its 95 % interval, and each as a dot; in per cent.

    Raises:
        ValueError: no networks.
    """
    if not accuracies:
        raise ArgumentError("accuracies", "hold at least one network", None)
    figure = Figure(figsize=(7, 0.6 * len(accuracies) + 1), layout="constrained")
    axes = figure.add_subplot()
    for row, (name, interval) in enumerate(accuracies.items()):
        reach = 100 * np.array([[interval.estimate - interval.low], [interval.high - interval.estimate]])
        axes.errorbar(100 * interval.estimate, row, xerr=reach, fmt="D", color=colours[name], capsize=4, markersize=6)
        seeds = 100 * np.array(by_seed[name])
        axes.plot(seeds, np.full(len(seeds), row + 0.22), "o", color=colours[name], alpha=0.5, markersize=4)
    axes.set_yticks(range(len(accuracies)), list(accuracies), fontsize=9, parse_math=False)
    axes.set(xlabel="test accuracy %", ylim=(len(accuracies) - 0.5, -0.5))
    axes.grid(axis="x", alpha=0.25)
    return figure


def learning_figure(training: Curves, validation: Curves, colours: Mapping[str, str]) -> Figure:
    """Training and validation error against the epoch: mean over seeds, shaded from the best seed to the worst.

    Raises:
        ValueError: no networks.
    """
    if not training:
        raise ArgumentError("training", "hold the curves of at least one network", None)
    figure = Figure(figsize=(8.4, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, title, curves in zip(
        panels, ("on training images", "on validation images"), (training, validation), strict=True
    ):
        for name, seeds in curves.items():
            table = np.stack([seed[: min(map(len, seeds))] for seed in seeds])
            epochs = np.arange(1, table.shape[1] + 1)
            marker = "o" if table.shape[1] <= 25 else None
            axes.plot(epochs, table.mean(0), color=colours[name], label=name, marker=marker, markersize=3)
            axes.fill_between(epochs, table.min(0), table.max(0), color=colours[name], alpha=0.15, linewidth=0)
        axes.set(xlabel="epoch")
        axes.set_title(title, fontsize=10)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
    panels[0].set(ylabel="error %", ylim=(0, None))
    _legend(figure, panels[0])
    return figure


def size_figure(curves: Mapping[str, Mapping[int, Interval]], colours: Mapping[str, str]) -> Figure:
    """Test accuracy against the number of training images, with 95 % intervals.

    Raises:
        ValueError: no networks.
    """
    if not curves:
        raise ArgumentError("curves", "hold at least one network", None)
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, curve) in enumerate(curves.items()):
        images = np.array(list(curve)) * (1 + 0.01 * number)  # side by side, so that both intervals are seen
        means = np.array([interval.estimate for interval in curve.values()])
        reach = np.array(
            [[interval.estimate - interval.low, interval.high - interval.estimate] for interval in curve.values()]
        ).T
        axes.errorbar(images, 100 * means, yerr=100 * reach, fmt="o-", color=colours[name], capsize=4, label=name)
    ticks = list(next(iter(curves.values())))
    axes.set(xlabel="training images", ylabel="test accuracy %", xscale="log")
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    _legend(figure, axes)
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)

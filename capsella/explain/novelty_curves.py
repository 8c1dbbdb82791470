"""The picture of what is known: how many images from elsewhere are found at each share of false alarms."""

from matplotlib.figure import Figure

from capsella.evaluation import Knowledge
from capsella.explain.plots import GREY, STYLES, axes_in_rows, shorten


def novelty_figure(result: Knowledge) -> Figure:
    """ROC curves, a panel a set from elsewhere, a line a score; what `known` is made by is thick."""
    figure, panels = axes_in_rows(len(result.sets), 3, (3.4, 3.2), (0, 0.5), sharey=True)
    for one, axes in zip(result.sets, panels, strict=True):
        for number, (name, curve) in enumerate(one.curves.items()):
            style, width = STYLES[number // 10 % len(STYLES)], 1.2 if number else 2.5
            axes.plot(*curve, style, color=f"C{number % 10}", linewidth=width, label=name)
        axes.axvline(result.refuse, color=GREY, linestyle=":", linewidth=1)
        axes.set(xlabel="false alarms: test images", xlim=(-0.01, 1.01), ylim=(-0.01, 1.03))
        axes.set_title(shorten(one.name), fontsize=10, parse_math=False)
        axes.grid(alpha=0.25)
    for axes in panels[::3]:
        axes.set_ylabel("images from elsewhere found")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=8)
    return figure

"""The picture of selective classification: how the error falls as more images are left to a human."""

from matplotlib.figure import Figure

from capsella.evaluation import Rejection
from capsella.explain.plots import TRAIN, VALIDATION


def risk_coverage_figure(result: Rejection) -> Figure:
    """Error against the share of images kept, of test and validation images; dots at the validation's thresholds."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for split, colour, style in (("test", TRAIN, "-"), ("validation", VALIDATION, "--")):
        kept, risk = result.curves[split]
        axes.plot(100 * kept, 100 * risk, style, color=colour, label=split, drawstyle="steps-pre")
    dots = [(100 * one.kept / result.images, 100 * one.errors / one.kept) for one in result.kept if one.kept]
    axes.plot(*zip(*dots, strict=True), "o", color=TRAIN, label="test, at thresholds from validation")
    axes.set(xlabel="images kept, the surest first (%)", ylabel="error of those kept (%)", xlim=(0, 101))
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")
    return figure

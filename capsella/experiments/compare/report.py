"""The report of a comparison: one HTML file, and each figure as PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure

from capsella.environment import environment, machine, versions
from capsella.errors import pluralize
from capsella.evaluation import Interval
from capsella.evaluation.metrics import confusions
from capsella.experiments.compare.results import Comparison
from capsella.experiments.compare.words import network_cells, phrase, plan_lines, short_warnings, shortcut_lines
from capsella.experiments.runner import format_duration
from capsella.files import write_text
from capsella.report.figures import confusion_figure, shorten
from capsella.report.image_figures import mosaic
from capsella.report.pages import Picture, Section, picture, pictures_of, render_page

MOST_PICTURES, MOST_LABELS = 18, 24


def write_report(found: Comparison) -> Path:
    """Write report.html and figures/*.png into the folder of a comparison; return the path of the page.

    Raises:
        CapsellaError: no space on the disk.
    """
    plan, decision = found.plan, found.decision
    headline, sentences = phrase(found)
    every = [_forest(found), _confusion(found), _mistakes(found), _curve(found), _labels(found)]
    page = render_page(
        "capsella.experiments.compare",
        "report.html.jinja",
        title=f"Which network for {plan.splits.name}?",
        headline=headline,
        sentences=sentences,
        warnings=short_warnings(found.shortcuts),
        commands={}
        if decision.recommended is None
        else {"export it (predict takes it, too)": f"capsella export {plan.folder}"},
        heads=("network", "accuracy", "balanced accuracy", "ms per image", "parameters"),
        rows=[
            (*network_cells(decision, network), f"{network.parameters / 1e6:.2f} million")
            for network in decision.networks
        ],
        best=[] if decision.recommended is None else [decision.recommended.title],
        protocol=[*shortcut_lines(found.shortcuts), *_protocol(found)],
        facts=_facts(found),
        sections={section.name: section for section in every},
        pictures=pictures_of(every, plan.folder),
    )
    path = plan.folder / "report.html"
    write_text(path, page)
    return path


def _forest(found: Comparison) -> Section:
    decision, titles = found.decision, {network.name: network.title for network in found.decision.networks}
    text = (
        f"{decision.setting.measure.capitalize()} of each network minus that of {decision.reference.title}, image by "
        "image, with 95 % intervals. An interval that does not contain 0 shows a difference. True differences "
        "within the grey band would often go unnoticed."
    )
    differences = {titles[name]: interval for name, interval in decision.differences.items()}
    figure = forest_figure(differences, decision.reference.title, decision.setting.measure, decision.detectable)
    return Section("forest", "How sure is the difference?", text, figure)


def _confusion(found: Comparison) -> Section:
    leader, setting = found.decision.leader, found.setting
    matrix = np.zeros((len(setting.classes),) * 2, int)
    np.add.at(matrix, (setting.labels, found.predicted[leader.name][0]), 1)
    common = [
        f"{setting.classes[kind.true]} taken for {setting.classes[kind.predicted]} ({kind.images})"
        for kind in confusions(matrix)[:3]
    ]
    text = f"Rows are true classes, columns predictions. Most frequent mistakes: {', '.join(common) or 'none'}."
    return Section("confusion", f"What {leader.title} confuses", text, confusion_figure(matrix, setting.classes))


def _mistakes(found: Comparison) -> Section:
    leader, setting = found.decision.leader, found.setting
    predicted, probabilities = found.predicted[leader.name][0], found.probabilities[leader.name]
    wrong = np.flatnonzero(predicted != setting.labels)
    confidence = probabilities[np.arange(len(predicted)), predicted]
    order = wrong[np.argsort(-confidence[wrong], kind="stable")][:MOST_PICTURES]
    name, title = "mistakes", f"Mistakes of {leader.title}"
    if not len(order):
        return Section(name, title, "There are none.")
    text = (
        f"The {pluralize(len(order), 'mistake')} with the highest probability, of {len(wrong)}. Each image was "
        "classified by a network that had not seen it."
    )
    return Section(name, title, text, gallery=_pictures(found, order, predicted[order], confidence[order]))


def _labels(found: Comparison) -> Section:
    name, title = "labels", "Labels that may be wrong"
    suspects = found.labels.suspects
    if not len(suspects):
        return Section(name, title, "None stands out.")
    shown = suspects[:MOST_LABELS]
    text = (
        f"{pluralize(len(suspects), 'label')} of {len(found.files):,} may be wrong: networks that had not seen the "
        "image agree on another class (confident learning). The pictures show the label, the proposed class and its "
        "lead in probability. label_errors.csv ranks every image. Look at each before you change it."
    )
    gallery = _pictures(found, shown, found.labels.proposed[shown], -found.labels.margin[shown], "should it be")
    return Section(name, title, text, gallery=gallery)


def _pictures(
    found: Comparison,
    picked: Int[np.ndarray, " n"],
    predicted: Int[np.ndarray, " n"],
    confidence: Float[np.ndarray, " n"],
    between: str = "taken for",
) -> tuple[Picture, ...]:
    """Return test images with their class, another class, a number between 0 and 1, and the name of the file."""
    classes = found.setting.classes
    pixels = found.plan.tested.take(torch.from_numpy(picked)).images.float() / 255
    gallery = []
    for k, image, other, share in zip(picked.tolist(), pixels, predicted.tolist(), confidence.tolist(), strict=True):
        caption = f"{classes[found.setting.labels[k]]}, {between} {classes[other]} {share:.2f} · {found.files[k]}"
        gallery.append(picture(mosaic(image[None, None].numpy()), caption, False))
    return tuple(gallery)


def _curve(found: Comparison) -> Section:
    name, title = "curve", "Would more images help?"
    if not found.curves:
        plan, reason = found.plan, "a class has too few images or groups for a part of it"
        if not plan.has_curve:
            reason = f"{plan.options.minutes:g} minutes were too short" if plan.options.curve else "--no-curve was set"
        return Section(name, title, f"Not measured: {reason}.")
    titles = {network.name: network.title for network in found.decision.networks}
    where = " of the first fold" if found.plan.is_crossvalidated else ""
    shares = ", ".join(f"{100 * share:g}" for share in found.plan.shares)
    text = (
        f"Each network trained on {shares} and 100 % of the training images, tested on the same test images{where}, "
        "with 95 % intervals. If a curve still rises at its end, more images should help."
    )
    curves = {titles[network]: curve for network, curve in found.curves.items()}
    return Section(name, title, text, curve_figure(curves, found.setting.measure))


def _protocol(found: Comparison) -> list[str]:
    plan, options = found.plan, found.plan.options
    parts = "; ".join(
        f"{each.title} {plan.network_seconds(each) / 60:.0f} minutes"
        + (
            ""
            if each.is_fitted
            else f", {plan.epochs(each)} of usually {each.epochs_for(len(plan.splits.train))} epochs"
        )
        for each in plan.contenders
    )
    fitted = [each.title for each in plan.contenders if each.is_fitted]
    lines = [
        *plan_lines(plan),
        f"Planned for {options.minutes:g} minutes: {parts}. Parts are even, unless a network needs less, or more for "
        "its fewest epochs.",
    ]
    if fitted:
        lines.append(
            f"{' and '.join(fitted)}: weights from other images, not trained further; a logistic regression on its "
            "features, whose strength of regularisation was cross-validated on the training images."
        )
    of_fold = " of each fold (about)" if plan.is_crossvalidated else ""
    trainings = " and over trainings" if plan.has_repeats else "; one training of each network"
    rates = "its recipe's learning rate" if options.rates == 1 else "the best of three learning rates"
    return [
        *lines,
        f"Each network had {rates}. {len(plan.splits.validation):,} validation images{of_fold} chose the epoch, "
        "and the best network of each kind. Test images chose nothing but the recommendation.",
        f"Accuracy counts images that no network had seen. Intervals are 95 %, over images or groups{trainings}. "
        "Images without a group are taken for independent.",
    ]


def _facts(found: Comparison) -> dict[str, str]:
    plan, splits = found.plan, found.plan.splits
    counts = np.bincount(found.setting.labels, minlength=len(splits.classes))
    classes = ", ".join(f"{name} ({count})" for name, count in zip(splits.classes, counts, strict=True))
    made_with = environment()
    facts = {
        "images": f"{splits.name}: {len(found.files):,} tested; {classes}",
        "time": f"{format_duration(found.seconds)}, announced {format_duration(plan.total_seconds())}",
        "machine": machine(made_with),
        "versions": versions(made_with),
    }
    if plan.notes:
        facts["notes"] = "; ".join(plan.notes)
    if splits.broken:
        facts["left out"] = f"{pluralize(len(splits.broken), 'image')} that cannot be read: {'; '.join(splits.broken)}"
    return facts


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

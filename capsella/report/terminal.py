"""Tables of results for a terminal of 80 columns."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from capsella.data import ClassCounts
from capsella.evaluation import (
    PERTURBATIONS,
    AttackOptions,
    AttackResult,
    Evaluation,
    Robustness,
    RoutingReport,
    confusions,
    points,
)
from capsella.evaluation.domain import Adaptation
from capsella.report.prose import evaluation_notes, evaluation_warnings, majority_text, ood_notes
from capsella.uncertainty import OODReport, SelectiveClassification

MOST_COLUMNS = 12  # larger confusion matrices do not fit a terminal; their most frequent confusions are listed
WIDTH = 80
MOST_CONFUSIONS = 15


def counts_table(title: str, counts: Sequence[ClassCounts]) -> Table:
    """Return a table of the number of images per class and split."""
    table = Table("class", "train", "validation", "test", title=Text(title))
    for row in counts:
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


def evaluation_table(evaluation: Evaluation) -> RenderableType:
    """Return warnings, error, balanced accuracy, scores of each class, confusions, calibration and notes."""
    warnings = [Text(f"WARNING: {warning}", style="bold red") for warning in evaluation_warnings(evaluation)]
    low, high = evaluation.error_interval
    headline = Text(
        f"error {evaluation.error:.2f} % (95 % interval {low:.2f} to {high:.2f}): "
        f"{evaluation.errors} of {len(evaluation.labels)} images wrong",
        style="bold",
    )
    low, high = evaluation.balanced_accuracy_interval
    balanced = f"balanced accuracy {evaluation.balanced_accuracy:.2f} % (95 % interval {low:.2f} to {high:.2f})"
    area = "" if evaluation.macro_auc is None else f", mean AUC {evaluation.macro_auc:.3f}"
    lines = [Text(balanced, "bold"), Text(f"macro-F1 {100 * evaluation.macro_f1:.2f} %{area}")]
    if evaluation.majority is not None and evaluation.majority.is_beaten:  # otherwise it is a warning
        lines.append(Text(majority_text(evaluation.majority)))
    scores = _table(("class", "images", "recall % (95 %)", "specificity %", "precision %", "F1 %", "AUC"), left=1)
    for score in evaluation.per_class:
        recall = with_interval(score.recall, score.recall_interval)
        shares = (percent(value) for value in (score.specificity, score.precision, score.f1))
        area = "–" if score.auc is None else f"{score.auc:.3f}"
        scores.add_row(Text(score.name), str(score.support), recall, *shares, area)
    is_small = len(evaluation.classes) <= MOST_COLUMNS
    confusion = _confusion_matrix(evaluation) if is_small else _frequent_confusions(evaluation)
    calibration = Text(
        f"expected calibration error {evaluation.calibration.expected_error:.4f} "
        f"({len(evaluation.calibration.counts)} bins; confidence is {evaluation.confidence_text})"
    )
    notes = [Text(f"note: {note}") for note in evaluation_notes(evaluation)]
    return Group(*warnings, headline, *lines, Text("\neach class"), scores, *confusion, calibration, *notes)


def routing_table(report: RoutingReport) -> RenderableType:
    """Return starved capsules and static couplings of each layer, parse trees of each class, and gradient norms."""
    headings = ("layer", "starved", "variance between images", "of it between classes", "by chance")
    layers = _table(headings, left=1, title=f"routing of {report.images} images, %")
    for layer in report.layers:
        shares = (layer.starved_share, layer.image_share, layer.class_share, layer.expected_class_share)
        layers.add_row(Text(layer.name), *(f"{100 * share:.1f}" for share in shares))
    trees = _table(("class", "distinct parse trees", "images"), left=1)
    for name, counts in report.parse_trees.items():
        trees.add_row(Text(name), *map(str, counts))
    norms = _table(("module", "gradient norm"), left=1)
    for name, norm in report.gradient_norms.items():
        norms.add_row(Text(name), f"{norm:.3g}")
    return Group(Text("\nrouting"), layers, trees, norms)


def attack_table(results: Mapping[str, AttackResult], options: AttackOptions) -> RenderableType:
    """Return accuracy by attack and ε, and the rate at which successful attacks are flagged as OOD."""
    headings = ("network", "attack", *(f"ε = {epsilon:g}" for epsilon in (0, *options.epsilons)))
    accuracy = _table(headings, left=2, title="accuracy % under attack, L∞")
    flagged = _table(headings, left=2, title="images flagged as OOD, % of those fooled (– if none is fooled)")
    for name, result in results.items():
        for curve in result.curves:
            values = (f"{value:.1f}" for value in (result.clean, *curve.accuracy))
            accuracy.add_row(Text(name), Text(curve.label), *values)
            if result.false_positives is not None:
                pairs = zip(curve.flagged, curve.fooled, strict=True)
                rates = (f"{100 * found / fooled:.0f}" if fooled else "–" for found, fooled in pairs)
                flagged.add_row(Text(name), Text(curve.label), f"{result.false_positives:.1f}", *rates)
    return Group(accuracy, flagged) if flagged.row_count else accuracy


def robustness_tables(result: Robustness) -> list[Table]:
    """Return a table for each perturbation: a row per network, a column per strength, with intervals."""
    tables = []
    for name in result.perturbations:
        points = result.curve(result.networks[0], name)
        title = f"{name} ({PERTURBATIONS[name].unit})"
        table = Table(title=title, title_justify="left", show_lines=True, padding=0)
        table.add_column("accuracy %", overflow="fold")
        for point in points:
            table.add_column(f"{point.strength:g}", justify="right", no_wrap=True)
        for network in result.networks:
            cells = (
                f"{point.accuracy:.1f}\n{point.interval[0]:.1f}–{point.interval[1]:.1f}"
                for point in result.curve(network, name)
            )
            table.add_row(Text(network), *cells)  # Text, not str: a run may be called "[red]"
        tables.append(table)
    return tables


def selective_table(result: SelectiveClassification) -> RenderableType:
    """Return errors by coverage, and calibration before and after."""
    points = _table(("coverage %", "threshold", "kept", "kept %", "wrong", "error %", "95 % interval"))
    for point in result.points:
        error = interval = "–"
        if point.error_interval_95 is not None:
            error = f"{100 * point.errors / point.kept:.2f}"
            interval = " to ".join(f"{100 * end:.2f}" for end in point.error_interval_95)
        kept = str(point.kept), f"{100 * point.kept / result.images:.1f}"
        points.add_row(f"{100 * point.coverage:g}", f"{point.threshold:.6f}", *kept, str(point.errors), error, interval)
    return Group(
        Text(f"\nselective classification: thresholds from {result.validation_images} validation images"),
        points,
        Text(
            "calibration on the test images (before: activations divided by their sum): "
            f"expected error {result.ece_before:.4f} → {result.ece:.4f}"
        ),
    )


def ood_table(result: OODReport) -> RenderableType:
    """Return the images flagged as OOD, the AUROC of every score, and notes."""
    flagged = _table(("images", "number", "flagged %", "95 % interval", "another kind %"), left=1)
    for row in (result.test, *result.sets):
        low, high = row.flagged_interval_95
        rates = f"{100 * row.flagged / row.images:.1f}", f"{100 * low:.1f} to {100 * high:.1f}"
        rates = rates if result.has_threshold else ("–", "–")
        kind = "–" if row.other_kind is None else f"{100 * row.other_kind / row.images:.1f}"
        flagged.add_row(Text(row.name, overflow="ellipsis"), str(row.images), *rates, kind)
    areas = _table(("images", "score", "AUROC", "95 % interval"), left=2)
    for row in result.sets:
        for number, score in enumerate(row.scores):
            interval = " to ".join(f"{end:.3f}" for end in score.interval_95)
            title, last = Text("" if number else row.name, overflow="ellipsis"), number == len(row.scores) - 1
            areas.add_row(title, score.score, f"{score.auc:.3f}", interval, end_section=last)
    rate = f"a false-positive rate of {100 * result.false_positive_rate:g} %"
    threshold = f"threshold from {result.validation_images} validation images, for {rate}"
    return Group(
        Text(f"\nout-of-distribution images: {threshold if result.has_threshold else 'no threshold, see the note'}"),
        flagged,
        Text("\nAUROC of test images against OOD images; 0.5 is chance"),
        areas,
        *(Text(f"note: {note}") for note in ood_notes(result)),
    )


def adaptation_table(adapted: Adaptation) -> Table:
    """Return error and balanced accuracy before and after, for each set of test images."""
    table = _table(("tested on", "", "before (95 %)", "after (95 %)"), left=2)
    for name, pair in adapted.tests.items():
        table.add_row(Text(name), "error %", *(_percent(test.error, test.error_interval) for test in pair))
        balanced = (_percent(test.balanced_accuracy, test.balanced_accuracy_interval) for test in pair)
        table.add_row("", "balanced acc. %", *balanced)
    return table


def _percent(percent: float, interval: tuple[float, float]) -> str:
    return f"{percent:.1f} ({interval[0]:.1f}–{interval[1]:.1f})"


def adaptation_lines(adapted: Adaptation) -> list[str]:
    """Return warnings, the gain with its interval, the error on the labelled images, and the folder."""
    before, after = next(iter(adapted.tests.values()))
    gain, over = adapted.gain, "test images" if after.groups is None else "groups of test images"
    calibration = "not calibrated, which needs two labelled images per class: predict gives no probabilities"
    if adapted.held_out is not None:
        error = f"{adapted.held_out.error:.1f} %"
        calibration = f"error on the labelled images, each by a network adapted without it: {error}"
    return [
        *(f"WARNING: {warning}" for warning in evaluation_warnings(after)),
        f"errors on {len(after.labels)} images: {before.errors} before, {after.errors} after; gain in accuracy "
        f"{points(gain.estimate)} points (95 % interval {points(gain.low)} to {points(gain.high)}, over {over} only; "
        "other labelled images would give another number)",
        calibration,
        f"run     {adapted.folder}",
    ]


def with_interval(proportion: float | None, interval: tuple[float, float] | None) -> str:
    """Format a proportion in per cent with its interval.

    >>> with_interval(0.5, (0.25, 0.75))
    '50.0 (25.0 to 75.0)'
    """
    if proportion is None or interval is None:
        return "–"
    return f"{100 * proportion:.1f} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def percent(proportion: float | None) -> str:
    """Format a proportion in per cent with two decimals, or as a dash if there is none."""
    return "–" if proportion is None else f"{100 * proportion:.2f}"


def _table(headings: Sequence[str], left: int = 0, title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right")
    return table


def _confusion_matrix(evaluation: Evaluation) -> tuple[RenderableType, ...]:
    rows = columns = list(evaluation.classes)
    if max(map(len, rows)) + sum(map(len, rows)) + 3 * (len(rows) + 1) + 1 > WIDTH:  # head the columns with numbers
        columns = [str(number) for number in range(1, len(rows) + 1)]
        rows = [f"{number} {name}" for number, name in zip(columns, rows, strict=True)]
    table = Table()
    table.add_column("")
    for name in columns:
        table.add_column(Text(name), justify="right")
    for true, row in enumerate(evaluation.confusion.tolist()):
        cells = (Text(str(n) if n else "·", style="green" if true == c else "") for c, n in enumerate(row))
        table.add_row(Text(rows[true]), *cells)
    return Text("\nconfusion: true class (rows) by predicted class (columns)"), table


def _frequent_confusions(evaluation: Evaluation) -> tuple[RenderableType, ...]:
    kinds = confusions(evaluation.confusion)
    table = _table(("true class", "predicted as", "images", "% of true class"), left=2)
    for true, predicted, images in kinds[:MOST_CONFUSIONS]:
        share = percent(images / evaluation.per_class[true].support)
        table.add_row(Text(evaluation.classes[true]), Text(evaluation.classes[predicted]), str(images), share)
    return Text(f"\nconfusions: the most frequent {table.row_count} of {len(kinds)} kinds"), table

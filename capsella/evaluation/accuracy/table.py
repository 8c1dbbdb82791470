"""An evaluation as tables for a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from capsella.evaluation.accuracy.evaluation import Evaluation
from capsella.evaluation.accuracy.scores import confusions, shares

# Wider matrices do not fit a terminal: the commonest confusions are listed instead.
MOST_COLUMNS = 12
WIDTH = 80  # of a terminal
MOST_CONFUSIONS, MOST_BESIDE = 15, 5  # the second: beside a matrix


def evaluation_table(evaluation: Evaluation) -> RenderableType:
    """Warnings, error, balanced accuracy, scores of each class, confusions, calibration, notes."""
    warnings = [Text(f"WARNING: {warning}", style="bold red") for warning in evaluation.warnings()]
    low, high = evaluation.error_interval
    headline = Text(
        f"error {evaluation.error:.2f} % (95 % interval {low:.2f} to {high:.2f}): "
        f"{evaluation.errors} of {len(evaluation.labels)} images wrong",
        style="bold",
    )
    narrow = len(evaluation.classes) <= MOST_COLUMNS
    confusion = _confusion_matrix(evaluation) if narrow else _commonest_confusions(evaluation)
    calibration = Text(
        f"expected calibration error {evaluation.calibration.expected_error:.4f} "
        f"({len(evaluation.calibration.counts)} bins; confidence is {evaluation.confidence_means})"
    )
    notes = [Text(f"note: {note}") for note in evaluation.notes()]
    tables = _scores(evaluation), _sensitivities(evaluation), confusion
    return Group(*warnings, headline, *_over_classes(evaluation), Text("\neach class"), *tables, calibration, *notes)


def _over_classes(evaluation: Evaluation) -> list[Text]:
    """What the error hides where one class has most of the images."""
    low, high = evaluation.balanced_accuracy_interval
    area = "" if evaluation.macro_auc is None else f", mean AUC {evaluation.macro_auc:.3f}"
    lines = [
        Text(f"balanced accuracy {evaluation.balanced_accuracy:.2f} % (95 % interval {low:.2f} to {high:.2f})", "bold"),
        Text(f"macro-F1 {100 * evaluation.macro_f1:.2f} %{area}"),
    ]
    if evaluation.majority is not None and evaluation.majority.is_beaten:  # else it is a warning
        lines.append(Text(str(evaluation.majority)))
    return lines


def _scores(evaluation: Evaluation) -> Table:
    table = Table()
    table.add_column("class")
    for heading in ("images", "predicted", "precision %", "recall %", "F1 %"):
        table.add_column(heading, justify="right")
    for score in evaluation.per_class:
        shares = (percent(share) for share in (score.precision, score.recall, score.f1))
        # Text, not str: a class may be called "[red]".
        table.add_row(Text(score.name), str(score.support), str(score.predicted), *shares)
    return table


def _sensitivities(evaluation: Evaluation) -> Table:
    table = Table()
    table.add_column("class")
    for heading in ("sensitivity % (95 %)", "specificity % (95 %)", "AUC"):
        table.add_column(heading, justify="right")
    for score in evaluation.per_class:
        table.add_row(
            Text(score.name),
            with_interval(score.recall, score.recall_interval),
            with_interval(score.specificity, score.specificity_interval),
            "–" if score.auc is None else f"{score.auc:.3f}",
        )
    return table


def _confusion_matrix(evaluation: Evaluation) -> Group:
    table, rows = Table(), list(evaluation.classes)
    columns = rows
    if max(map(len, rows)) + sum(map(len, rows)) + 3 * (len(rows) + 1) + 1 > WIDTH:  # numbers in place of names
        columns = [str(number) for number in range(1, len(rows) + 1)]
        rows = [f"{number} {name}" for number, name in zip(columns, rows, strict=True)]
    table.add_column("")
    for name in columns:
        table.add_column(Text(name), justify="right")
    for true, row in enumerate(evaluation.confusion.tolist()):
        cells = (Text(str(n) if n else "·", style="green" if true == c else "") for c, n in enumerate(row))
        table.add_row(Text(rows[true]), *cells)
    heading = Text("\nconfusion: true class (rows) by predicted class (columns)")
    return Group(heading, table, _commonest_confusions(evaluation))


def _commonest_confusions(evaluation: Evaluation) -> Group:
    kinds = confusions(evaluation.confusion)
    if not kinds:
        return Group(Text("\nno confusions"))
    of_true, of_predicted = (shares(evaluation.confusion, of) for of in ("true", "predicted"))
    shown = kinds[: MOST_CONFUSIONS if len(evaluation.classes) > MOST_COLUMNS else MOST_BESIDE]
    table = Table()
    for heading in ("true class", "taken for"):
        table.add_column(heading)
    for heading in ("images", "% of true class", "% of predicted"):
        table.add_column(heading, justify="right")
    for true, predicted, images in shown:
        parts = (percent(share[true, predicted]) for share in (of_true, of_predicted))
        table.add_row(Text(evaluation.classes[true]), Text(evaluation.classes[predicted]), str(images), *parts)
    return Group(Text(f"\nconfusions: the commonest {len(shown)} of {len(kinds)} kinds"), table)


def with_interval(share: float | None, interval: tuple[float, float] | None) -> str:
    """A share in per cent with its interval.

    >>> with_interval(0.5, (0.25, 0.75))
    '50.0 (25.0 to 75.0)'
    """
    if share is None or interval is None:
        return "–"
    return f"{100 * share:.1f} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def percent(share: float | None) -> str:
    """A share in per cent with two decimals, or a dash where there is none."""
    return "–" if share is None else f"{100 * share:.2f}"

"""An evaluation as tables for a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from capsella.evaluation.accuracy.evaluation import Evaluation

# Wider matrices do not fit a terminal: the commonest confusions are listed instead.
MOST_COLUMNS = 12
MOST_CONFUSIONS = 15


def evaluation_table(evaluation: Evaluation) -> RenderableType:
    """Error, scores of each class, confusion matrix (or the commonest confusions), calibration, notes."""
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
    return Group(headline, Text("\neach class"), _scores(evaluation), confusion, calibration, *notes)


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


def _confusion_matrix(evaluation: Evaluation) -> Group:
    table = Table()
    table.add_column("")
    for name in evaluation.classes:
        table.add_column(Text(name), justify="right")
    for true, row in enumerate(evaluation.confusion.tolist()):
        cells = (Text(str(n) if n else "·", style="green" if true == c else "") for c, n in enumerate(row))
        table.add_row(Text(evaluation.classes[true]), *cells)
    return Group(Text("\nconfusion: true class (rows) by predicted class (columns)"), table)


def _commonest_confusions(evaluation: Evaluation) -> Group:
    counts = evaluation.confusion.tolist()
    pairs = [(n, true, c) for true, row in enumerate(counts) for c, n in enumerate(row) if n and true != c]
    pairs.sort(key=lambda pair: (-pair[0], pair[1:]))
    shown = min(len(pairs), MOST_CONFUSIONS)
    table = Table()
    for heading in ("true class", "taken for"):
        table.add_column(heading)
    table.add_column("images", justify="right")
    for n, true, c in pairs[:shown]:
        table.add_row(Text(evaluation.classes[true]), Text(evaluation.classes[c]), str(n))
    return Group(Text(f"\nconfusions: the commonest {shown} of {len(pairs)} kinds"), table)


def percent(share: float | None) -> str:
    """A share in per cent with two decimals, or a dash where there is none."""
    return "–" if share is None else f"{100 * share:.2f}"

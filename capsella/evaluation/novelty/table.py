"""What is known and what is not, as tables for a terminal of 80 columns."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from capsella.evaluation.novelty.measure import Knowledge


def knowledge_table(result: Knowledge) -> RenderableType:
    """Shares refused at home and elsewhere; areas under ROC curves of every score; notes."""
    return Group(
        Text(
            f"not known: a threshold that {result.validation_images} validation images set, for at most "
            f"{100 * result.refuse:g} % at home"
            if result.can_refuse
            else "not known: there is no threshold, see the note"
        ),
        _refused(result),
        Text("\nareas under the ROC curve, test images against those from elsewhere; 0.5 is chance"),
        _areas(result),
        *(Text(f"note: {note}") for note in result.notes()),
    )


def _refused(result: Knowledge) -> Table:
    table = Table()
    for heading in ("images", "number", "not known %", "95 % interval", "known, and right"):
        table.add_column(heading, justify="left" if heading == "images" else "right")
    known = result.images - result.refused
    home: list[tuple[str, int, int, tuple[float, float], int | None, int | None]]
    home = [("test images", result.images, result.refused, result.refused_interval_95, known, result.right)]
    away = [
        (one.name, one.images, one.refused, one.refused_interval_95, one.labelled, one.right) for one in result.sets
    ]
    for name, images, refused, (low, high), labelled, right in home + away:
        shares = f"{100 * refused / images:.1f}", f"{100 * low:.1f} to {100 * high:.1f}"
        shares = shares if result.can_refuse else ("–", "–")
        answered = "–" if labelled is None else f"{right} of {labelled}"
        table.add_row(Text(name, overflow="ellipsis"), str(images), *shares, answered)
    return table


def _areas(result: Knowledge) -> Table:
    table = Table()
    for heading in ("images", "score", "area", "95 % interval"):
        table.add_column(heading, justify="left" if heading in ("images", "score") else "right")
    for one in result.sets:
        for number, told in enumerate(one.told):
            interval = " to ".join(f"{end:.3f}" for end in told.interval)
            name = Text("" if number else one.name, overflow="ellipsis")
            table.add_row(name, told.score, f"{told.auc:.3f}", interval, end_section=number == len(one.told) - 1)
    return table

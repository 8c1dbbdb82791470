"""Rejection as tables for a terminal of 80 columns."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from capsella.evaluation.rejection.measure import Rejection


def rejection_table(result: Rejection) -> RenderableType:
    """Errors of the images kept, prediction sets, calibration before and after, notes."""
    return Group(
        Text(f"\nkeep the surest: thresholds from {result.validation_images} validation images, errors of test images"),
        _kept(result),
        Text("\nprediction sets on the test images; classes: in a set, on average"),
        _sets(result),
        Text(
            "calibration on the test images (before: activations divided by their sum): "
            f"expected error {result.ece_before:.4f} → {result.ece:.4f}, "
            f"loss {result.nll_before:.4f} → {result.nll:.4f} nats"
        ),
        *(Text(f"note: {note}") for note in result.notes()),
    )


def _kept(result: Rejection) -> Table:
    table = Table()
    for heading in ("keep %", "threshold", "kept", "kept %", "wrong", "error %", "95 % interval"):
        table.add_column(heading, justify="right")
    for one in result.kept:
        error, interval = "–", "–"
        if one.error_interval_95 is not None:
            error = f"{100 * one.errors / one.kept:.2f}"
            interval = " to ".join(f"{100 * end:.2f}" for end in one.error_interval_95)
        shares = (
            f"{100 * one.share:g}",
            f"{one.threshold:.6f}",
            str(one.kept),
            f"{100 * one.kept / result.images:.1f}",
        )
        table.add_row(*shares, str(one.errors), error, interval)
    return table


def _sets(result: Rejection) -> Table:
    table = Table()
    for heading in ("coverage", "reached", "95 % interval", "classes", "single %", "worst class"):
        table.add_column(heading, justify="left" if heading == "worst class" else "right")
    for one in result.sets:
        low, high = one.held_interval_95
        table.add_row(
            f"{one.coverage:g}",
            f"{one.held / result.images:.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{one.mean_size:.2f}",
            f"{100 * one.single / result.images:.1f}",
            Text(f"{one.worst:.2f} {one.worst_class}"),
        )
    return table

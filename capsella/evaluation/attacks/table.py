"""Attacks as tables for a terminal."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from capsella.evaluation.attacks.curves import AttackOptions, UnderAttack


def attack_table(results: Mapping[str, UnderAttack], options: AttackOptions) -> RenderableType:
    """A row an attack, a column an ε: accuracy; and which of the attacks that succeed are found out."""
    accuracy = _table("accuracy % under attack, L∞", (0, *options.epsilons))
    found = _table("of images fooled, % that are not known (– where none is fooled)", (0, *options.epsilons))
    for name, result in results.items():
        for curve in result.curves:
            shares = (f"{share:.1f}" for share in (result.clean, *curve.accuracy))
            accuracy.add_row(Text(name), Text(curve.label), *shares)
            if result.false_alarms is not None:
                pairs = zip(curve.flagged, curve.fooled, strict=True)
                shares = (f"{100 * flagged / fooled:.0f}" if fooled else "–" for flagged, fooled in pairs)
                found.add_row(Text(name), Text(curve.label), f"{result.false_alarms:.1f}", *shares)
    return Group(accuracy, found) if found.row_count else accuracy


def _table(title: str, epsilons: tuple[float, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("network", "attack"):
        table.add_column(heading)
    for epsilon in epsilons:
        table.add_column(f"ε = {epsilon:g}", justify="right")
    return table


def attack_notes(results: Mapping[str, UnderAttack]) -> list[str]:
    """What a reader must know: whether the gradients can be trusted."""
    notes = []
    for name, result in results.items():
        verdict = "MASKED: the curves overstate this network" if result.is_masked else "not masked"
        notes.append(
            f"{name}: {verdict}. PGD at ε = 1 leaves {result.at_full_reach:.1f} % right, and {result.without_gradient} "
            "images have no gradient (both 0 where nothing is masked); "
            f"{result.zero_gradient:.1f} % of all gradients is exactly 0"
        )
        if result.false_alarms is None:
            notes.append(f"{name}: which images it does not know is not counted")
    return notes

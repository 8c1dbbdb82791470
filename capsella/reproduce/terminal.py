"""The plan of a reproduction on the screen."""

from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from capsella.errors import pluralize
from capsella.experiments import format_duration
from capsella.reproduce.plan import Entry, Plan


def plan_summary(plan: Plan, entries: Sequence[Entry]) -> Group:
    """Return a row for each table or figure, each run counted where it comes first, and the times."""
    table = Table("table or figure")
    for head in ("finished", "to come", "left out", "time"):
        table.add_column(head, justify="right")
    for entry in entries:
        groups = (plan.over, plan.runs, plan.left_out)
        counts = [str(sum(run.entries[0] == entry.name for run in runs)) for runs in groups]
        seconds = sum(run.remaining for run in plan.runs if run.entries[0] == entry.name)
        table.add_row(entry.name, *counts, format_duration(seconds) if seconds else "–")
    limit = "" if plan.hours is None else f" of {plan.hours:g} h"
    lines = [
        f"{pluralize(len(plan.runs), 'run')} to come, {len(plan.over)} finished. "
        f"Planned: {format_duration(plan.seconds)}{limit}, from a few steps of each network here. "
        "The first seed of every row comes before any second seed.",
        *(f"left out, {format_duration(run.remaining)}: {run}" for run in plan.left_out),
    ]
    return Group(table, *map(Text, lines))


def left_out(missing: Mapping[str, str]) -> list[str]:
    """Return a line for each reason, with all tables and figures that it concerns."""
    names: dict[str, list[str]] = {}
    for name, why in missing.items():
        names.setdefault(why, []).append(name)
    return [f"left out {', '.join(group)}: {why}" for why, group in names.items()]

"""The plan and the result of a comparison on the screen, in at most 80 columns."""

import textwrap
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from capsella.evaluation.shortcuts import Shortcut
from capsella.experiments.compare.plan import Plan
from capsella.experiments.compare.results import Comparison
from capsella.experiments.compare.words import percent, phrase, plan_lines, shortcut_lines
from capsella.experiments.runner import format_duration

WIDTH = 80


def shortcut_summary(shortcuts: Sequence[Shortcut]) -> Group:
    """Return the warnings about cues that reveal the class without the object."""
    return Group(*_wrapped([f"WARNING: {line}" for line in shortcut_lines(shortcuts)]))


def plan_summary(plan: Plan) -> Group:
    """Return the images, the networks with their epochs and times, and what the test can show."""
    splits = plan.splits
    head = [f"{splits.name}: {len(splits.classes)} classes", *plan.notes]
    head += [f"left out {reason}" for reason in splits.broken]
    table = Table("network", pad_edge=False, box=None)
    for name in ("pixels", "parameters", "epochs", "one run", "all runs"):
        table.add_column(name, justify="right")
    for each in plan.contenders:
        time = plan.network_seconds(each)
        usual, epochs = each.epochs_for(len(splits.train)), plan.epochs(each)
        shown = "–" if each.is_fitted else f"{epochs}" if epochs >= usual else f"{epochs} of {usual}"
        cells = [str(each.recipe.data.size), f"{each.parameters:,}", shown]
        table.add_row(Text(each.title), *cells, format_duration(plan.seconds(each)), format_duration(time))
    runs = sum(plan.runs(each, share) for each in plan.contenders for share in (1.0, *plan.shares))
    total = f"{runs} runs, about {format_duration(plan.total_seconds())} on this machine (measured just now)."
    return Group(*_wrapped(head), Text(), table, Text(), *_wrapped([*plan_lines(plan), total]))


def result_summary(found: Comparison) -> Group:
    """Return the table of all networks, and the decision last."""
    setting, decision = found.setting, found.decision
    table = Table("network", pad_edge=False, box=None)
    for head in ("accuracy", "balanced accuracy", "ms"):
        table.add_column(head, justify="right")
    for network in decision.networks:
        shown = [percent(setting.accuracy(network.correct)), percent(setting.balanced_accuracy(network.correct))]
        title = Text(network.title, style="bold" if network is decision.recommended else "")
        table.add_row(title, *shown, f"{network.latency[0]:.1f}")
    words, run = phrase(found), found.recommended_run
    lines = [words.headline, *words.sentences]
    if run is not None:
        lines.append(f"Run: {found.plan.folder / run['path']}")
    return Group(Text(), table, Text(), *_wrapped(lines))


def _wrapped(lines: Sequence[str]) -> list[Text]:
    return [Text("\n".join(textwrap.wrap(line, WIDTH, break_long_words=False))) for line in lines]

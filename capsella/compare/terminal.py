"""The plan of a comparison on the screen."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from capsella.compare.options import ComparisonOptions
from capsella.compare.plan import Plan
from capsella.errors import pluralize
from capsella.experiments import format_duration
from capsella.papers.own_images import usual_epochs


def plan_summary(plan: Plan) -> Group:
    """Return the images, the networks with the time of one run, and the time of all."""
    options, splits = plan.options, plan.splits
    height, width = splits.image_size
    counts = ", ".join(f"{len(images)} {split}" for split, images in splits.named().items())
    images = f"{splits.name}: {counts} images of {height}×{width}×{splits.channels}, {len(splits.classes)} classes"
    head = [images, *splits.notes, *(f"left out {reason}" for reason in splits.broken)]
    table = Table("network", "kind")
    for name in ("parameters", "learning rates", "one run"):
        table.add_column(name, justify="right")
    for network in plan.candidates:
        rates = " ".join(f"{rate:g}" for rate in plan.rates(network))
        time = format_duration(plan.seconds(network.network))
        table.add_row(Text(network.network), network.family, f"{network.parameters:,}", rates, time)
    return Group(*map(Text, head), table, *map(Text, _lines(plan, options)))


def _lines(plan: Plan, options: ComparisonOptions) -> list[str]:
    """Return the number of runs and their time, and notes on epochs, precision and slow networks."""
    seeds = len(options.asked_seeds)
    curve = 2 * len(options.shares) * seeds
    more = f"; {curve} more runs for the data-size curve of the best of each kind" if curve else ""
    lines = [
        f"{pluralize(plan.runs_each, 'run')} of each, {pluralize(plan.epochs, 'epoch')} in batches of "
        f"{plan.batch_size}, {pluralize(seeds, 'seed')}{more}. Estimated training: "
        f"{format_duration(plan.total_seconds())}, from a few images through each network here."
    ]
    if 2 * plan.epochs < (usual := usual_epochs(ComparisonOptions.epochs, len(plan.splits.train))):
        lines.append(f"note: {usual} epochs are usual for so few images (--epochs); fewer may not converge")
    if options.precision == "auto":
        lines.append(f"precision auto → {plan.precision}")
    longest = max(plan.candidates, key=lambda network: plan.seconds(network.network))
    others = [network for network in plan.candidates if network is not longest]
    share = plan.seconds(longest.network) / sum(plan.seconds(network.network) for network in plan.candidates)
    if share > 0.5 and {network.family for network in others} == {"capsules", "CNN"}:
        names = " ".join(network.network for network in others)
        lines.append(f"{longest.network} takes {100 * share:.0f} % of the time; without it: --models {names}")
    return lines

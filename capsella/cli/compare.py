"""`capsella compare`."""

from rich.table import Table
from rich.text import Text

from capsella.cli.on_cluster import parse
from capsella.cli.screen import console, note_one_seed, show
from capsella.compare import ComparisonOptions, Plan, compare, make_plan
from capsella.compare.folds import compare_folds, first_plan
from capsella.compare.folds_report import write_folds
from capsella.compare.report import as_text
from capsella.data import warn_of_few
from capsella.errors import pluralize
from capsella.experiments import format_duration
from capsella.papers.own_images import usual_epochs
from capsella.ray_cluster import Place, joined


def run(arguments: list[str]) -> None:
    """Print the plan; unless it is a dry run, train, test, and write the report."""
    options, place = parse(ComparisonOptions, arguments, "capsella compare")
    note_one_seed(options.asked_seeds)
    if options.folds is not None and options.fold is None:
        _run_folds(options, options.folds, place)
        return
    plan = make_plan(options)
    _print_plan(plan)
    if options.dry_run:
        return
    with joined(place):
        found, report = compare(plan, console())
    print(f"\n{as_text(found)}\n\nreport  {report}")


def _run_folds(options: ComparisonOptions, folds: int, place: Place) -> None:
    """One comparison a fold, and what they say together."""
    plan = first_plan(options)
    print(f"{folds} folds, tested in turn; the first:")
    _print_plan(plan)
    runs = folds * plan.runs_each * len(plan.candidates)
    seconds = folds * plan.total_seconds()
    print(f"All {folds} folds: {pluralize(runs, 'run')}, estimated training: {format_duration(seconds)}.")
    if options.dry_run:
        return
    with joined(place):
        verdict, report = write_folds(options, plan, compare_folds(options, plan, console()))
    lines = [verdict.headline, *(f"{part}: {text}" for part, text in verdict.sentences.items())]
    print("", *lines, f"\nreport  {report}", sep="\n")


def _print_plan(plan: Plan) -> None:
    given, splits = plan.options, plan.splits
    height, width = splits.image_size
    counts = ", ".join(f"{len(part)} {split}" for split, part in splits.named().items())
    print(f"{splits.name}: {counts} images of {height}×{width}×{splits.channels}, {len(splits.classes)} classes")
    print(*splits.notes, sep="\n", end="\n" if splits.notes else "")
    for reason in splits.broken:
        print(f"left out {reason}")
    warn_of_few(splits)
    table = Table("network", "kind")
    for head in ("parameters", "learning rates", "one run"):
        table.add_column(head, justify="right")
    for one in plan.candidates:
        rates = " ".join(f"{rate:g}" for rate in plan.rates(one))
        time = format_duration(plan.seconds(one.network))
        table.add_row(Text(one.network), one.family, f"{one.parameters:,}", rates, time)
    show(table)
    seeds = len(given.asked_seeds)
    curve = 2 * len(given.shares) * seeds
    more = f"; {curve} more runs for the data-size curve of the best of each kind" if curve else ""
    print(
        f"{pluralize(plan.runs_each, 'run')} of each, {pluralize(plan.epochs, 'epoch')} in batches of "
        f"{plan.batch_size}, {pluralize(seeds, 'seed')}{more}. Estimated training: "
        f"{format_duration(plan.total_seconds())}, from a few images through each network here."
    )
    if 2 * plan.epochs < (usual := usual_epochs(ComparisonOptions.epochs, len(splits.train))):
        print(f"note: {usual} epochs are usual for so few images (--epochs); fewer seldom train a network to its end")
    if given.precision == "auto":
        print(f"precision auto → {plan.precision}")
    _advise(plan)


def _advise(plan: Plan) -> None:
    """One network may take longer than all others together."""
    longest = max(plan.candidates, key=lambda one: plan.seconds(one.network))
    others = [one for one in plan.candidates if one is not longest]
    share = plan.seconds(longest.network) / sum(plan.seconds(one.network) for one in plan.candidates)
    if share > 0.5 and {one.family for one in others} == {"capsules", "CNN"}:
        print(
            f"{longest.network} takes {100 * share:.0f} % of the time; without it: "
            f"--models {' '.join(one.network for one in others)}"
        )

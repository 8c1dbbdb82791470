"""A search on the screen: its plan, and its outcome."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from capsella.errors import pluralize
from capsella.experiments.search.outcome import Outcome
from capsella.experiments.search.report import front_verdict, lines_of, verdict
from capsella.experiments.search.study import Search, end_of


def plan_summary(search: Search) -> Group:
    """Return the searched fields, the number of candidates and epochs, and the time until the end."""
    table = Table("field", "the recipe's value", "searched")
    for path, value in search.space.point_of(search.recipe).items():
        table.add_row(path, str(value), str(search.space.fields[path]))
    rungs, trained, trials = search.rungs, search.trained, search.options.number_of_trials
    number = "as many candidates as there is time for" if trials is None else pluralize(trials, "candidate")
    lines = [f"{number}, up to {pluralize(rungs[-1], 'epoch')} each"]
    if len(rungs) > 1:
        lines[0] += f"; after epoch {' and '.join(map(str, rungs[:-1]))} about one in three continues"
    if trained.epochs != search.recipe.epochs or trained.epoch_images != search.recipe.epoch_images:
        images = "" if trained.epoch_images is None else f" of {trained.epoch_images:,} images"
        lines.append(
            f"note: to fit into the time, each trains for {rungs[-1]} epochs{images}; the recipe has "
            f"{search.recipe.epochs}. What is best after a short training may not be best after a long one."
        )
    lines.append(f"Estimated for one process: {end_of(search)}.")
    return Group(table, *map(Text, lines))


def outcome_summary(search: Search, outcome: Outcome) -> Group:
    """Return the finalists with errors and costs, and the verdict."""
    names = [name for name in outcome.options.objectives if name != "error"]
    table = Table("candidate")
    for head in ("seeds", f"{outcome.error_name} %", *names, *(["Pareto front"] if names else [])):
        table.add_column(head, justify="right")
    for line in lines_of(search, outcome):
        front = ["yes" if line.on_front else ""] if names else []
        table.add_row(line.name, str(line.seeds), line.error, *line.costs, *front)
    return Group(table, Text(" ".join([verdict(outcome), front_verdict(outcome)]).strip()))

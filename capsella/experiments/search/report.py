"""The report of a search: its plan and its outcome on the screen, its words, and its HTML page."""

from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from capsella.environment import environment, machine, versions
from capsella.errors import pluralize
from capsella.experiments.fit import evaluate_run
from capsella.experiments.runner import format_duration
from capsella.experiments.search.outcome import BASE, Finalist, Outcome
from capsella.experiments.search.space import range_text
from capsella.experiments.search.study import Search
from capsella.files import write_text
from capsella.report.pages import render_page
from capsella.training import RunFolder, load_run, save_recipe


def plan_summary(search: Search) -> Group:
    """Return the searched fields, the number of candidates and epochs, and the time until the end."""
    table = Table("field", "the recipe's value", "searched")
    for row in _fields(search):
        table.add_row(*row)
    rungs, trials = search.rungs, search.options.number_of_trials
    number = "as many candidates as there is time for" if trials is None else pluralize(trials, "candidate")
    line = f"{number}, up to {pluralize(rungs[-1], 'epoch')} each"
    if len(rungs) > 1:
        line += f"; after epoch {' and '.join(map(str, rungs[:-1]))} about one in three continues"
    lines, minutes, whole = [line], search.options.minutes, rungs[-1] * search.seconds_per_epoch
    if minutes is not None and 3 * whole > 60 * minutes:
        lines.append(f"note: one whole training takes about {format_duration(whole)}; --epochs shortens it")
    return Group(table, *map(Text, [*lines, f"Estimated for one process: {search.end}."]))


def outcome_summary(search: Search, outcome: Outcome) -> Group:
    """Return the finalists with errors and costs, the verdict, and the test result of the winner, if any."""
    heads, rows = _finalists(search, outcome)
    table = Table(*heads)
    for row in rows:
        table.add_row(*row)
    return Group(table, Text(verdict(outcome)), Text(winner_test(search, outcome.winner)))


def _fields(search: Search) -> list[tuple[str, str, str]]:
    """Return each searched field, its value in the recipe, and its range or choices."""
    fields, base = search.space.fields, search.space.point_of(search.recipe)
    return [(path, str(value), range_text(fields[path])) for path, value in base.items()]


def _finalists(search: Search, outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the rows of the table of finalists."""
    base, rows = search.space.point_of(search.recipe), []
    for finalist in outcome.finalists:
        changes = [
            f"{path} {f'{value:.3g}' if isinstance(value, float) else value}"
            for path, value in finalist.point.items()
            if value != base[path]
        ]
        costs = [f"{cost:,.4g}" for cost in finalist.costs.values()]
        rows.append([finalist.name, finalist.error_text, *costs, ", ".join(changes) or "none"])
    return ["candidate", "validation error %", *search.options.limits, "changes to the recipe"], rows


def verdict(outcome: Outcome) -> str:
    """Return in a few sentences whether the search beat the recipe."""
    best, base = outcome.winner, outcome.base
    over = " and ".join(f"{100 * share:.0f} % over the limit of {name}" for name, share in outcome.base_excess.items())
    note = f" The recipe itself is {over}." if over else ""
    if best is None:
        return f"No candidate finished training yet.{note}"
    error = f"validation error {best.error_text} %"
    if base is None:
        return f"The recipe did not finish training. The best is {best.name}, {error}.{note}"
    if best is base:
        alone = len(outcome.finalists) == 1
        what = "Only the recipe finished training" if alone else "No candidate beats the recipe"
        return f"{what}, whose validation error is {base.error_text} %.{note}"
    name = f"{best.name.capitalize()} {'is the best within the limits' if over else 'has the lowest error'}"
    phrases = {
        "better": f"{best.name.capitalize()} beats the recipe",
        "worse": f"{name}, but worse than the recipe",
        "unclear": f"{name}, but these seeds do not separate it from the recipe",
        "one seed": f"{name}, but with so few seeds that may be luck",
    }
    return f"{phrases[outcome.comparison or 'one seed']}: {error}, against {base.error_text} % of the recipe.{note}"


def winner_test(search: Search, winner: Finalist | None) -> str:
    """Return the winner's test in a sentence, and name the candidates that won and were tested before it."""
    tests = [] if winner is None else read_tests(search, winner)
    if winner is None or not tests:
        return "The winner has not been tested."
    errors = [test["error_percent"] for test in tests]
    each = f" (seeds: {', '.join(f'{error:.2f}' for error in errors)})" if len(errors) > 1 else ""
    images = pluralize(tests[0]["images"], "image")
    text = f"Test error of {winner.name}: {sum(errors) / len(errors):.2f} %{each} on {images}."
    folders = [path.parent.name for path in search.folder.glob("candidates/*/result.json")]
    tested = sorted({int(folder.removeprefix("candidate-")) for folder in folders} - {winner.candidate})
    if earlier := ["the recipe" if candidate == BASE else f"candidate {candidate}" for candidate in tested]:
        text += f" When the search was shorter, {', '.join(earlier)} won and was tested on the same images."
    return text


def read_tests(search: Search, winner: Finalist) -> list[dict[str, Any]]:
    """Return the test result of each seed of the winner; empty if it was not tested."""
    runs = [RunFolder(search.run_folder(winner.candidate, seed)) for seed in winner.errors]
    return [run.read("result")["test"] for run in runs] if all(run.is_tested for run in runs) else []


def finish_search(search: Search, outcome: Outcome) -> tuple[Path, Path | None]:
    """Test the winner unless that is turned off, and write report.html and the winner's recipe.

    Returns:
        The paths of the report, and of the winner's recipe, if there is a winner.

    Raises:
        CapsellaError: a run is missing or damaged.
    """
    winner, recipe = outcome.winner, search.folder / "winner.json"
    if winner is not None:
        save_recipe(search.space.recipe_at(search.recipe, winner.point), recipe)
        for seed in winner.errors if search.options.final else ():
            files = RunFolder(search.run_folder(winner.candidate, seed))
            if not files.is_tested:
                evaluate_run(load_run(files.path), report=False, progress=False)
    heads, rows = _finalists(search, outcome)
    page = render_page(
        "capsella.experiments.search",
        "report.html.jinja",
        title=f"Search: {search.name}",
        verdict=verdict(outcome),
        test=winner_test(search, winner),
        heads=heads,
        finalists=rows,
        fields=_fields(search),
        protocol=_protocol(search),
        facts=_facts(outcome),
    )
    write_text(search.folder / "report.html", page)
    return search.folder / "report.html", None if winner is None else recipe


def _protocol(search: Search) -> str:
    rungs, options = search.rungs, search.options
    text = (
        "The first candidate is the recipe itself. Optuna draws ten candidates at random and the others by TPE. Every "
        "candidate learns from the same images with the same seed. "
    )
    if len(rungs) > 1:
        ends = " and ".join(map(str, rungs[:-1]))
        text += (
            f"After epoch {ends} it continues only if it is in the best third of those so far (successive halving). "
            "The learning rate follows the schedule of the whole training from the start. "
        )
    text += (
        f"The recipe and the best {pluralize(options.number_of_finalists, 'candidate')} are trained with "
        f"{pluralize(options.number_of_seeds, 'seed')}. "
    )
    if options.limits:
        text += "Candidates over a limit were not trained. "
    return (
        f"{text}Errors are on validation images, means over classes if the recipe balances them; only a winner is "
        "tested."
    )


def _facts(outcome: Outcome) -> dict[str, str]:
    made_with, trials = environment(), outcome.trials
    kinds = {"stopped": "stopped early", "over_limit": "over a limit", "failed": "diverged or failed"}
    counts = {text: sum(kind in trial.user_attrs for trial in trials) for kind, text in kinds.items()}
    complete = sum(trial.state.name == "COMPLETE" for trial in trials)
    seconds = sum(trial.user_attrs.get("seconds", 0.0) for trial in trials)
    return {
        "trials": ", ".join([f"{complete} complete", *(f"{count} {text}" for text, count in counts.items() if count)]),
        "time": f"{format_duration(seconds)} of training, without the finalists' further seeds",
        "machine": machine(made_with),
        "versions": versions(made_with),
    }

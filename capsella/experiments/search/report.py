"""The report of a search: its plan and its outcome on the screen, its words, its figures, and its HTML page."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from rich.console import Group
from rich.table import Table
from rich.text import Text

from capsella.environment import environment, machine, versions
from capsella.errors import pluralize
from capsella.experiments.runner import format_duration
from capsella.experiments.search.finalists import FinalTest, final_test, read_test
from capsella.experiments.search.outcome import BASE, Finalist, Outcome
from capsella.experiments.search.space import text as values_text
from capsella.experiments.search.study import Search
from capsella.files import write_text
from capsella.report.pages import Section, pictures_of, render_page
from capsella.training import Recipe, save_recipe

AXES = {"ms": "milliseconds per image", "parameters": "parameters"}
BLUE, ORANGE, GREY = "#1f6f9f", "#c2571a", "#9aa3a8"
FEWEST = 6  # with fewer trials, importances are not estimated


def plan_summary(search: Search) -> Group:
    """Return the searched fields, the number of candidates and epochs, and the time until the end."""
    table = Table("field", "the recipe's value", "searched")
    for path, value in search.space.point_of(search.recipe).items():
        table.add_row(path, str(value), values_text(search.space.fields[path]))
    rungs, trials = search.rungs, search.options.number_of_trials
    number = "as many candidates as there is time for" if trials is None else pluralize(trials, "candidate")
    lines = [f"{number}, up to {pluralize(rungs[-1], 'epoch')} each"]
    if len(rungs) > 1:
        lines[0] += f"; after epoch {' and '.join(map(str, rungs[:-1]))} about one in three continues"
    lines += [f"note: {_shortened(search)}"] if _shortened(search) else []
    return Group(table, *map(Text, [*lines, f"Estimated for one process: {search.end}."]))


def outcome_summary(search: Search, outcome: Outcome) -> Group:
    """Return the finalists with errors and costs, the verdict, and the test result of the winner, if any."""
    names = [name for name in outcome.options.objectives if name != "error"]
    table = Table("candidate")
    for head in ("seeds", f"{outcome.error_name} %", *names, *(["Pareto front"] if names else [])):
        table.add_column(head, justify="right")
    for line in lines_of(search, outcome):
        front = ["yes" if line.on_front else ""] if names else []
        table.add_row(line.name, str(line.seeds), line.error, *line.costs, *front)
    test = read_test(search, outcome.winner)
    texts = [f"{verdict(outcome)} {front_verdict(outcome)}".strip(), *([winner_test(outcome, test)] if test else [])]
    return Group(table, *map(Text, texts))


def _shortened(search: Search) -> str:
    """Return a note on how much shorter than the recipe candidates train; empty if they are not shortened."""
    trained, recipe = search.trained, search.recipe
    if (trained.epochs, trained.epoch_images) == (recipe.epochs, recipe.epoch_images):
        return ""
    images = "" if trained.epoch_images is None else f" of {trained.epoch_images:,} images"
    return (
        f"To fit into the time, candidates train for {trained.epochs} epochs{images}; the recipe has {recipe.epochs}. "
        "What is best after a short training may not be best after a long one."
    )


def verdict(outcome: Outcome) -> str:
    """Return in a few sentences whether the search beat the recipe."""
    best, base = outcome.winner, outcome.base
    over = " and ".join(f"{100 * share:.0f} % over the limit of {name}" for name, share in outcome.base_excess.items())
    note = f" The recipe itself is {over}." if over else ""
    if best is None:
        return f"No candidate finished training yet.{note}"
    if base is None:
        return f"The recipe did not finish training. The best is {best.name}, {_error(outcome, best.error_text)}.{note}"
    if best is base:
        alone = len(outcome.finalists) == 1
        what = "Only the recipe finished training" if alone else "No candidate beats the recipe"
        return f"{what}, whose {outcome.error_name} is {base.error_text} %.{note}"
    name = f"{best.name.capitalize()} {'is the best within the limits' if over else 'has the lowest error'}"
    phrases = {
        "better": f"{best.name.capitalize()} beats the recipe",
        "worse": f"{name}, but worse than the recipe",
        "unclear": f"{name}, but these seeds do not separate it from the recipe",
        "one seed": f"{name}, but with so few seeds that may be luck",
    }
    numbers = f"{_error(outcome, best.error_text)}, against {base.error_text} % of the recipe"
    return f"{phrases[outcome.compare(best)]}: {numbers}.{note}"


def front_verdict(outcome: Outcome) -> str:
    """Return which finalists are on the Pareto front or improve on the recipe; empty for a single objective."""
    if len(outcome.options.objectives) == 1 or not outcome.finalists:
        return ""
    base, names = outcome.base, ", ".join(finalist.name for finalist in outcome.front)
    text = f"Pareto front of {', '.join(outcome.options.objectives)}: {names}."
    if base is None:
        return text
    rivals = [finalist for finalist in outcome.finalists if finalist is not base]
    rivals = [finalist for finalist in rivals if all(finalist.costs[name] <= base.costs[name] for name in base.costs)]
    better = [finalist.name for finalist in rivals if outcome.compare(finalist) == "better"]
    cheaper = [
        finalist.name
        for finalist in rivals
        if finalist.costs != base.costs and outcome.compare(finalist) in ("unclear", "one seed")
    ]
    if better:
        text += f" More accurate than the recipe and nowhere worse: {', '.join(better)}."
    if cheaper:
        text += f" Cheaper than the recipe, with an error that is not distinguishable: {', '.join(cheaper)}."
    return text


def winner_test(outcome: Outcome, test: FinalTest | None) -> str:
    """Return the winner's test in a sentence."""
    if test is None or outcome.winner is None:
        return "The winner has not been tested."
    mean = sum(test.errors) / len(test.errors)
    each = f" (seeds: {', '.join(f'{error:.2f}' for error in test.errors)})" if len(test.errors) > 1 else ""
    text = f"Test error of {outcome.winner.name}: {mean:.2f} %{each} on {pluralize(test.images, 'image')}."
    if test.earlier:
        earlier = ", ".join(map(str, test.earlier))
        text += f" When the search was shorter, candidate {earlier} won and was tested on the same images."
    return text


def _error(outcome: Outcome, text: str) -> str:
    return f"{outcome.error_name} {text} %"


class Line(NamedTuple):
    """A finalist in the report's table."""

    name: str
    seeds: int
    error: str
    costs: list[str]
    changes: str
    on_front: bool


def lines_of(search: Search, outcome: Outcome) -> list[Line]:
    """Return a line for each finalist."""
    base, front, lines = search.space.point_of(search.recipe), outcome.front, []
    for finalist in outcome.finalists:
        changed = {path: value for path, value in finalist.point.items() if value != base[path]}
        changes = ", ".join(f"{path} {_short(value)}" for path, value in changed.items())
        costs = [f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}" for value in finalist.costs.values()]
        lines.append(
            Line(finalist.name, len(finalist.judged), finalist.error_text, costs, changes or "none", finalist in front)
        )
    return lines


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_report(search: Search, outcome: Outcome) -> Path:
    """Write report.html into the folder of the search, with the winner's test if it was made; return its path."""
    sections = _sections(search, outcome)
    lines, costs = lines_of(search, outcome), [name for name in outcome.options.objectives if name != "error"]
    texts = [front_verdict(outcome), winner_test(outcome, read_test(search, outcome.winner))]
    page = render_page(
        "capsella.experiments.search",
        "report.html.jinja",
        title=f"Search: {search.name}",
        verdict=verdict(outcome),
        texts=[text for text in texts if text],
        finalist_heads=["candidate", "seeds", f"{outcome.error_name} %", *costs, "changes to the recipe"],
        finalists=[[line.name, line.seeds, line.error, *line.costs, line.changes] for line in lines],
        front=[line.name for line in lines if line.on_front],
        space=[(path, own, search.space.to_dict()[path]) for path, own in search.space.point_of(search.recipe).items()],
        protocol=_protocol(search),
        sections=sections,
        pictures=pictures_of(sections, search.folder),
        facts=_facts(search, outcome),
    )
    path = search.folder / "report.html"
    write_text(path, page)
    return path


def finish_search(search: Search, outcome: Outcome) -> tuple[Path, Path | None]:
    """Test the winner unless that is turned off, and write the report and the recipes of all finalists.

    Returns:
        The paths of the report, and of the winner's recipe, if there is a winner.
    """
    winner, save_as = outcome.winner, search.options.save_recipe
    if winner is not None and search.options.final:
        final_test(search, winner)
    page = write_report(search, outcome)
    for finalist in outcome.finalists:
        save_recipe(_recipe_of(search, finalist), search.folder / "recipes" / f"candidate-{finalist.candidate}.json")
    if winner is None:
        return page, None
    for path in [search.folder / "winner.json", *([] if save_as is None else [save_as])]:
        save_recipe(_recipe_of(search, winner), path)
    return page, path


def _recipe_of(search: Search, finalist: Finalist) -> Recipe:
    """Return the recipe of a finalist, with as many epochs as the original recipe."""
    return search.space.recipe_at(search.recipe, finalist.point)


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
    text += f"{_shortened(search)} " if _shortened(search) else ""
    if options.limits:
        text += "Candidates over a limit were not trained. "
    return f"{text}Errors are on validation images; test images were not used until the winner was chosen."


def _sections(search: Search, outcome: Outcome) -> list[Section]:
    sections = []
    for name in [name for name in outcome.options.objectives if name != "error"] if outcome.finalists else []:
        text = "Finalists with their spread over seeds; grey: the other candidates."
        sections.append(Section(f"front-{name}", f"Error against {AXES[name]}", text, front_figure(outcome, name)))
    if len(search.rungs) > 1:
        text = "Each line is a candidate. Where lines cross, the short training misled."
        sections.append(Section("rungs", "Error at each rung", text, rungs_figure(outcome, search.rungs)))
    shares = importances(search)
    text = (
        "The share of the variance of the error that each field explains (fANOVA), at the first rung; with few trials "
        f"this is rough: {', '.join(f'{path} {100 * share:.0f} %' for path, share in shares.items())}."
    )
    text = text if shares else "Too few trials finished to estimate it."
    return [*sections, Section("importance", "Which fields mattered", text)]


def importances(search: Search) -> dict[str, float]:
    """Return the importance of each field for the error at the first rung, the largest first; empty if unknown."""
    import optuna

    trials = [trial for trial in search.trials() if trial.user_attrs.get("errors")]
    values = [trial.user_attrs["errors"][0] for trial in trials]
    if len(trials) < FEWEST or len(set(values)) == 1:
        return {}
    study = optuna.create_study()
    for trial, value in zip(trials, values, strict=True):
        study.add_trial(optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, value=value))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


def _facts(search: Search, outcome: Outcome) -> dict[str, str]:
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


def front_figure(outcome: Outcome, objective: str) -> Figure:
    """Draw the error against another objective: finalists with their spread over seeds, the others grey."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    column, error = (outcome.options.objectives.index(name) for name in (objective, "error"))
    chosen = {finalist.candidate for finalist in outcome.finalists}
    others = [trial for trial in outcome.trials if trial.values and trial.user_attrs["candidate"] not in chosen]
    axes.plot([t.values[column] for t in others], [t.values[error] for t in others], "o", color=GREY, markersize=4)
    for finalist in outcome.finalists:
        colour = ORANGE if finalist.candidate == BASE else BLUE
        cost = finalist.costs[objective]
        axes.errorbar(cost, finalist.error, yerr=finalist.spread, fmt="D", color=colour, capsize=4, markersize=6)
        axes.annotate(finalist.name, (cost, finalist.error), xytext=(6, 6), textcoords="offset points", fontsize=9)
    axes.set(xlabel=AXES[objective], ylabel=f"{outcome.error_name} %")
    axes.margins(x=0.15)
    costs = [finalist.costs[objective] for finalist in outcome.finalists]
    if max(costs) > 10 * min(costs):
        axes.set_xscale("log")
    axes.grid(alpha=0.25)
    return figure


def rungs_figure(outcome: Outcome, rungs: Sequence[int]) -> Figure:
    """Draw a line per candidate: its validation error at the end of each rung that it reached."""
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for trial in outcome.trials:
        errors, is_base = trial.user_attrs.get("errors", []), trial.user_attrs.get("candidate") == BASE
        style = {"color": ORANGE, "label": "the recipe"} if is_base else {"color": BLUE, "alpha": 0.55}
        axes.plot(rungs[: len(errors)], errors, "o-", markersize=4, **style)
    axes.set(xlabel="epochs", ylabel=f"{outcome.error_name} %", xscale="log")
    axes.set_xticks(rungs, [str(epochs) for epochs in rungs])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)
    return figure

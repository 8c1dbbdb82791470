"""The page of a search: one HTML file with the front, the finalists, what the trials cost and what mattered."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from capsella.environment import environment, machine, versions
from capsella.errors import pluralize
from capsella.files import write_text
from capsella.grid import duration
from capsella.report.pages import Section, pictures_of, render_page
from capsella.search.figures import front_figure, importance_figure, rungs_figure
from capsella.search.final import FinalTest, read_test, tested_before
from capsella.search.importance import importances
from capsella.search.opened import Search
from capsella.search.outcome import Finalist, Outcome, name_of
from capsella.search.schedule import done


class Line(NamedTuple):
    """A finalist as the page shows it. changes: of the recipe's values."""

    finalist: Finalist
    errors: str
    costs: list[str]
    on_front: bool
    changes: str


def write_report(search: Search, outcome: Outcome) -> Path:
    """Write report.html into the study's folder, with the winner's test where it has one; returns its path.

    Raises:
        CapsellaError: no space on the disk.
    """
    others = [name for name in outcome.objectives if name != "error"]
    sections, earlier = _sections(search, outcome, others), tested_before(search, outcome.winner)
    page = render_page(
        "capsella.search",
        "report.html.jinja",
        title=f"Search: {search.name}",
        verdict=outcome.verdict,
        front=_front_text(outcome),
        tested=_test_text(outcome, read_test(search, outcome.winner), earlier),
        error_name=outcome.error_name,
        heads=others,
        lines=[_line(search, outcome, one) for one in outcome.finalists],
        space=[(path, own, search.space.of[path]) for path, own in search.space.labels_of(search.recipe).items()],
        protocol=_protocol(search, is_first_test=not earlier),
        sections=sections,
        pictures=pictures_of(sections, search.folder),
        facts=_facts(search, outcome),
    )
    path = search.folder / "report.html"
    write_text(path, page)
    return path


def _front_text(outcome: Outcome) -> str:
    if len(outcome.objectives) == 1:
        return ""
    names = ", ".join(one.name for one in outcome.front)
    objectives = ", ".join(outcome.objectives)
    text = f"On the front, where none is better in all of {objectives}: {names or 'nobody yet'}."
    return f"{outcome.front_verdict} {text}".strip()


def _test_text(outcome: Outcome, tested: FinalTest | None, earlier: Sequence[int]) -> str:
    if tested is None or outcome.winner is None:
        return f"The winner is not tested.{_tested_before(earlier)}"
    name, seeds = outcome.winner.name.capitalize(), pluralize(len(tested.errors), "seed")
    return (
        f"{name}, trained on {pluralize(tested.trained, 'image')} with {seeds} and tested once: "
        f"test error {tested.text} on {pluralize(tested.images, 'image')}.{_tested_before(earlier)}"
    )


def _tested_before(earlier: Sequence[int]) -> str:
    if not earlier:
        return ""
    names = " and ".join(map(name_of, earlier))
    return f" When the search was shorter, {names} won, and the same images tested that: whoever saw it went on."


def _line(search: Search, outcome: Outcome, one: Finalist) -> Line:
    own = search.space.labels_of(search.recipe)
    changed = {path: value for path, value in one.point.items() if value != own[path]}
    changes = ", ".join(f"{path} {_short(value)}" for path, value in changed.items())
    return Line(one, one.error_text, one.cost_texts, one in outcome.front, changes or "none")


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _protocol(search: Search, is_first_test: bool) -> str:
    rungs, options = search.rules.rungs, search.options
    promoted = (
        f"After epoch {' and '.join(map(str, rungs[:-1]))} one in three goes on from its checkpoint; the learning "
        "rate's schedule is that of the whole training from the start, so that a paused training computes what an "
        "unbroken one does. "
    )
    refused = "Candidates over a limit were not trained. " if options.limit_ms or options.limit_parameters else ""
    shorter = ""
    if search.trained.epochs != search.recipe.epochs or search.trained.epoch_images != search.recipe.epoch_images:
        images = search.trained.epoch_images
        shorter = (
            f"The recipe trains for {search.recipe.epochs} epochs; here it was "
            f"{rungs[-1]}{'' if images is None else f' of {images:,} images'}, to fit into the time: what is best "
            "after a short training may not be after a long one. "
        )
    no_test = " No test image was looked at until the winner was chosen."
    return (
        "The first candidate is the recipe itself. Ten points of the space are drawn at random, the others by TPE from "
        "the highest rung with enough trials. Every candidate learns from the same images with the same seed. "
        f"{promoted if len(rungs) > 1 else ''}"
        f"The best {search.rules.finalists} and the recipe were then trained to the end with "
        f"{pluralize(search.rules.seeds, 'seed')}. {shorter}{refused}Errors are of the validation images, and the "
        "least of many is too good by chance: so is each finalist's first seed, which chose it. Where two others are "
        f"left, they alone count.{no_test if is_first_test else ''}"
    )


def _sections(search: Search, outcome: Outcome, others: list[str]) -> list[Section]:
    """The figures from top to bottom."""
    sections = []
    for name in others if outcome.finalists else []:
        title = f"Error against {'time' if name == 'ms' else name}"
        text = (
            "Finalists with their spread over seeds; grey: candidates that were dropped, with the error where they "
            "stopped."
        )
        sections.append(Section(f"front-{name}", title, text, front_figure(outcome, name)))
    if len(search.rules.rungs) > 1 and any(record.state == "done" for record in outcome.records):
        text = "Each line is a candidate. Short trainings mislead where lines cross on the right."
        sections.append(Section("rungs", "What short trainings foretold", text, rungs_figure(outcome)))
    found = importances(search, outcome)
    if found is None:
        text = "Too few candidates for it, or all with the same error."
        return [*sections, Section("importance", "Which fields mattered", text)]
    text = (
        f"fANOVA over {pluralize(found.trials, 'candidate')} at epoch {search.rules.rungs[0]}: how much of what their "
        "errors vary by each field explains. With few candidates this is rough."
    )
    return [*sections, Section("importance", "Which fields mattered", text, importance_figure(found.shares))]


def _facts(search: Search, outcome: Outcome) -> dict[str, str]:
    made_with, records = environment(), outcome.records
    seconds = [sum(r.seconds for r in records if r.job.rung == rung) for rung in range(len(search.rules.rungs))]
    counts = [len(done(records, rung)) for rung in range(len(search.rules.rungs))]
    each = "; ".join(
        f"to epoch {epochs}: {pluralize(count, 'candidate')}, {duration(time)}"
        for epochs, count, time in zip(search.rules.rungs, counts, seconds, strict=True)
    )
    refused = sum(record.state == "refused" for record in records)
    lost = sum(record.state == "lost" for record in records)
    return {
        "trials": f"{sum(record.state == 'done' for record in records)} finished, {refused} refused or diverged, "
        f"{lost} lost with a worker and taken up",
        "cost": f"{duration(sum(seconds))} of training in all; {each}",
        "machine": machine(made_with),
        "versions": versions(made_with),
    }

"""The end of a search: the finalists with several seeds, the winner's recipe, and its test."""

import contextlib
import math
import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from capsella.data import load_data
from capsella.errors import BusyError
from capsella.evaluation import evaluate
from capsella.experiments import Row, Runner, Stopwatch
from capsella.experiments.search.outcome import Finalist, Outcome
from capsella.experiments.search.study import Search
from capsella.experiments.search.trials import POLL, mean_seconds_per_epoch, run_trials
from capsella.files import read_json, write_json
from capsella.training import Recipe, RunFolder, load_run, save_recipe
from capsella.training.devices import check_accelerator


def run_search(search: Search, console: Console | None = None) -> Outcome:
    """Take part in a search until nothing is left or the time is up, and write outcome.json.

    Raises:
        CapsellaError: a training cannot continue for a reason that is not the candidate's, or the limits reject nearly
            all of the space.
    """
    check_accelerator(search.compute)
    console = console or Console(quiet=True)
    minutes = search.options.minutes
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    run_trials(search, console, deadline)
    run_finalists(search, console, deadline)
    outcome = search.outcome()
    write_json(search.folder / "outcome.json", outcome.to_dict())
    return outcome


def run_finalists(search: Search, console: Console, deadline: float = math.inf) -> None:
    """Train the finalists with the other seeds. Processes share them, and wait for one another."""
    clock = Stopwatch({"finalist": search.rungs[-1] * mean_seconds_per_epoch(search, search.trials())})
    clock.plan(["finalist"] * (search.options.number_of_seeds - 1) * len(search.outcome().candidates))
    grid = Runner(search.folder / "finalists", console, search.compute, clock)
    while todo := _to_train(search):
        waits = True
        for row, seed in todo:
            if time.monotonic() > deadline:
                return
            with contextlib.suppress(BusyError):  # another process trains it
                grid.validate([row], [seed])
                waits = False
        if waits:
            time.sleep(POLL)


def _to_train(search: Search) -> list[tuple[Row, int]]:
    """Return the finalists' trainings that are missing; a finalist that diverged makes room for the next."""
    outcome, todo = search.outcome(), []
    for seed in range(1, search.options.number_of_seeds):
        for candidate in outcome.candidates:
            files = RunFolder(search.run_folder(candidate, seed))
            if not (files.is_trained or files.has_diverged):
                recipe = search.space.recipe_at(search.trained, outcome.points[candidate])
                row = Row(slug=f"candidate-{candidate:04}", recipe_name=search.name, recipe=recipe, cost="finalist")
                todo.append((row, recipe.seed + seed))
    return todo


@dataclass(frozen=True)
class FinalTest:
    """The winner's test.

    errors: of each seed, in per cent. images: their number. earlier: candidates that won this search when it was
    shorter, and were tested then.
    """

    errors: tuple[float, ...]
    images: int
    earlier: tuple[int, ...]


def final_test(search: Search, winner: Finalist) -> FinalTest:
    """Test the winner's runs once on the test images, or read the test that was made.

    Raises:
        CapsellaError: a run is gone or damaged.
    """
    test = read_test(search, winner)
    if test is not None:
        return test
    path, splits, errors = search.folder / "test.json", load_data(search.recipe.data), []
    for seed in winner.errors:
        files = RunFolder(search.run_folder(winner.candidate, seed))
        files.check_images(splits)
        errors.append(evaluate(load_run(files.path).model, splits.test).error)
    tests: dict[str, Any] = read_json(path) if path.exists() else {}
    tests[str(winner.candidate)] = {"errors_percent": errors, "images": len(splits.test)}
    write_json(path, tests)
    earlier = tuple(sorted(int(candidate) for candidate in tests if candidate != str(winner.candidate)))
    return FinalTest(tuple(errors), len(splits.test), earlier)


def read_test(search: Search, winner: Finalist | None) -> FinalTest | None:
    """Return the winner's test if it was made."""
    path = search.folder / "test.json"
    tests: dict[str, Any] = read_json(path) if path.exists() else {}
    if winner is None or str(winner.candidate) not in tests:
        return None
    test = tests.pop(str(winner.candidate))
    return FinalTest(tuple(test["errors_percent"]), test["images"], tuple(sorted(map(int, tests))))


def recipe_of(search: Search, finalist: Finalist) -> Recipe:
    """Return the recipe of a finalist, for as many epochs as the recipe that was to be improved."""
    return search.space.recipe_at(search.recipe, finalist.point)


def save_recipes(search: Search, outcome: Outcome) -> None:
    """Write the recipes of the winner and of all finalists; the winner has only the lowest error."""
    if outcome.winner is not None:
        save_recipe(recipe_of(search, outcome.winner), search.folder / "winner.json")
    for finalist in outcome.finalists:
        save_recipe(recipe_of(search, finalist), search.folder / "recipes" / f"candidate-{finalist.candidate}.json")

"""The end of a search: train the finalists with several seeds, and test the winner."""

import contextlib
import math
import time
from dataclasses import dataclass

from rich.console import Console

from capsella.errors import BusyError
from capsella.experiments.fit import evaluate_run
from capsella.experiments.runner import Row, Runner, Stopwatch
from capsella.experiments.search.outcome import Finalist, Outcome
from capsella.experiments.search.study import Search
from capsella.experiments.search.trials import POLL, run_trials
from capsella.files import write_json
from capsella.training import RunFolder, load_run


def run_search(search: Search, console: Console | None = None) -> Outcome:
    """Take part in a search until nothing is left or the time is up, and write outcome.json.

    Raises:
        CapsellaError: a training failed for a reason other than its candidate, or the limits reject nearly all of the
            space.
    """
    console = console or Console(quiet=True)
    minutes = search.options.minutes
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    run_trials(search, console, deadline)
    _run_finalists(search, console, deadline)
    outcome = search.outcome()
    write_json(search.folder / "outcome.json", outcome.to_dict())
    return outcome


def _run_finalists(search: Search, console: Console, deadline: float) -> None:
    """Train the finalists with the other seeds. Processes share them, and wait for one another."""
    clock = Stopwatch({"finalist": search.rungs[-1] * search.mean_seconds_per_epoch()})
    clock.plan(["finalist"] * (search.options.number_of_seeds - 1) * len(search.outcome().candidates))
    runner = Runner(search.folder / "finalists", console, search.compute, clock)
    while todo := _to_train(search):
        waits = True
        for row, seed in todo:
            if time.monotonic() > deadline:
                return
            with contextlib.suppress(BusyError):  # another process trains it
                runner.validate([row], [seed])
                waits = False
        if waits:
            time.sleep(POLL)


def _to_train(search: Search) -> list[tuple[Row, int]]:
    """Return the finalists' trainings that are missing; a finalist that diverged is replaced by the next best."""
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
    """The result of the winner on the test images.

    errors: error rate of each seed, in per cent. images: number of test images. earlier: candidates that won this
    search when it had fewer trials, and were tested then.
    """

    errors: tuple[float, ...]
    images: int
    earlier: tuple[int, ...]


def final_test(search: Search, winner: Finalist) -> FinalTest:
    """Test the winner's runs on the test images, unless they were tested before.

    Raises:
        CapsellaError: a run is missing or damaged.
    """
    for seed in winner.errors:
        files = RunFolder(search.run_folder(winner.candidate, seed))
        if not files.is_tested:
            evaluate_run(load_run(files.path), report=False, progress=False)
    test = read_test(search, winner)
    assert test is not None
    return test


def read_test(search: Search, winner: Finalist | None) -> FinalTest | None:
    """Return the test result of the winner; None if it was not tested."""
    if winner is None:
        return None
    runs = [RunFolder(search.run_folder(winner.candidate, seed)) for seed in winner.errors]
    if not all(run.is_tested for run in runs):
        return None
    tests = [run.read("result")["test"] for run in runs]
    tested = (int(path.parent.name[-4:]) for path in search.folder.glob("candidates/*/result.json"))
    earlier = sorted(candidate for candidate in tested if candidate != winner.candidate)
    return FinalTest(tuple(test["error_percent"] for test in tests), tests[0]["images"], tuple(earlier))

"""The trials of a search, drawn by Optuna and trained from rung to rung; then the finalists with several seeds."""

import contextlib
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from capsella.bench import network_latencies
from capsella.errors import BusyError, CapsellaError, NoMemoryError, memory_errors, pluralize
from capsella.experiments.fit import train_or_resume
from capsella.experiments.runner import Row, Stopwatch, Task, format_duration, run_tasks
from capsella.experiments.search.options import FACTOR
from capsella.experiments.search.outcome import BASE, Outcome
from capsella.experiments.search.space import Label
from capsella.experiments.search.study import ATTEMPTS, Search, error_at, quiet_optuna
from capsella.files import alone_in, write_json
from capsella.models.base import shipped_parameters
from capsella.training import Recipe, RunFolder, TrainingDivergedError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

STARTUP = 10  # trials that are drawn at random before TPE begins
POLL = 1.0  # seconds between checks on other processes
MAX_REJECTED = 50  # per trained candidate: with more, the limits reject too much of the space
MAX_TWINS = 50  # in a row: with more, the whole space counts as searched
WEIGHTS = ("model.safetensors", "ood_detector.safetensors")
ROUNDS = 3  # of measuring a latency


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


def run_trials(search: Search, console: Console, deadline: float) -> None:
    """Train trial after trial, and wait at the end for those of other processes.

    Raises:
        CapsellaError: a training failed for a reason other than its candidate, or the limits reject nearly all of the
            space.
    """
    while True:
        with ExitStack() as asking, ExitStack() as alive, quiet_optuna():
            asking.enter_context(alone_in(search.folder / ".asking", wait=True))
            if search.options.storage is None:
                _retry_abandoned(search)
            step = _next_step(search, deadline)
            if step == "train":
                _run_trial(search, console, asking, alive)
        if step == "over":
            if _is_exhausted(search):
                console.print(f"no new candidate in {MAX_TWINS} draws: the whole space is searched")
            return
        if step == "wait":
            time.sleep(POLL)


def _is_exhausted(search: Search) -> bool:
    """Return whether the last draws were all drawn before, as in a finite space that is searched to its end."""
    last = search.trials()[-MAX_TWINS:]
    return len(last) == MAX_TWINS and all("twin" in trial.user_attrs for trial in last)


def _next_step(search: Search, deadline: float) -> str:
    """Return "train", "wait" (for other processes) or "over"."""
    trials, states = search.trials(), [trial.state.name for trial in search.trials()]
    rejected = [trial for trial in trials if "over_limit" in trial.user_attrs]
    twins = sum("twin" in trial.user_attrs for trial in trials)
    counted = sum(state in ("COMPLETE", "PRUNED", "RUNNING") for state in states) - len(rejected) - twins
    if len(rejected) >= MAX_REJECTED * max(1, counted):
        raise CapsellaError(
            f"{len(rejected)} candidates were rejected and {counted} trained: the limits leave too little of the "
            f"space; the last: {rejected[-1].user_attrs['over_limit']}"
        )
    # At least half of the time is for trials, the rest for the finalists.
    runs = (search.options.number_of_finalists + 1) * (search.options.number_of_seeds - 1)
    rest = runs * search.rungs[-1] * search.mean_seconds_per_epoch()
    has_time = time.monotonic() + min(rest, 30 * (search.options.minutes or math.inf)) < deadline
    has_more = counted < (search.options.number_of_trials or math.inf) and not _is_exhausted(search)
    if has_time and (has_more or "WAITING" in states):
        return "train"
    return "wait" if "RUNNING" in states else "over"


def _retry_abandoned(search: Search) -> None:
    """Enqueue again the running trials whose processes died: those that no living process has locked."""
    import optuna

    for trial in search.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        with contextlib.suppress(BusyError), alone_in(_lock_of(search, trial.number)):
            search.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            _retry(search, trial.number)


def _retry(search: Search, number: int) -> None:
    import optuna

    trial = search.study.get_trials()[number]
    if trial.params.keys() == search.space.fields.keys():  # else the process died while drawing them
        optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=ATTEMPTS)(search.study, trial)


def _lock_of(search: Search, number: int) -> Path:
    return search.folder / ".running" / f"{number:04}"


def _run_trial(search: Search, console: Console, asking: ExitStack, alive: ExitStack) -> None:
    """Draw the next trial and train it. `asking` is released once the trial is locked, `alive` when it is over."""
    import optuna

    number = -1

    def objective(trial: "Trial") -> float:
        nonlocal number
        number = trial.number
        alive.enter_context(alone_in(_lock_of(search, number), wait=True))
        asking.close()
        return _train_trial(search, trial)

    drawn = {other.user_attrs["candidate"] for other in search.trials() if "candidate" in other.user_attrs}
    seed = (100_003 * search.recipe.seed + len(drawn)) % 2**32  # processes must not draw the same
    search.study.sampler = optuna.samplers.TPESampler(n_startup_trials=STARTUP, seed=seed)
    try:
        search.study.optimize(objective, n_trials=1)
    except BaseException:
        if number >= 0:
            _retry(search, number)
        raise
    _print_trial(search, number, console)


def _train_trial(search: Search, trial: "Trial") -> float:
    """Train a candidate from rung to rung, and return its validation error."""
    candidate = trial.user_attrs.get("candidate", trial.number)
    trial.set_user_attr("candidate", candidate)
    point = {path: _suggest(trial, path, values) for path, values in search.space.fields.items()}
    files = RunFolder(search.run_folder(candidate))
    try:
        with memory_errors(f"candidate {candidate}"):
            recipe = search.space.recipe_at(search.recipe, point)
            _check_costs(search, trial, candidate, point, recipe)
            error = _train_rungs(search, trial, candidate, recipe, files)
    except (TrainingDivergedError, NoMemoryError, ValueError) as failure:
        why = failure.what if isinstance(failure, TrainingDivergedError) else str(failure) or type(failure).__name__
        _prune(trial, files, "failed", why)
    files.checkpoint.unlink(missing_ok=True)
    return error


def _prune(trial: "Trial", files: RunFolder, kind: str, why: str) -> None:
    """End a trial, and remove the files that only resuming it would need."""
    import optuna

    trial.set_user_attr(kind, why)
    for path in (files.checkpoint, *(files.path / name for name in WEIGHTS)):
        path.unlink(missing_ok=True)
    raise optuna.TrialPruned(why)


def _suggest(trial: "Trial", path: str, values: "BaseDistribution") -> Label:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(values, CategoricalDistribution):
        return trial.suggest_categorical(path, values.choices)
    if isinstance(values, IntDistribution):
        return trial.suggest_int(path, values.low, values.high, step=values.step, log=values.log)
    assert isinstance(values, FloatDistribution)
    return trial.suggest_float(path, values.low, values.high, step=values.step, log=values.log)


def _check_costs(search: Search, trial: "Trial", candidate: int, point: Mapping[str, Label], recipe: Recipe) -> None:
    """Measure what the limits are about, or take it from an earlier candidate with the same network."""
    known: dict[str, float] = {}
    for other in search.trials():
        if other.params == point and other.user_attrs.get("candidate", candidate) != candidate:
            _prune(trial, RunFolder(search.run_folder(candidate)), "twin", f"the same as trial {other.number}")
        if _network(other.params) == _network(point):
            known |= {name: other.user_attrs[name] for name in search.options.limits if name in other.user_attrs}
    for name, limit in search.options.limits.items():
        measure = {"parameters": parameters_of, "ms": latency_of}[name]
        cost = known[name] if name in known else measure(search, recipe)
        trial.set_user_attr(name, cost)
        if candidate == BASE:  # the recipe is trained in any case, to compare with
            continue
        trial.set_constraint(name, cost / limit - 1)  # so that later draws avoid it
        if cost > limit:
            why = f"{cost:,.4g} {name}, more than {limit:,.4g}"
            _prune(trial, RunFolder(search.run_folder(trial.number)), "over_limit", why)


def parameters_of(search: Search, recipe: Recipe) -> float:
    """Return the number of parameters of a recipe's network without its decoder."""
    shape = search.splits.image_size, search.splits.channels, search.splits.classes
    with torch.device("meta"):
        return float(shipped_parameters(recipe.model.create(*shape)))


def latency_of(search: Search, recipe: Recipe) -> float:
    """Return the median milliseconds per image of a recipe's network, with fresh weights, on this processor.

    The best of a few rounds counts, since other processes may disturb one.
    """
    torch.manual_seed(recipe.seed)
    model = recipe.model.create(search.splits.image_size, search.splits.channels, search.splits.classes).eval()
    return min(network_latencies({"candidate": model})["candidate"].p50 for _ in range(ROUNDS))


def _network(point: Mapping[str, Label]) -> dict[str, Label]:
    """Return the values that determine a candidate's network, and thus its costs."""
    return {path: value for path, value in point.items() if path.startswith("model.")}


def _train_rungs(search: Search, trial: "Trial", candidate: int, recipe: Recipe, files: RunFolder) -> float:
    """Train to the end of each rung, and return the validation error of the last one, in per cent."""
    error, began = math.inf, time.monotonic()
    before = _epochs_of(files)
    for rung, epochs in enumerate(search.rungs):
        train_to(search, recipe, files, epochs)
        error = error_at(files, epochs)
        trial.set_user_attr("epochs", max(0, epochs - before))
        trial.set_user_attr("seconds", time.monotonic() - began)
        trial.set_user_attr("errors", [*trial.user_attrs.get("errors", [])[:rung], error])
        trial.report(error, FACTOR**rung)
        if epochs < search.rungs[-1] and candidate != BASE and trial.should_prune():
            _prune(trial, files, "stopped", f"not among the best after epoch {epochs}")
    return error


def train_to(search: Search, recipe: Recipe, files: RunFolder, epochs: int) -> None:
    """Train a candidate up to an epoch, from its checkpoint if it has one.

    Raises:
        TrainingDivergedError: loss or gradient is NaN or infinite.
        CapsellaError: the folder holds a run of another recipe; or as for `train`.
    """
    if _epochs_of(files) < epochs:
        name = f"{search.name}-{files.path.name}"
        train_or_resume(recipe, files.path, name, Console(quiet=True), search.compute, search.splits, epochs)


def _epochs_of(files: RunFolder) -> int:
    """Return how many epochs of a run are complete."""
    has_begun = files.metrics.exists() and (files.checkpoint.exists() or files.is_trained)
    return len(files.read_metrics()["epoch"]) if has_begun else 0


def _print_trial(search: Search, number: int, console: Console) -> None:
    """Print a line for a trial: its error, the best so far, and the time left."""
    trials = search.trials()
    attributes, wanted = trials[number].user_attrs, search.options.number_of_trials
    candidate = f"candidate {attributes.get('candidate', number)}"
    why = next((attributes[kind] for kind in ("twin", "over_limit", "failed") if kind in attributes), None)
    if why is not None:
        console.print(f"{candidate}: rejected, {why}", markup=False, soft_wrap=True)
        return
    done = [trial for trial in trials if trial.state.name == "COMPLETE"]
    best = min(done, key=lambda trial: trial.values[0], default=None)
    least = "" if best is None else f"best {best.values[0]:.2f} % by {best.user_attrs['candidate']}"
    over = sum(trial.state.is_finished() and not {"twin", "over_limit"} & set(trial.user_attrs) for trial in trials)
    trained = sum(trial.user_attrs.get("epochs", 0) for trial in trials)
    workers = sum(trial.state.name == "RUNNING" for trial in trials) + 1
    epochs = max(0.0, search.options.expected_epochs(search.rungs) - trained)
    left = format_duration(epochs * search.mean_seconds_per_epoch() / workers)
    progress = f"{over} of {wanted} trials; about {left} left" if wanted else pluralize(over, "trial")
    errors = attributes["errors"]
    epoch = f"epoch {search.rungs[len(errors) - 1]}/{search.rungs[-1]}"
    line = f"{candidate:<14} {epoch:<13} error {errors[-1]:6.2f} %   {least}   {progress}"
    console.print(line, markup=False, soft_wrap=True)


def _run_finalists(search: Search, console: Console, deadline: float) -> None:
    """Train the finalists with the other seeds. Processes share them, and wait for one another."""
    stopwatch = Stopwatch({"finalist": search.rungs[-1] * search.mean_seconds_per_epoch()})
    stopwatch.plan(["finalist"] * (search.options.number_of_seeds - 1) * len(search.outcome().finalists))
    while todo := _untrained_finalists(search):
        waits = True
        for task in todo:
            if time.monotonic() > deadline:
                return
            with contextlib.suppress(BusyError):  # another process trains it
                list(run_tasks([task], console, stopwatch))
                waits = False
        if waits:
            time.sleep(POLL)


def _untrained_finalists(search: Search) -> list[Task]:
    """Return the finalists' trainings that are missing; a finalist that diverged is replaced by the next best."""
    finalists, tasks = search.outcome().finalists, []
    for seed in range(1, search.options.number_of_seeds):
        for finalist in finalists:
            slug, recipe = f"candidate-{finalist.candidate:04}", search.space.recipe_at(search.recipe, finalist.point)
            row = Row(slug=slug, recipe_name=search.name, recipe=recipe, cost="finalist")
            tasks.append(row.task(search.folder / "finalists", recipe.seed + seed, search.compute, is_tested=False))
    return [task for task in tasks if not task.is_finished]

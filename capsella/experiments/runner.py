"""The loop over several trainings: turn tasks into runs, resume interrupted ones, and predict the time left."""

import io
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from rich.console import Console
from rich.text import Text

from capsella import ray_cluster
from capsella.data import DataOptions, Splits, load_data
from capsella.errors import BusyError, CapsellaError, check_argument, memory_errors
from capsella.experiments.fit import evaluate_run, train_or_resume
from capsella.training import (
    ComputeOptions,
    Recipe,
    RunFolder,
    TrainingDivergedError,
    best_validation,
    recipe_modules,
)

AnyRow = TypeVar("AnyRow", bound="Row")
Results = dict[str, list[dict[str, Any]]]  # contents of result.json by row slug, in seed order
BUSY_SECONDS = 60.0  # a dying worker may still hold the lock of its run folder


@dataclass
class Stopwatch:
    """Count runs, and predict the time left from the seconds of finished ones.

    Runs with the same `cost`, a name, are expected to take equally long. estimates: seconds per run by cost, until one
    is finished. left: planned runs by cost. taken: seconds of finished runs by cost.

    >>> stopwatch = Stopwatch()
    >>> stopwatch.plan(["a", "a", "a", "b"])
    >>> stopwatch.finish("a", 14.0)
    >>> stopwatch.seconds_left()
    42.0
    >>> stopwatch.line("the second a")
    'run 2 of 4: the second a; about 42 s left'
    """

    estimates: Mapping[str, float] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)
    taken: dict[str, list[float]] = field(default_factory=dict)
    done: int = 0

    def plan(self, costs: Iterable[str]) -> None:
        """Add planned runs, one per cost name; runs that were planned before are not counted twice."""
        self.left |= Counter(costs)

    def finish(self, cost: str, seconds: float | None = None) -> None:
        """Count one planned run as finished after `seconds`; None if its time is unknown."""
        self.left[cost] -= 1
        self.done += 1
        if seconds is not None:
            self.taken.setdefault(cost, []).append(seconds)

    @property
    def position(self) -> str:
        """The number of the next run among all, e.g. "run 2 of 4"."""
        return f"run {self.done + 1} of {self.done + self.left.total()}"

    def seconds_left(self) -> float | None:
        """Return the seconds that all planned runs will take; None if nothing is known.

        Costs have their measured means, or their estimates. A cost with neither counts as the mean of the others.
        """
        measured = {cost: sum(seconds) / len(seconds) for cost, seconds in self.taken.items()}
        by_cost = {**self.estimates, **measured}
        if not by_cost:
            return None
        mean = sum(by_cost.values()) / len(by_cost)
        return sum(number * by_cost.get(cost, mean) for cost, number in self.left.items())

    def line(self, label: str) -> str:
        """Return the line that announces a run: its number, its label and the time left."""
        seconds = self.seconds_left()
        left = "" if seconds is None else f"; about {format_duration(seconds)} left"
        return f"{self.position}: {label}{left}"


def format_duration(seconds: float) -> str:
    """Format hours and minutes, or seconds below two minutes.

    >>> format_duration(45), format_duration(600), format_duration(9000)
    ('45 s', '10 min', '2 h 30 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run to compute: a complete recipe, with its seed and fold, in a folder of its own.

    label: the name in progress lines. recipe_name: the name of the run. cost: a name shared by tasks that take equally
    long. is_tested: whether the run is tested, or only trained. is_quiet: print one line per
    run instead of one per epoch.
    """

    recipe: Recipe
    folder: Path
    label: str
    recipe_name: str = "unnamed"
    cost: str = ""
    compute: ComputeOptions = ComputeOptions()
    is_tested: bool = True
    is_quiet: bool = False

    @property
    def files(self) -> RunFolder:
        """The run folder."""
        return RunFolder(self.folder)

    @property
    def is_finished(self) -> bool:
        """True if nothing is left to compute; a training that diverged counts as finished."""
        return (self.files.is_tested if self.is_tested else self.files.is_trained) or self.files.has_diverged

    def run(self, console: Console, splits: Splits | None = None) -> Splits | None:
        """Compute what is missing, in this process. A training that diverges is no error: diverged.json records it.

        Args:
            console: where progress is printed.
            splits: the images of the recipe, if they are loaded already.

        Returns:
            The images, if they were loaded.

        Raises:
            NoMemoryError: out of memory.
            CapsellaError: the folder holds a run of another recipe; or as for `train`.
        """
        self.files.check_recipe(self.recipe)
        if self.is_finished:
            return splits
        console = Console(quiet=True) if self.is_quiet else console
        with memory_errors(self.label):
            try:
                run = train_or_resume(self.recipe, self.folder, self.recipe_name, console, self.compute, splits)
            except TrainingDivergedError as error:
                console.print(f"diverged: {error.what}", markup=False, soft_wrap=True)
                self.files.write("diverged", {"reason": error.what})
                return splits
            if self.is_tested:
                run = evaluate_run(run, report=False, progress=False)
            return run.splits

    def result(self) -> dict[str, Any] | None:
        """Read result.json; None if the run diverged."""
        return self.files.read("result") if self.files.is_tested else None


def run_tasks(tasks: Sequence[Task], console: Console, stopwatch: Stopwatch | None = None) -> Iterator[Task]:
    """Yield every task when it is finished: first those that were finished before, then the others as computed.

    On a cluster (`ray_cluster.ray_session`) each run is a Ray task, which continues from its checkpoint if its worker
    dies. Its output is printed when it ends.

    Raises:
        ArgumentError: more than one device per run on a cluster.
        CapsellaError: the user's own images have changed since the finished runs; workers died too often; or as for
            `Task.run`. Other runs are then stopped; call this again to resume them.
    """
    stopwatch, place = stopwatch or Stopwatch(), ray_cluster.current_cluster()
    stopwatch.plan(task.cost for task in tasks)
    finished = [task for task in tasks if task.is_finished]
    done = {task.folder for task in finished}
    left = [task for task in tasks if task.folder not in done]
    if left:
        check_images_unchanged(finished)
    for task in finished:
        task.files.check_recipe(task.recipe)
        stopwatch.finish(task.cost, task.files.read("summary")["seconds"] if task.files.is_trained else None)
        task.files.checkpoint.unlink(missing_ok=True)  # left by a call that ended just before deleting it
    yield from finished
    began = time.monotonic()
    for task in _here(left, console, stopwatch) if place is None else _on_ray(place, left, console, stopwatch):
        stopwatch.finish(task.cost, None if task.files.has_diverged else time.monotonic() - began)
        task.files.checkpoint.unlink(missing_ok=True)  # large, and nothing is left to resume
        yield task
        began = time.monotonic()


def _here(tasks: Sequence[Task], console: Console, stopwatch: Stopwatch) -> Iterator[Task]:
    data, splits = None, None  # of the last task: the next one often has the same data
    for task in tasks:
        if task.recipe.data != data:
            data, splits = task.recipe.data, None
        began, line = time.monotonic(), stopwatch.line(task.label)
        if not task.is_quiet:
            console.print(line, soft_wrap=True, markup=False)
        with console.status(Text(line)) if task.is_quiet else nullcontext():
            splits = task.run(console, splits)
        if task.is_quiet:
            error, seconds = ValidationResult.of(task.files).error, time.monotonic() - began
            result = "diverged" if task.files.has_diverged else f"val. error {error:.1f} %"
            line = f"{stopwatch.position}: {task.label}: {result}, {format_duration(seconds)}"
            console.print(line, soft_wrap=True, markup=False)
        yield task


def _on_ray(
    place: ray_cluster.ClusterOptions, tasks: Sequence[Task], console: Console, stopwatch: Stopwatch
) -> Iterator[Task]:
    import ray

    waiting: dict[Any, Task] = {}
    try:
        for task in tasks:
            check_argument(task.compute.devices == 1, "be 1 with --on", devices=task.compute.devices)
            needs = ray_cluster.resources(place, task.compute.accelerator)
            if not waiting and (note := ray_cluster.capacity_warning(needs)):
                console.print(f"note: {note}", markup=False, soft_wrap=True)
            environment = ray_cluster.WorkerEnvironment.here(needs, recipe_modules())
            remote = ray.remote(max_retries=ray_cluster.RETRIES, max_calls=1, **needs)(_compute_in_worker)
            waiting[remote.remote(environment, task, console.width)] = task
        while waiting:
            (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
            task = waiting.pop(ready)
            try:
                printed, failure = ray.get(ready)
            except ray_cluster.ray_errors() as error:
                raise ray_cluster.worker_error(task.label, error) from error
            console.print(f"{stopwatch.position}: {task.label}", markup=False)
            console.print(printed, end="", markup=False, highlight=False, soft_wrap=True)
            if failure is not None:
                raise failure
            yield task
    finally:
        for ready in waiting:
            ray.cancel(ready, force=True)


def _compute_in_worker(
    environment: ray_cluster.WorkerEnvironment, task: Task, width: int
) -> tuple[str, Exception | None]:
    """Compute a task; return what it printed, and its error, if any."""
    text, failure = io.StringIO(), None
    console = Console(file=text, width=width)
    with warnings.catch_warnings():
        warnings.showwarning = partial(_print_warning, console)
        try:
            environment.apply()
            _run_when_free(task, console)
        except (CapsellaError, ValueError, OSError) as error:
            failure = error
    return text.getvalue(), failure


def _run_when_free(task: Task, console: Console) -> None:
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            task.run(console)
            return
        except BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def _print_warning(console: Console, message: Warning | str, *_: Any, **__: Any) -> None:
    console.print(f"warning: {message}", markup=False, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a results table: one recipe that is trained with several seeds.

    slug: the beginning of its folders' names. recipe_name: the registered recipe that it is based on. recipe: what to
    train; the seed is replaced. cost, is_quiet: as in `Task`; the cost is the slug by default. progress_label: the name
    in progress lines; default: the slug.
    """

    slug: str
    recipe_name: str
    recipe: Recipe
    cost: str = ""
    progress_label: str = ""
    is_quiet: bool = False

    def folder(self, runs: Path, seed: int) -> Path:
        """Return the folder of the run with that seed."""
        return runs / f"{self.slug}-seed{seed}"

    def on(self, source: str) -> Self:
        """Return the row with the images of another source; for pairs, with pairs of them."""
        return replace(self, recipe=replace(self.recipe, data=self.recipe.data.on(source)))

    def task(
        self, runs: Path, seed: int, compute: ComputeOptions = ComputeOptions(), *, is_tested: bool = True
    ) -> Task:
        """Return the task of the run with that seed."""
        return Task(
            recipe=replace(self.recipe, seed=seed),
            folder=self.folder(runs, seed),
            label=f"{self.progress_label or self.slug}, seed {seed}",
            recipe_name=self.recipe_name,
            cost=self.cost or self.slug,
            compute=compute,
            is_tested=is_tested,
            is_quiet=self.is_quiet,
        )


class ValidationResult(NamedTuple):
    """The validation result of the kept epoch of a run; the error in per cent, infinite if the training diverged.

    The error is the balanced one, a mean over classes, if the run balances its classes.
    """

    folder: Path
    error: float
    loss: float

    @classmethod
    def of(cls, files: RunFolder) -> Self:
        """Read a finished run."""
        if files.has_diverged:
            return cls(files.path, float("inf"), float("inf"))
        return cls(files.path, *best_validation(files.read("summary")))

    @property
    def rank(self) -> tuple[float, float]:
        """Error, then loss, to sort by; lower is better."""
        return self.error, self.loss


@dataclass
class Runner:
    """Train rows with several seeds in one folder, each run in a folder of its own."""

    folder: Path
    console: Console
    compute: ComputeOptions = ComputeOptions()
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def results(self, rows: Sequence[Row], seeds: Sequence[int]) -> Results:
        """Train and test every row with every seed.

        All rows are trained with one seed before the next, so that each has a result early. A training that diverges
        is a result, not an error: its seed is missing in its row, now and when called again.

        Raises:
            ArgumentError: there is no seed, or a seed or a slug occurs twice.
            CapsellaError: a run folder holds a run of another recipe; or as for `train`.
        """
        results: Results = {row.slug: [] for row in rows}
        for row, task in self._run(rows, seeds, is_tested=True):
            if (result := task.result()) is not None:
                results[row.slug].append(result)
        return results

    def validate(self, rows: Sequence[Row], seeds: Sequence[int]) -> list[dict[int, ValidationResult]]:
        """Train every row with every seed without testing; return the validation results of each row by seed."""
        found: dict[str, dict[int, ValidationResult]] = {row.slug: {} for row in rows}
        for row, task in self._run(rows, seeds, is_tested=False) if seeds else ():
            found[row.slug][task.recipe.seed] = ValidationResult.of(task.files)
        return [found[row.slug] for row in rows]

    def choose_learning_rates(self, rows: Sequence[AnyRow], seed: int, factors: Sequence[float]) -> list[AnyRow]:
        """Train every row at several learning rates without testing; return each at the one with the lowest error.

        Args:
            rows: what to train.
            seed: the seed of these runs.
            factors: factors of the recipe's learning rate; the products are rounded to two digits.
        """
        tried = [
            [with_learning_rate(row, scaled_learning_rate(row.recipe, factor)) for factor in factors] for row in rows
        ]
        ranks = [run[seed].rank for run in self.validate([row for of_row in tried for row in of_row], [seed])]
        parts = [ranks[start : start + len(factors)] for start in range(0, len(ranks), len(factors))]
        return [of_row[part.index(min(part))] for of_row, part in zip(tried, parts, strict=True)]

    def _run(self, rows: Sequence[Row], seeds: Sequence[int], *, is_tested: bool) -> list[tuple[Row, Task]]:
        """Compute every row with every seed, and return rows and tasks in the order of the seeds."""
        check_seeds(seeds)
        slugs = [row.slug for row in rows]
        check_argument(len(set(slugs)) == len(slugs), "have each slug once", rows=slugs)
        pairs = [
            (row, row.task(self.folder, seed, self.compute, is_tested=is_tested)) for seed in seeds for row in rows
        ]
        check_data_available([task.recipe for _, task in pairs if not task.is_finished])
        for _ in run_tasks([task for _, task in pairs], self.console, self.stopwatch):
            pass
        return pairs


def common_seeds(results: Results) -> Results:
    """Keep only the results of seeds that all rows have."""
    common = set.intersection(*({run["seed"] for run in runs} for runs in results.values()))
    return {slug: [run for run in runs if run["seed"] in common] for slug, runs in results.items()}


def scaled_learning_rate(recipe: Recipe, factor: float) -> float:
    """Return the learning rate of a recipe times `factor`, rounded to two significant digits."""
    return float(f"{factor * recipe.optimizer.learning_rate:.2g}")


def with_learning_rate(row: AnyRow, rate: float) -> AnyRow:
    """Return the row with this learning rate, in folders of its own."""
    recipe = replace(row.recipe, optimizer=replace(row.recipe.optimizer, learning_rate=rate))
    return replace(row, slug=f"{row.slug}-rate{rate:g}", recipe=recipe, cost=row.cost or row.slug)


def check_seeds(seeds: Sequence[int]) -> None:
    """Check that there is a seed, and none twice.

    Raises:
        ArgumentError: the seeds break one of these rules.
    """
    check_argument(0 < len(seeds) == len(set(seeds)), "be at least one, and each only once", seeds=tuple(seeds))


def check_data_available(recipes: Sequence[Recipe]) -> None:
    """Load the images of every source, so that a missing one is reported before hours of training.

    A single source is not loaded, because its first training reports it at once.
    """
    sources = {recipe.data.source: recipe.data for recipe in recipes}
    for data in sources.values() if len(sources) > 1 else ():
        load_data(data)


def check_images_unchanged(tasks: Sequence[Task]) -> None:
    """Check that the user's own images have not changed since these runs.

    Raises:
        CapsellaError: they have changed, so that new runs would not be comparable.
    """
    folders: dict[DataOptions, list[RunFolder]] = {}
    for task in tasks:
        if task.recipe.data.paths:
            folders.setdefault(task.recipe.data, []).append(task.files)
    for data, runs in folders.items():
        splits = load_data(data)
        for run in runs:
            run.check_images(splits)

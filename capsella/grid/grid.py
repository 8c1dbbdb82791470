"""The only loop over runs: what is missing is trained, what was interrupted goes on, what is finished is read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from rich.console import Console

from capsella.data import DataOptions, load_data
from capsella.errors import ArgumentError, CapsellaError, check_argument
from capsella.grid.clock import Clock
from capsella.grid.run import result_of, trained_run
from capsella.grid.task import Task, each
from capsella.training import Machine, Recipe, RunFolder, TrainingDivergedError
from capsella.training.recipe import SEED_BITS
from capsella.training.validation import best_validation

T = TypeVar("T")
AnyRow = TypeVar("AnyRow", bound="Row")
Results = dict[str, list[dict[str, Any]]]
"""What result.json holds, by the slug of the row, in the order of the seeds."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One recipe of a grid, trained with every seed.

    slug: name of its runs' folders. recipe_name, recipe: the registered recipe that it departs from, and what it
    trains; the seed is the grid's. cost: rows of the same cost are expected to take equally long; default: the slug.
    """

    slug: str
    recipe_name: str
    recipe: Recipe
    cost: str = ""

    def folder(self, runs: Path, seed: int) -> Path:
        """Of the run with that seed."""
        return runs / f"{self.slug}-seed{seed}"

    def on(self, source: str) -> Self:
        """The same on the images of another source; of pairs, on pairs of them."""
        return replace(self, recipe=replace(self.recipe, data=self.recipe.data.on(source)))

    def task(self, compute: Callable[..., T], runs: Path, seed: int, machine: Machine) -> Task[T]:
        """The run with that seed, to be computed."""
        recipe = replace(self.recipe, seed=seed)
        return Task(
            f"{self.slug}, seed {seed}",
            _cost(self),
            compute,
            recipe,
            self.folder(runs, seed),
            self.recipe_name,
            machine,
        )


class Validated(NamedTuple):
    """The kept epoch of a run by its validation images; error in per cent, infinite where the training diverged.

    The error is balanced where the run balances its classes: a mean over classes.
    """

    folder: Path
    error: float
    loss: float
    epoch: int
    seconds: float

    @property
    def rank(self) -> tuple[float, float]:
        """Less is better: the error, then the loss."""
        return self.error, self.loss


@dataclass
class Searched:
    """A row with its best learning rate.

    tried: the first seed's run by rate. rate: the best of them by validation. by_seed: the runs at that rate.
    """

    row: Row
    tried: dict[float, Validated] = field(default_factory=dict)
    rate: float = 0.0
    by_seed: dict[int, Validated] = field(default_factory=dict)


@dataclass
class Grid:
    """Runs in one folder, each in a folder of its own. clock: where estimates are known before."""

    folder: Path
    console: Console
    machine: Machine = Machine()
    clock: Clock = field(default_factory=Clock)

    def results(self, rows: Sequence[Row], seeds: Sequence[int]) -> Results:
        """Train and test every row with every seed.

        Seeds go round the rows: after the first, every row has a number. A training that diverges is a result, not an
        error: its seed is not among those of its row, now and when called again.

        Raises:
            ValueError: no seed, or one twice; a slug twice.
            CapsellaError: a run of another recipe is in a run's folder; and what `train` raises.
        """
        check_seeds(seeds)
        slugs = [row.slug for row in rows]
        if len(set(slugs)) < len(slugs):
            raise ArgumentError("rows", "have each slug once", slugs)
        todo = [(row, seed) for seed in seeds for row in rows]
        check_sources([row.recipe for row, seed in todo if not RunFolder(row.folder(self.folder, seed)).is_tested])

        done = self._each(todo, tested_or_diverged, lambda folder: folder.is_tested or folder.has_diverged)
        results: Results = {slug: [] for slug in slugs}
        for (row, _), result in zip(todo, done, strict=True):
            results[row.slug] += [] if result is None else [result]
        return results

    def search(
        self, rows: Sequence[Row], seeds: Sequence[int], factors: Sequence[float], later: Sequence[str] = ()
    ) -> list[Searched]:
        """Train every row with learning rates around its recipe's, and with the best one with every seed; test nothing.

        Args:
            rows: to train.
            seeds: the first one tries all rates; the others take the best.
            factors: of the recipe's learning rate; the rates have two digits.
            later: costs of runs that are to follow, for the time left.
        """
        check_seeds(seeds)
        self.clock.plan([*(_cost(row) for row in rows for _ in range(len(factors) + len(seeds) - 1)), *later])
        found = [Searched(row) for row in rows]
        tried = [at_rate(row, rate_at(row.recipe, factor)) for factor in factors for row in rows]
        for one, row, runs in zip(len(factors) * found, tried, self.validated(tried, seeds[:1]), strict=True):
            one.tried[row.recipe.optimizer.learning_rate] = runs[seeds[0]]
        for one in found:
            one.rate = min(one.tried, key=lambda rate: one.tried[rate].rank)
        best = [at_rate(one.row, one.rate) for one in found]
        for one, runs in zip(found, self.validated(best, seeds[1:]), strict=True):
            one.by_seed = {seeds[0]: one.tried[one.rate], **runs}
        return found

    def validated(self, rows: Sequence[Row], seeds: Sequence[int]) -> list[dict[int, Validated]]:
        """Train every row with every seed, and test nothing; a training that diverges is a result, not an error."""
        todo = [(row, seed) for seed in seeds for row in rows]
        done = self._each(todo, _validated_run, lambda folder: folder.is_trained or folder.has_diverged)
        return [{seed: done[k * len(rows) + n] for k, seed in enumerate(seeds)} for n in range(len(rows))]

    def _each(
        self, todo: Sequence[tuple[Row, int]], compute: Callable[..., T], is_finished: Callable[[RunFolder], bool]
    ) -> list[T]:
        """What comes of every run: those that are finished are read first, then the others are computed."""
        tasks = [row.task(compute, self.folder, seed, self.machine) for row, seed in todo]
        finished = [task for task in tasks if is_finished(RunFolder(task.folder))]
        if len(finished) < len(tasks):
            check_finished(finished)
        found = {task.folder: one for task, one in finished_first(tasks, is_finished, self.console, self.clock)}
        return [found[task.folder] for task in tasks]


def finished_first(
    tasks: Sequence[Task[T]], is_finished: Callable[[RunFolder], bool], console: Console, clock: Clock
) -> Iterator[tuple[Task[T], T]]:
    """Each task with what comes of it: those whose folders are finished are read first, then the others are computed.

    The time left is known from what the finished ones took.
    """
    clock.plan(task.cost for task in tasks)
    finished = [task for task in tasks if is_finished(RunFolder(task.folder))]
    for task in finished:
        if (files := RunFolder(task.folder)).is_trained:
            clock.remember(task.cost, files.read("summary")["seconds"])
    for task in finished:
        outcome = task.run(console)
        clock.finish(task.cost)
        RunFolder(task.folder).checkpoint.unlink(missing_ok=True)  # of a call that ended just before it did so
        yield task, outcome
    done = {task.folder for task in finished}
    yield from each([task for task in tasks if task.folder not in done], console, clock)


def tested_or_diverged(
    recipe: Recipe, folder: Path, name: str, console: Console, machine: Machine
) -> dict[str, Any] | None:
    """As `result_of`; None where the training diverges, or did so before, which is a result, not an error."""
    files = RunFolder(folder)
    files.check_recipe(recipe)
    if files.has_diverged and not files.is_tested:
        return None
    with _divergence_noted(folder, console):
        return result_of(recipe, folder, name, console, machine)
    return None


def _validated_run(recipe: Recipe, folder: Path, name: str, console: Console, machine: Machine) -> Validated:
    files = RunFolder(folder)
    files.check_recipe(recipe)
    if not (files.is_trained or files.has_diverged):
        with _divergence_noted(folder, console):
            trained_run(recipe, folder, name, console, machine)
    return _validated(files)


@contextmanager
def _divergence_noted(folder: Path, console: Console) -> Iterator[None]:
    """Say and keep in the folder that the training diverged."""
    try:
        yield
    except TrainingDivergedError as error:
        console.print(f"diverged: {error.what}", markup=False, soft_wrap=True)  # its checkpoint is not kept
        RunFolder(folder).write("diverged", {"reason": error.what})


def of_common_seeds(results: Results) -> Results:
    """The results of the seeds that all rows have."""
    common = set.intersection(*({run["seed"] for run in runs} for runs in results.values()))
    return {slug: [run for run in runs if run["seed"] in common] for slug, runs in results.items()}


def check_none_diverged(results: Results, seeds: Sequence[int], folder: Path) -> None:
    """Raises:
    CapsellaError: `Grid.results` lack a seed of a row.
    """
    if gone := [slug for slug, runs in results.items() if len(runs) < len(seeds)]:
        raise CapsellaError(
            f"{folder}: every training must end, but with some seed these diverged: {', '.join(gone)}; remove their "
            "folders to train them anew"
        )


def rate_at(recipe: Recipe, factor: float) -> float:
    """The learning rate of a recipe times `factor`, to two digits."""
    return float(f"{factor * recipe.optimizer.learning_rate:.2g}")


def at_rate(row: AnyRow, rate: float) -> AnyRow:
    """The row with this learning rate, in folders of its own."""
    recipe = replace(row.recipe, optimizer=replace(row.recipe.optimizer, learning_rate=rate))
    return replace(row, slug=f"{row.slug}-rate{rate:g}", recipe=recipe, cost=_cost(row))


def check_seeds(seeds: Sequence[int]) -> None:
    """Raises:
    ValueError: no seed, one twice, or one that no training takes.
    """
    for seed in seeds:
        check_argument(0 <= seed < 2**SEED_BITS, f"be from 0 to {2**SEED_BITS - 1}", seeds=seed)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ArgumentError("seeds", "be at least one, and each only once", tuple(seeds))


def check_sources(recipes: Sequence[Recipe]) -> None:
    """Load the images of every source: one that is missing shows before the hours of the runs before it.

    A single source is not loaded twice, for the first training finds what is wrong with it.
    """
    sources = {recipe.data.source: recipe.data for recipe in recipes}
    for data in sources.values() if len(sources) > 1 else ():
        load_data(data)


def check_finished(tasks: Sequence[Task[T]]) -> None:
    """One's own images are those that finished runs saw: else runs on other images would come to stand beside them.

    Raises:
        CapsellaError: they are not.
    """
    folders: dict[DataOptions, list[RunFolder]] = {}
    for task in tasks:
        if task.recipe.data.is_own:
            folders.setdefault(task.recipe.data, []).append(RunFolder(task.folder))
    for data, runs in folders.items():
        splits = load_data(data)
        for run in runs:
            run.check_images(splits)


def _cost(row: Row) -> str:
    return row.cost or row.slug


def _validated(files: RunFolder) -> Validated:
    if files.has_diverged:
        return Validated(files.path, float("inf"), float("inf"), 0, 0.0)
    summary = files.read("summary")
    error, loss = best_validation(summary)  # what chose its epoch chooses a run
    return Validated(files.path, error, loss, summary["best"]["epoch"], summary["seconds"])

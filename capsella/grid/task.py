"""Where the runs of a grid are computed: here, one after another, or many at a time on a Ray cluster."""

import io
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console

from capsella import ray_cluster
from capsella.errors import BusyError, CapsellaError, check_argument, memory_errors
from capsella.grid.clock import Clock, duration
from capsella.training import Machine, Recipe, RunFolder
from capsella.training.registry import recipe_modules

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds that a run waits for the lock of its folder: a worker that is dying may still have it."""


@dataclass(frozen=True)
class Task(Generic[T]):
    """One run that is to be computed.

    what: for the console. cost: for the clock. compute: gets the other fields, and a console; a function of a module,
    so that another machine knows it too.
    """

    what: str
    cost: str
    compute: Callable[[Recipe, Path, str, Console, Machine], T]
    recipe: Recipe
    folder: Path
    name: str
    machine: Machine

    @property
    def has_begun(self) -> bool:
        """Whether it goes on from a checkpoint: what it still takes is not the time of a whole run."""
        return RunFolder(self.folder).checkpoint.exists()

    def run(self, console: Console) -> T:
        """Compute it in this process.

        Raises:
            NoMemoryError: the memory is not enough; and what `compute` raises.
        """
        with memory_errors(self.what):
            return self.compute(self.recipe, self.folder, self.name, console, self.machine)


def each(tasks: Iterable[Task[T]], console: Console, clock: Clock) -> Iterator[tuple[Task[T], T]]:
    """Compute every task, and give each with what came of it, as soon as it is there.

    On a cluster (`capsella.ray_cluster.joined`) a run is a task of Ray: begun again from its checkpoint where its
    worker dies. Its lines are printed when it is over. Tasks are taken from `tasks` as there is room for them.

    Raises:
        ValueError: more than one device a run on a cluster.
        CapsellaError: workers died too often; and what `compute` raises. Other runs that have begun are ended; called
            again, they go on.
    """
    place = ray_cluster.place()
    done = _here(tasks, console, clock) if place is None else _on_ray(place, tasks, console, clock)
    for task, outcome, seconds in done:
        files = RunFolder(task.folder)
        clock.finish(task.cost, None if files.has_diverged else seconds)
        files.checkpoint.unlink(missing_ok=True)  # three times the weights, and nothing is left to resume
        yield task, outcome


def _here(tasks: Iterable[Task[T]], console: Console, clock: Clock) -> Iterator[tuple[Task[T], T, float | None]]:
    for task in tasks:
        began, is_rest = time.monotonic(), task.has_begun
        share = RunFolder(task.folder).share_done(task.recipe.epochs)
        console.print(clock.line(task.what, task.cost, share), soft_wrap=True, markup=False)
        outcome = task.run(console)
        yield task, outcome, None if is_rest else time.monotonic() - began


@dataclass(frozen=True)
class _Answer:
    """From a worker: what was printed, what came of it, or an error, how long it took; is_rest: from a checkpoint."""

    text: str
    outcome: Any
    error: Exception | None
    seconds: float
    is_rest: bool


def _on_ray(
    place: ray_cluster.Place, tasks: Iterable[Task[T]], console: Console, clock: Clock
) -> Iterator[tuple[Task[T], T, float | None]]:
    import ray

    source, needs = iter(tasks), dict[str, float]()
    waiting: dict[Any, Task[T]] = {}
    try:
        while True:
            # One more than there is room for, so that a cluster that grows with its work knows of it.
            while not needs or len(waiting) <= ray_cluster.room(needs):
                if (task := next(source, None)) is None:
                    break
                check_argument(task.machine.devices == 1, "be 1 with --on", devices=task.machine.devices)
                asked, needs = needs, ray_cluster.resources(place, task.machine.accelerator)
                if asked != needs and (note := ray_cluster.shortage(needs)):
                    console.print(f"note: {note}", markup=False, soft_wrap=True)
                desk = ray_cluster.Desk.here(needs, recipe_modules())
                remote = ray.remote(max_retries=ray_cluster.RETRIES, max_calls=1, **needs)(_compute)
                waiting[remote.remote(desk, task, console.width)] = task
            if not waiting:
                return
            (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
            task = waiting.pop(ready)
            answer = _fetched(ready, task)
            done, all_runs = clock.done + 1, clock.done + clock.left.total()
            console.print(f"run {done} of {all_runs}: {task.what}, {duration(answer.seconds)}", markup=False)
            console.print(answer.text, end="", markup=False, highlight=False, soft_wrap=True)
            if answer.error is not None:
                raise answer.error
            yield task, answer.outcome, None if answer.is_rest else answer.seconds
    finally:
        for ready in waiting:
            ray.cancel(ready, force=True)


def _fetched(ready: Any, task: Task[T]) -> _Answer:
    import ray

    try:
        answer: _Answer = ray.get(ready)
    except ray_cluster.ray_errors() as error:
        raise ray_cluster.lost(task.what, error) from error
    return answer


def _compute(desk: ray_cluster.Desk, task: Task[T], width: int) -> _Answer:
    """In a worker: the run, begun or gone on with."""
    text, began = io.StringIO(), time.monotonic()
    console = Console(file=text, width=width)
    outcome, error, is_rest = None, None, False
    with warnings.catch_warnings():
        warnings.showwarning = partial(_print_warning, console)
        try:
            desk.sit_down()
            is_rest = task.has_begun
            outcome = _patiently(partial(task.run, console))
        except (CapsellaError, ValueError, OSError) as raised:
            error = raised
    return _Answer(text.getvalue(), outcome, error, time.monotonic() - began, is_rest)


def _patiently(compute: Callable[[], T]) -> T:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return compute()
        except BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def _print_warning(console: Console, message: Warning | str, *_: Any, **__: Any) -> None:
    console.print(f"warning: {message}", markup=False, soft_wrap=True)

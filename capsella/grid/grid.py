"""Many runs, one after the other, each with the time that is left for all; what is finished is read."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.grid.run import result_of
from capsella.papers.kinds.table import check_seeds
from capsella.training import Recipe

Results = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan, for every seed.

    slug: name of its folder, before the seed. cost: runs of the same cost are expected to take equally long.
    recipe_name, recipe: the registered recipe that it departs from, and what it trains; its seed is not used.
    """

    slug: str
    cost: str
    recipe_name: str
    recipe: Recipe

    def folder(self, runs: Path, seed: int) -> Path:
        """Of the run with that seed."""
        return runs / f"{self.slug}-seed{seed}"


def finish_runs(plan: Sequence[PlannedRun], seeds: Sequence[int], runs: Path, console: Console) -> Results:
    """The results of every run by its slug, in the order of the seeds: trained where missing, resumed where cut off.

    Seeds go round the plan: after the first, every run has a number. Before each run that is not finished, the console
    tells how many are left and how long they take if each takes as long as the finished ones of its cost.

    Args:
        plan: the runs, each slug once.
        seeds: of each run.
        runs: folder of the runs' folders.
        console: for progress.

    Raises:
        ValueError: no seed, or one twice; a slug twice.
        CapsellaError: a run of another recipe is in a run's folder.
    """
    check_seeds(seeds)
    slugs = [run.slug for run in plan]
    if len(set(slugs)) < len(slugs):
        raise ValueError(f"plan: must have each run once, got {slugs}")
    results: Results = {slug: [] for slug in slugs}
    todo = [(run, seed) for seed in seeds for run in plan]
    taken: dict[str, list[float]] = {run.cost: [] for run in plan} | _taken(todo, runs)
    left = [run.cost for run, seed in todo if not _is_finished(run.folder(runs, seed))]
    for number, (run, seed) in enumerate(todo, start=1):
        folder = run.folder(runs, seed)
        was_finished, began = _is_finished(folder), time.monotonic()
        if not was_finished:
            console.print(f"run {number} of {len(todo)}: {run.slug}, seed {seed}; {_left(left, taken)}")
        result = result_of(replace(run.recipe, seed=seed), folder, run.recipe_name, console)
        results[run.slug].append(result)
        if not was_finished:
            left.remove(run.cost)
            taken[run.cost].append(time.monotonic() - began)
            (folder / "last.ckpt").unlink(missing_ok=True)  # three times the weights, and nothing is left to resume
    return results


def seconds_left(left: Sequence[str], taken: dict[str, list[float]]) -> float | None:
    """How long runs of the costs `left` take, from the seconds of finished runs by cost; None where none is finished.

    A cost without a finished run is expected to take the mean of the others.

    >>> seconds_left(["a", "a", "b"], {"a": [10.0, 14.0], "b": []})
    36.0
    """
    means = {cost: sum(seconds) / len(seconds) for cost, seconds in taken.items() if seconds}
    if not means:
        return None
    other = sum(means.values()) / len(means)
    return sum(means.get(cost, other) for cost in left)


def _left(left: Sequence[str], taken: dict[str, list[float]]) -> str:
    seconds = seconds_left(left, taken)
    runs = f"{len(left)} runs left" if len(left) > 1 else "the last run"
    return runs if seconds is None else f"{runs}, about {max(1, round(seconds / 60))} min"


def _is_finished(folder: Path) -> bool:
    return (folder / "result.json").exists()


def _taken(todo: Sequence[tuple[PlannedRun, int]], runs: Path) -> dict[str, list[float]]:
    """Seconds of training of the runs that are finished already, by cost."""
    taken: dict[str, list[float]] = {}
    for run, seed in todo:
        if _is_finished(folder := run.folder(runs, seed)):
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            taken.setdefault(run.cost, []).append(summary["seconds"])
    return taken

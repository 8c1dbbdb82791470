"""How long a training will take here, told by a few of its steps."""

import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from rich.console import Console

from capsella.data import Splits, load_once
from capsella.training.devices import launch
from capsella.training.loop import Trainer
from capsella.training.options import Machine
from capsella.training.recipe import Recipe
from capsella.training.run import RunFolder
from capsella.training.settle import settle

WARM_UP, FEWEST, MOST = 1, 2, 50
"""Steps before the clock starts, and at least and at most so many on the clock."""


class StepTime(NamedTuple):
    """Seconds: of one step of the optimizer, and of one image that is validated or tested."""

    step: float
    image: float


def time_steps(
    recipe: Recipe, machine: Machine = Machine(), seconds: float = 3.0, splits: Splits | None = None
) -> StepTime:
    """Train a few steps, and validate a batch, of a training that is then forgotten; writes nothing.

    Args:
        recipe: of the training.
        machine: where it is to run.
        seconds: for the steps on the clock, at least two of them.
        splits: the images, where they are loaded already.

    Raises:
        CapsellaError: images are missing or broken.
    """
    recipe, _, _ = settle(recipe, machine)
    quiet = Console(quiet=True)
    nowhere, fabric = RunFolder(Path("untrained")), launch(recipe, machine)
    return _Timer(recipe, machine, nowhere, "timing", fabric, quiet, splits or load_once(recipe.data)).time(seconds)


class _Timer(Trainer):
    def time(self, seconds: float) -> StepTime:
        self.network.train()
        batches = islice(self._epoch_batches(), WARM_UP + MOST)
        taken, began = [], time.perf_counter()
        for number, chosen in enumerate(batches):
            taken.append(_seconds(lambda chosen=chosen: self._train_step(chosen)))  # type: ignore[misc]
            if number == WARM_UP - 1:
                began = time.perf_counter()
            if number >= WARM_UP + FEWEST - 1 and time.perf_counter() - began > seconds:
                break
        self.judged.eval()
        images = self.splits.validation
        few = images.subset(torch.arange(min(len(images), self.recipe.batch_size)))
        validated = [_seconds(lambda: self._validate(few)) for _ in range(1 + WARM_UP)]
        return StepTime(median(taken[WARM_UP:] or taken), validated[-1] / len(few))


def _seconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began

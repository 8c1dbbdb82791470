"""The same training twice, with the fused kernels and with eager: the losses of the first steps, and the time.

`python -m benchmarks.retrain demo --out results/retrain/demo.json`

Rounding differs, and training magnifies it from step to step. How much float32 itself allows is seen from a third
training: eager, with the first weights moved by one part in 10⁷.
"""

import dataclasses
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from torch import Tensor

from capsella.data import batches, load_data
from capsella.environment import environment
from capsella.files import write_json
from capsella.losses import total_loss
from capsella.models import ImageClassifier
from capsella.papers import get_recipe
from capsella.training import Recipe
from capsella.training.augment import Augment

ULP = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Retraining:
    """Train a recipe's first steps with both backends, in turn, and compare."""

    recipe: tyro.conf.Positional[str]
    """Name of the recipe."""
    out: Path
    """JSON file to write."""
    data: str | None = None
    """Take the images from this source instead of the recipe's."""
    steps: int = 100
    """Training steps of each."""
    seed: int = 0
    """Of the weights, the order of the images and their changes."""


class Training:
    """One of the trainings: its network, optimizer, losses and seconds a step."""

    def __init__(self, recipe: Recipe, backend: str, model: ImageClassifier) -> None:
        self.recipe, self.backend, self.model = recipe, backend, model.train()
        self.optimizer = torch.optim.Adam(model.parameters(), weight_decay=recipe.optimizer.l2)
        self.augment = Augment(recipe.augment, model.image_size)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, images: Tensor, labels: Tensor, steps: int) -> None:
        """One step of the recipe; the same random numbers for every training."""
        done, options = len(self.losses), self.recipe.optimizer
        torch.manual_seed(self.recipe.seed * 1_000_003 + done)
        began = time.perf_counter()
        images = self.augment(images)
        for group in self.optimizer.param_groups:
            group["lr"] = options.learning_rate_at(done, steps)
        output = self.model(images, labels)
        losses = total_loss(output, images, labels, self.recipe.loss, spread=self.recipe.loss.spread_at(done, steps))
        self.optimizer.zero_grad()
        losses.total.backward()
        if options.gradient_clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), options.gradient_clip)
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - began)
        self.losses.append(float(losses.total.detach()))


def retrain(options: Retraining, console: Console) -> dict[str, Any]:
    """Train all three in turn, and what came of it.

    Raises:
        ValueError: fewer steps than one.
    """
    if options.steps < 1:
        raise ValueError(f"steps: must be at least 1, got {options.steps}")
    recipe = dataclasses.replace(get_recipe(options.recipe), seed=options.seed)
    if options.data is not None:
        recipe = dataclasses.replace(recipe, data=recipe.data.on(options.data))
    images = load_data(recipe.data).train
    trainings = {
        name: Training(recipe, name, _network(recipe, backend, images, nudge=name == "nudged"))
        for name, backend in (("native", "native"), ("eager", "eager"), ("nudged", "eager"))
    }
    order = _batches_of(len(images), recipe, options.steps)
    for number, chosen in enumerate(order, start=1):
        batch = next(batches(images, len(chosen), order=chosen))
        for training in trainings.values():
            training.step(batch.images, batch.labels, options.steps)
        if number % 10 == 0:
            console.print(f"step {number}:", *(f"{name} {t.losses[-1]:.6f}" for name, t in trainings.items()))
    return _compare(options, recipe, trainings)


def _network(recipe: Recipe, backend: str, images: Any, nudge: bool) -> ImageClassifier:
    torch.manual_seed(recipe.seed)
    routing = dataclasses.replace(recipe.model.options["routing"], backend=backend)
    model = recipe.model.replace(routing=routing).create(images.image_size, images.channels, images.classes)
    if nudge:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + ULP)
    return model


def _batches_of(images: int, recipe: Recipe, steps: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(recipe.seed)
    done = 0
    while True:
        for chosen in torch.randperm(images, generator=generator).split(recipe.batch_size):
            if done == steps:
                return
            done += 1
            yield chosen


def _compare(options: Retraining, recipe: Recipe, trainings: dict[str, Training]) -> dict[str, Any]:
    """Largest relative difference from eager's losses over the first 10, 50, … steps, and median seconds a step."""
    eager = torch.tensor(trainings["eager"].losses)
    differences = {
        name: ((torch.tensor(training.losses) - eager).abs() / eager.abs()).cummax(0).values
        for name, training in trainings.items()
        if name != "eager"
    }
    until = [steps for steps in (1, 10, 20, 50, 100) if steps <= options.steps]
    seconds = {name: statistics.median(training.seconds) for name, training in trainings.items() if name != "nudged"}
    return {
        "environment": environment(),
        "recipe": recipe.to_dict(),
        "batch": recipe.batch_size,
        "steps": options.steps,
        "largest_relative_difference_from_eager": {
            name: {str(steps): float(values[steps - 1]) for steps in until} for name, values in differences.items()
        },
        "median_seconds_a_step": seconds,
        "times_as_fast": seconds["eager"] / seconds["native"],
        "losses": {name: training.losses for name, training in trainings.items()},
    }


if __name__ == "__main__":
    chosen = tyro.cli(Retraining, prog="benchmarks retrain")
    result = retrain(chosen, Console(highlight=False))
    write_json(chosen.out, result)
    Console(highlight=False).print(
        {key: result[key] for key in list(result) if key not in ("environment", "losses", "recipe")}
    )

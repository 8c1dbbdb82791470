"""How long each training will take on this machine, from a few steps of every network that differs; remembered."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from rich.console import Console

from capsella.environment import environment
from capsella.files import write_json
from capsella.reproduce.entries import ImageCounts, remembered
from capsella.training import Recipe
from capsella.training.loop import StepTime, time_steps

_OF_A_STEP = ("name", "of", "path", "domains", "size", "channels", "camera", "viewpoints", "first_classes", "cells")
_OF_A_MACHINE = ("cpu", "gpu", "threads", "torch", "capsella")


@dataclass
class Speeds:
    """Seconds by recipe. folder: that remembers; what another machine measured is measured anew. counts: of images."""

    folder: Path
    console: Console
    counts: ImageCounts
    measure: Callable[[Recipe], StepTime] = time_steps
    _known: dict[str, StepTime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made_with = environment()
        self._machine = {name: made_with[name] for name in _OF_A_MACHINE}
        if self._file.exists():
            values = remembered(self._file)
            if values.get("machine") == self._machine:
                self._known = {key: StepTime(*times) for key, times in values["seconds"].items()}

    @property
    def _file(self) -> Path:
        return self.folder / "speeds.json"

    def seconds(self, recipe: Recipe) -> float:
        """Of the whole training with its validations and its test; of one that stops at an error, the most.

        Raises:
            CapsellaError: images are missing or broken.
        """
        training, validation, test = self.counts.of(recipe.data)
        times = self._of(recipe)
        steps = math.ceil((recipe.epoch_images or training) / recipe.batch_size)
        looked_at = validation + (test if recipe.stop_on == "test" and recipe.stop_at_error is not None else 0)
        return recipe.epochs * (steps * times.step + looked_at * times.image) + test * times.image

    def _of(self, recipe: Recipe) -> StepTime:
        key = _key(recipe)
        if key not in self._known:
            text = f"timing a few steps of {recipe.model.name} on {recipe.data.name}"
            self.console.print(text, markup=False, soft_wrap=True)
            self._known[key] = self.measure(recipe)
            write_json(self._file, {"machine": self._machine, "seconds": self._known})
        return self._known[key]


def _key(recipe: Recipe) -> str:
    """What a step's time depends on; not how many images there are, nor the learning rate."""
    others = {field.name: field.default for field in fields(recipe.data) if field.name not in _OF_A_STEP}
    data = recipe.data.replace(**others)
    values = replace(recipe, data=data, seed=0, epochs=1, epoch_images=None, stop_at_error=None).to_dict()
    values["optimizer"] = {"ema": recipe.optimizer.ema is not None}
    return json.dumps(values, default=str, sort_keys=True)

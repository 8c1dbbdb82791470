"""What a candidate costs before it is trained: its parameters, and the milliseconds it takes for an image."""

from dataclasses import dataclass, field

import torch

from capsella.data import single_images
from capsella.models.base import shipped_parameters
from capsella.search.candidate import Images
from capsella.search.latency import Stopwatch
from capsella.search.options import SearchOptions
from capsella.search.schedule import BASE
from capsella.training import Recipe


class TooCostlyError(Exception):
    """A candidate is over a limit. excess: by this part of it."""

    def __init__(self, why: str, excess: float) -> None:
        super().__init__(why)
        self.excess = excess


@dataclass
class Costs:
    """Parameters and times of a study's candidates, each found out once by a worker. images: of the search."""

    options: SearchOptions
    images: Images
    known: dict[int, dict[str, float]] = field(default_factory=dict)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def of(self, recipe: Recipe, candidate: int) -> dict[str, float]:
        """By objective; the recipe itself is never refused.

        Raises:
            TooCostlyError: over a limit.
            ValueError: the network cannot take the images.
        """
        if candidate not in self.known:
            self.known[candidate] = self._measure(recipe, is_free=candidate == BASE)
        return self.known[candidate]

    def _measure(self, recipe: Recipe, is_free: bool) -> dict[str, float]:
        """The parameters are cheap to find out, so their limit comes first. is_free: no limit holds."""
        splits = self.images.of(recipe.data)
        with torch.device("meta"):
            model = recipe.model.create(splits.image_size, splits.channels, splits.classes)
        cost = {"parameters": float(shipped_parameters(model))}
        if not is_free:
            self._check(cost)
        if self.options.times:
            torch.manual_seed(recipe.seed)
            model = recipe.model.create(splits.image_size, splits.channels, splits.classes).eval()
            cost["ms"] = self.stopwatch.milliseconds(model, single_images(splits.train, "times"))
            if not is_free:
                self._check(cost)
        return cost

    def _check(self, cost: dict[str, float]) -> None:
        if (over := self.options.over(cost)) is not None:
            raise TooCostlyError(*over)

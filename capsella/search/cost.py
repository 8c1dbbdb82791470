"""What a candidate costs before it is trained: its parameters, and the milliseconds it takes for an image."""

from dataclasses import dataclass, field

import torch

from capsella.data import single_images
from capsella.models.base import shipped_parameters
from capsella.search.candidate import Images
from capsella.search.latency import Stopwatch
from capsella.search.options import SearchOptions
from capsella.training import Recipe


class TooCostlyError(Exception):
    """A candidate is over a limit. values: of the objectives, where all are known, with the worst error."""

    def __init__(self, why: str, values: list[float] | None) -> None:
        super().__init__(why)
        self.values = values


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
            self.known[candidate] = self._measure(recipe)
        cost = self.known[candidate]
        if candidate != 0:
            self._check(cost)
        return cost

    def _measure(self, recipe: Recipe) -> dict[str, float]:
        splits = self.images.of(recipe.data)
        with torch.device("meta"):
            model = recipe.model.create(splits.image_size, splits.channels, splits.classes)
        cost = {"parameters": float(shipped_parameters(model))}
        too_large = self.options.limit_parameters is not None and cost["parameters"] > self.options.limit_parameters
        if self.options.times and not too_large:
            torch.manual_seed(recipe.seed)
            model = recipe.model.create(splits.image_size, splits.channels, splits.classes).eval()
            cost["ms"] = self.stopwatch.milliseconds(model, single_images(splits.train, "times"))
        return cost

    def _check(self, cost: dict[str, float]) -> None:
        limits = {"parameters": self.options.limit_parameters, "ms": self.options.limit_ms}
        for name, limit in limits.items():
            if limit is not None and name in cost and cost[name] > limit:
                told = [100.0 if objective == "error" else cost.get(objective) for objective in self.options.objectives]
                values = None if None in told else [float(value) for value in told if value is not None]
                raise TooCostlyError(f"{cost[name]:,.4g} {name}, more than {limit:,.4g}", values)

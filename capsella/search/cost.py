"""What a candidate costs before it is trained: its parameters, and the milliseconds it takes for an image."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from capsella.data import single_images
from capsella.models.base import shipped_parameters
from capsella.search.candidate import Images
from capsella.search.latency import Stopwatch
from capsella.search.options import SearchOptions
from capsella.training import Recipe


class TooCostlyError(Exception):
    """A candidate is over a limit. excess: by this part of it. cost: what is known of it."""

    def __init__(self, why: str, excess: float, cost: Mapping[str, float]) -> None:
        super().__init__(why)
        self.excess, self.cost = excess, dict(cost)


@dataclass
class Costs:
    """Finds out the parameters and times of networks. images: of the search."""

    options: SearchOptions
    images: Images
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def of(self, recipe: Recipe, known: Mapping[str, float], is_free: bool) -> dict[str, float]:
        """By objective. The parameters are cheap to find out, so their limit comes first.

        Args:
            recipe: a candidate's.
            known: what was found of its network before: a network is timed once, so noise does not rank it.
            is_free: no limit holds.

        Raises:
            TooCostlyError: over a limit.
            ValueError: the network cannot take the images.
        """
        finders = {"parameters": self._parameters, **({"ms": self._milliseconds} if self.options.times else {})}
        cost = dict(known)
        for name, find in finders.items():
            if name not in cost:
                cost[name] = find(recipe)
            over = None if is_free else self.options.over(cost)
            if over is not None:
                raise TooCostlyError(*over, cost)
        return cost

    def _parameters(self, recipe: Recipe) -> float:
        splits = self.images.of(recipe.data)
        with torch.device("meta"):
            return float(shipped_parameters(recipe.model.create(splits.image_size, splits.channels, splits.classes)))

    def _milliseconds(self, recipe: Recipe) -> float:
        splits = self.images.of(recipe.data)
        torch.manual_seed(recipe.seed)
        model = recipe.model.create(splits.image_size, splits.channels, splits.classes).eval()
        return self.stopwatch.milliseconds(model, single_images(splits.train, "times"))

"""How every row of the league gets its learning rate: short trainings on several splits, of which none is a result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from capsella.grid import Grid, Validated, at_rate, rate_at
from capsella.papers.league.fields import Entrant
from capsella.training import Recipe

FACTORS = (1 / 3, 1.0, 3.0)
"""Of the recipe's learning rate, tried for every row alike."""
SPLITS = 2
"""Other images are held out in each; of smallNORB, another toy of each category. One misleads (LOG.md, L050)."""
SEED = 0
"""Of the trainings that choose, whichever seeds are asked for: the rates, and all that follows, stay the same."""
SHORTER = 5
"""The trainings that choose are so many times shorter."""
LEFT_OUT = 0.02
"""Share of the training images that the trainings with the chosen rate do not see: nothing is chosen by them."""


@dataclass(frozen=True)
class Chosen:
    """A row with the rate that its short trainings chose.

    tried: the validation errors of every rate, one a split; infinite where it diverged; none without a search. rate:
    the recipe's own, unless others err less on every split; of these, the one with the least mean error and, where
    means are equal, the least mean loss. A mean alone would be moved by a single hard toy. row: as it is trained with
    it.
    """

    tried: Mapping[float, tuple[float, ...]]
    rate: float
    row: Entrant

    @property
    def at_edge(self) -> bool:
        """Whether a rate beyond those that were tried may be better still."""
        return len(self.tried) > 1 and self.rate in (min(self.tried), max(self.tried))


def whole(row: Entrant, rate: float) -> Entrant:
    """The row as it is trained at a rate that was chosen: on nearly all training images, for the whole length."""
    best = at_rate(row, rate)
    data = replace(best.recipe.data, group=None, validation=LEFT_OUT)
    return replace(best, recipe=replace(best.recipe, data=data))


def choose_rates(rows: Sequence[Entrant], grid: Grid) -> list[Chosen]:
    """Train every row shortly with every rate on every split, and test nothing; a training may diverge."""
    tried = [(row, rate_at(row.recipe, factor), split) for row in rows for factor in FACTORS for split in range(SPLITS)]
    runs = grid.validated([_short(*one) for one in tried], (SEED,))
    found: dict[str, dict[float, list[Validated]]] = {row.slug: {} for row in rows}
    for (row, rate, _), by_seed in zip(tried, runs, strict=True):
        found[row.slug].setdefault(rate, []).append(by_seed[SEED])
    return [_chosen(row, found[row.slug]) for row in rows]


def own_rate(row: Entrant) -> Chosen:
    """The row at its recipe's rate, without a search."""
    rate = rate_at(row.recipe, 1.0)
    return Chosen({}, rate, whole(row, rate))


def _short(row: Entrant, rate: float, split: int) -> Entrant:
    """The row as one of its trainings that choose."""
    short = at_rate(row, rate)
    recipe = _shorter(replace(short.recipe, data=replace(short.recipe.data, split_seed=split)))
    return replace(short, slug=f"{short.slug}-split{split}", recipe=recipe, cost=f"{row.slug}, short")


def _shorter(recipe: Recipe) -> Recipe:
    optimizer = replace(recipe.optimizer, warmup_steps=max(1, recipe.optimizer.warmup_steps // SHORTER))
    return replace(recipe, optimizer=optimizer, epochs=max(1, recipe.epochs // SHORTER))


def _chosen(row: Entrant, runs: Mapping[float, Sequence[Validated]]) -> Chosen:
    def rank(rate: float) -> tuple[float, float]:
        return float(np.mean([run.error for run in runs[rate]])), float(np.mean([run.loss for run in runs[rate]]))

    own = runs[rate_at(row.recipe, 1.0)]
    better = [rate for rate in runs if all(one.error < usual.error for one, usual in zip(runs[rate], own, strict=True))]
    rate = min(better, key=rank, default=rate_at(row.recipe, 1.0))
    errors = {rate: tuple(run.error for run in of_rate) for rate, of_rate in runs.items()}
    return Chosen(errors, rate, whole(row, rate))

"""`Search`: a search that this process takes part in, as its worker, its page and its end know it."""

from dataclasses import dataclass
from pathlib import Path

from capsella.search.candidate import Images
from capsella.search.options import SearchOptions
from capsella.search.outcome import Outcome
from capsella.search.schedule import BASE, Rules
from capsella.search.space import Space
from capsella.search.study import Study
from capsella.training import Machine, Recipe
from capsella.training.balance import settle_balance


@dataclass(frozen=True)
class Search:
    """A search that this process takes part in.

    recipe: as it was given. trained: the same as candidates are trained, perhaps for fewer epochs.
    """

    folder: Path
    name: str
    recipe: Recipe
    trained: Recipe
    space: Space
    options: SearchOptions
    rules: Rules
    study: Study
    images: Images
    machine: Machine

    @property
    def outcome(self) -> Outcome:
        """What is found so far."""
        records, study = self.study.records(), self.study
        over = self.options.over(study.costs.get(BASE, {}))
        balanced = settle_balance(self.recipe, self.images.train(self.recipe))[0].balance != "none"
        limit = over[0] if over else ""
        return Outcome.of(self.options.objectives, self.rules, records, study.points, limit, balanced)

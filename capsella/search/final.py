"""The end of a search: the winner as a recipe, trained with every seed and tested once."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from capsella.errors import BusyError
from capsella.evaluation import over_seeds
from capsella.files import alone_in, write_json
from capsella.grid import Grid, Row, check_none_diverged
from capsella.search.opened import Search
from capsella.search.outcome import Finalist, Outcome
from capsella.training import Recipe, save_recipe

TEST = "test.json"
"""The winner's test, in the study's folder."""
VALIDATION = 0.05
"""The share of the images that still watches over the final training, and by which its probabilities are calibrated."""


@dataclass(frozen=True)
class FinalTest:
    """The winner's test. errors: in per cent, of each seed; trained: images that it learned from; images: tested."""

    errors: tuple[float, ...]
    trained: int
    images: int
    folder: str

    @property
    def text(self) -> str:
        """Mean and standard deviation."""
        return f"{over_seeds(self.errors)} %"


def winning_recipe(search: Search, winner: Finalist) -> Recipe:
    """As long as the recipe that was to be bettered; nothing is chosen any more.

    Where validation images are drawn from the others, a twentieth is left to them, and the last epoch is kept. A source
    that sets validation images apart keeps them.
    """
    recipe = search.space.recipe_at(search.recipe, winner.point)
    if recipe.data.validation <= VALIDATION or recipe.data.split_file is not None:
        return recipe
    data = replace(recipe.data, validation=VALIDATION)
    return replace(recipe, data=data, keep="last", patience=None)


def save_finalists(search: Search, outcome: Outcome) -> Path:
    """A recipe of each finalist, in the folder that is returned: the winner has the least error alone.

    Those of a shorter search that are no finalists any more are removed.
    """
    folder = search.folder / "finalists"
    folder.mkdir(exist_ok=True)
    saved = {folder / f"candidate-{one.candidate}.json": one for one in outcome.finalists}
    for path, one in saved.items():
        save_recipe(winning_recipe(search, one), path)
    for path in set(folder.glob("candidate-*.json")) - saved.keys():
        path.unlink()
    return folder


def seeds_left(search: Search, winner: Finalist) -> int:
    """How many seeds of the final training are not tested yet."""
    return search.options.seeds - len(_tested(search).get(winner.candidate, []))


def final_seconds(search: Search, outcome: Outcome) -> float:
    """How long the final training takes with one seed, from how long the search's trainings took."""
    images = search.trained.epoch_images or len(search.images.train(search.trained))
    trained = sum(record.epochs for record in outcome.records) * images
    an_image = sum(record.seconds for record in outcome.records) / max(1, trained)
    whole = search.recipe.epoch_images or len(search.images.train(search.recipe))
    return an_image * whole * search.recipe.epochs


def train_winner(search: Search, winner: Finalist, console: Console) -> FinalTest | None:
    """Train and test; what is finished is read. None where another process does it now.

    Raises:
        CapsellaError: as `train` raises.
    """
    recipe, folder = winning_recipe(search, winner), search.folder / "final"
    try:
        with alone_in(folder):
            row = Row(slug=f"candidate-{winner.candidate:04}", recipe_name=search.name, recipe=recipe)
            seeds = [recipe.seed + seed for seed in range(search.options.seeds)]
            trained = Grid(folder, console, search.machine).results([row], seeds)
            check_none_diverged(trained, seeds, folder)
            results = trained[row.slug]
    except BusyError:
        console.print("another process trains the winner", soft_wrap=True)
        return None
    errors = tuple(one["test"]["error_percent"] for one in results)
    tested = FinalTest(errors, len(search.images.train(recipe)), results[0]["test"]["images"], str(folder))
    values: dict[str, Any] = {"candidate": winner.candidate, "test_error_percent": list(tested.errors)}
    values |= {"trained": tested.trained, "images": tested.images, "tested_before": tested_before(search, winner)}
    write_json(search.folder / TEST, values)
    return tested


def read_test(search: Search, winner: Finalist | None) -> FinalTest | None:
    """The winner's test, where the study's folder has it."""
    path = search.folder / TEST
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if winner is None or found.get("candidate") != winner.candidate:
        return None
    folder = str(search.folder / "final")
    return FinalTest(tuple(found["test_error_percent"]), found["trained"], found["images"], folder)


def tested_before(search: Search, winner: Finalist | None) -> list[int]:
    """The other candidates that won this study when it was shorter, and were tested then."""
    return sorted(_tested(search).keys() - {None if winner is None else winner.candidate})


def _tested(search: Search) -> dict[int, list[Path]]:
    """The results of the final trainings, by candidate."""
    found = dict[int, list[Path]]()
    for path in sorted((search.folder / "final").glob("candidate-*-seed*/result.json")):
        found.setdefault(int(path.parent.name.split("-")[1]), []).append(path)
    return found

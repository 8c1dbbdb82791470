"""A figure of what a trained network does with its test images, of a run that it shares with a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from capsella.data import LabelledImages, load_data
from capsella.explain.plots import write_png
from capsella.files import write_json
from capsella.grid.run import result_of
from capsella.models import ImageClassifier
from capsella.papers.kinds.table import check_seeds
from capsella.training import Recipe, load_run

Drawn = tuple[Figure, dict[str, Any]]
"""A picture, and what it shows in numbers."""


@dataclass(frozen=True)
class RunFigure:
    """A figure of what a trained network does with its test images.

    name: of the picture. title: paper and number. slug, recipe_name, recipe: the run, in a folder of the same name as
    in the table whose runs it shares, `family`. draw: the picture of a model and its test images.
    """

    name: str
    title: str
    slug: str
    recipe_name: str
    recipe: Recipe
    draw: Callable[[ImageClassifier, LabelledImages], Drawn]
    family: str

    def on(self, source: str) -> "RunFigure":
        """The same figure of a network trained on another source, or on pairs of its images."""
        data = self.recipe.data
        data = replace(data, of=source) if data.is_paired else replace(data, name=source)
        return replace(self, recipe=replace(self.recipe, data=data))

    def path(self, folder: Path) -> Path:
        """Of the first seed's picture; the others' have their seed behind the name."""
        return folder / f"{self.name}.png"

    def run(self, folder: Path, seeds: Sequence[int], command: str, console: Console) -> dict[str, Any]:
        """Train what is missing; write a picture a seed, and what they show as JSON.

        Raises:
            ValueError: no seed, or one twice.
            CapsellaError: a run of another recipe is in the folder.
        """
        check_seeds(seeds)
        drawn: list[dict[str, Any]] = []
        path = self.path(folder)
        for seed in seeds:
            recipe = replace(self.recipe, seed=seed)
            place = folder / f"{self.slug}-seed{seed}"
            result = result_of(recipe, place, self.recipe_name, console)
            figure, shown = self.draw(load_run(place).model, load_data(recipe.data).test)
            picture = path if seed == seeds[0] else path.with_stem(f"{path.stem}-seed{seed}")
            write_png(figure, picture)
            drawn.append({"picture": picture.name, "shown": shown, "run": result})
        values = {
            "title": self.title,
            "note": "A picture a seed." if len(seeds) > 1 else "",
            "measured": _measured([one["run"] for one in drawn]),
            "command": command,
            "figures": drawn,
        }
        write_json(path.with_suffix(".json"), values)
        return values


def _measured(runs: Sequence[dict[str, Any]]) -> str:
    """How well the pictures' networks do, and how long they trained for it."""
    errors = ", ".join(f"{run['test']['error_percent']:.2f}" for run in runs)
    seen = ", ".join(f"{run['training']['best']['images_seen']:,}" for run in runs)
    return (
        f"{errors} % error on {runs[0]['test']['images']:,} test images of {runs[0]['data']}; {seen} seen in training."
    )

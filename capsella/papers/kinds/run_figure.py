"""A figure of what a trained network does with its test images, of a run that it shares with a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from matplotlib.figure import Figure
from rich.console import Console

from capsella.data import LabelledImages, load_data
from capsella.files import write_json
from capsella.grid import Results, Row
from capsella.models import ImageClassifier
from capsella.papers.kinds.published import FromTrainings
from capsella.report.figures import write_png
from capsella.training import load_run

Drawn = tuple[Figure, dict[str, Any]]
"""A picture, and what it shows in numbers."""


@dataclass(frozen=True, kw_only=True)
class RunFigure(FromTrainings):
    """A figure of what a trained network does with its test images.

    name: of the picture. title: paper and number. row: the run, the same as in the table whose folder of runs it
    shares, `family`. draw: the picture of a model and its test images.
    """

    name: str
    title: str
    row: Row
    draw: Callable[[ImageClassifier, LabelledImages], Drawn]
    family: str
    needs_all: ClassVar[bool] = True

    def on(self, source: str) -> "RunFigure":
        """The same figure of a network trained on another source, or on pairs of its images."""
        return replace(self, row=self.row.on(source))

    def path(self, folder: Path) -> Path:
        """Of the first seed's picture; the others' have their seed behind the name."""
        return folder / f"{self.name}.png"

    def trainings(self) -> tuple[Row, ...]:
        """As `Published.trainings`."""
        return (self.row,)

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`: a picture a seed, and what they show as JSON."""
        drawn: list[dict[str, Any]] = []
        path, runs = self.path(folder), results[self.row.slug]
        test = load_data(self.row.recipe.data).test
        for result in runs:
            seed = result["seed"]
            figure, shown = self.draw(load_run(self.row.folder(folder, seed)).model, test)
            picture = path if result is runs[0] else path.with_stem(f"{path.stem}-seed{seed}")
            write_png(figure, picture)
            drawn.append({"picture": picture.name, "shown": shown, "run": result})
        values = {
            "title": self.title,
            "note": "A picture a seed." if len(runs) > 1 else "",
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

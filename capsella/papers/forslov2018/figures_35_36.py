"""Figures 35 and 36: what the decoder draws when numbers of the class capsule are moved."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console

from capsella.data import load_data, single_images
from capsella.environment import hardware
from capsella.files import write_json
from capsella.grid import BudgetName, Results, Row
from capsella.papers.forslov2018.base import FigureFromRuns
from capsella.papers.forslov2018.paper import NETWORKS
from capsella.papers.forslov2018.runs import ThesisRuns
from capsella.report import dimension_tweaks, largest_elements
from capsella.report.figures import write_png
from capsella.report.image_grids import perturbation_figure
from capsella.report.reconstruction import share_nearest_own
from capsella.report.tweaks import row_changes
from capsella.training import load_run

COMPARED = 500
"""Test images that reconstructions are compared with."""
CANDIDATES = 16
"""Numbers of the capsule, the largest in size, of which those are shown that change the picture most."""


@dataclass(frozen=True)
class PerturbationFigure(FigureFromRuns):
    """A test image, its reconstruction, and rows of reconstructions with one number of the true class's capsule moved.

    network: with the decoder. most: the largest offset either way, of nine. elements: how many numbers are moved.
    """

    network: str
    most: float
    elements: int
    needs_all: ClassVar[bool] = True

    @property
    def offsets(self) -> tuple[float, ...]:
        """Nine, evenly spread."""
        return tuple(self.most * step / 4 for step in range(-4, 5))

    def trainings(self) -> tuple[Row, ...]:
        """As `Published.trainings`."""
        return (self.runs.with_decoder(self.network, True),)

    def made_of(self, results: Results, folder: Path, command: str, console: Console) -> dict[str, Any]:
        """As `Published.made_of`, a picture with its numbers beside it: of the first seed's run."""
        (planned,) = self.trainings()
        result = results[planned.slug][0]
        model = load_run(planned.folder(folder, result["seed"])).model
        test = single_images(load_data(planned.recipe.data).test, "figures of changed capsules")
        image, target = test.images[0].float() / 255, int(test.labels[0])
        candidates = largest_elements(model, image, target, CANDIDATES)
        effects = row_changes(dimension_tweaks(model, image, target, (-self.most, self.most), candidates))
        shown = effects.topk(min(self.elements, len(effects))).indices.sort().values.tolist()
        elements = [candidates[number] for number in shown]
        grid = dimension_tweaks(model, image, target, self.offsets, elements)
        reconstruction = grid[0, len(self.offsets) // 2]
        compared = test.subset(torch.arange(min(len(test), COMPARED)))
        own = share_nearest_own(model, compared.images, compared.labels)
        values = {
            "title": self.title,
            "note": f"{NETWORKS[self.network]} with its decoder, trained on mini, images of {model.image_size[0]}×"
            f"{model.image_size[1]}; the first test image, {test.classes[target]}. Shown are the numbers, of the "
            f"{CANDIDATES} largest of the capsule, that change the picture most. {self.runs.describe_drawn()} "
            f"For {round(own * len(compared)):,} of {len(compared):,} test images, the nearest to the reconstruction, "
            "by pixels, is the image itself.",
            "measured": f"{result['data']}; seed {result['seed']}; {hardware(result['environment'])}.",
            "command": command,
            "offsets": list(self.offsets),
            "elements": elements,
            "mean_change_by_element": dict(zip(candidates, effects.tolist(), strict=True)),
            "nearest_is_own_percent": 100 * own,
            "nearest_among": len(compared),
            "reconstruction_error": float((reconstruction - image).square().mean()),
            "runs": {planned.slug: [result]},
        }
        write_json(self.path(folder).with_suffix(".json"), values)
        drawn = perturbation_figure(image.numpy(), reconstruction.numpy(), grid.numpy(), self.offsets, elements)
        write_png(drawn, self.path(folder))
        return values


def figure_35(budget: BudgetName) -> PerturbationFigure:
    """Figure 35, CAPSNET 1: three numbers from −0.40 to 0.40."""
    title = "Forslöv 2018, Figure 35: class capsule of CAPSNET 1, perturbed"
    return PerturbationFigure(ThesisRuns(budget), "figure35", title, "capsnet1", 0.4, 3)


def figure_36(budget: BudgetName) -> PerturbationFigure:
    """Figure 36, EM-NET 1: four elements of the pose from −5 to 5."""
    title = "Forslöv 2018, Figure 36: class capsule of EM-NET 1, perturbed"
    return PerturbationFigure(ThesisRuns(budget), "figure36", title, "emnet1", 5.0, 4)

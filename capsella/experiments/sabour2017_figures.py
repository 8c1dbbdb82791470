"""The figures of Sabour, Frosst, Hinton 2017 that a training must precede: 3, 4 and 5."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from capsella.data import LabelledImages, PairSet, load_data, single_images
from capsella.evaluation import evaluate
from capsella.experiments.runs import result_of
from capsella.experiments.sabour2017 import capsnet_recipe, capsnet_slug
from capsella.experiments.tables import BudgetName, check_seeds
from capsella.explain.image_grids import reconstruction_figure, tweak_figure
from capsella.explain.pairs import pair_name, pairs_figure
from capsella.explain.perturbation import OFFSETS, dimension_tweaks
from capsella.explain.plots import write_png
from capsella.explain.reconstruction import pick_examples, reconstruct
from capsella.files import write_json
from capsella.models import ImageClassifier
from capsella.training import Recipe, load_run

Drawn = tuple[Figure, dict[str, Any]]
"""A picture, and what it shows in numbers."""
LOOKED_AT = 1000  # test images among which examples are looked for
TWEAKED = 6  # classes in Figure 4, as in the paper


@dataclass(frozen=True)
class RunFigure:
    """A figure of what a trained network does with its test images.

    name: of the picture. title: paper and number. slug, recipe_name, recipe: the run, in a folder of the same name as
    in the paper's Table 1. draw: the picture of a model and its test images. family: as in `PublishedFigure`.
    """

    name: str
    title: str
    slug: str
    recipe_name: str
    recipe: Recipe
    draw: Callable[[ImageClassifier, LabelledImages], Drawn]
    family: str = "sabour2017-1"

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
        errors = ", ".join(f"{one['run']['test']['error_percent']:.2f}" for one in drawn)
        values = {
            "title": self.title,
            "note": "A picture a seed." if len(seeds) > 1 else "",
            "measured": f"Networks with {errors} % test error on {drawn[0]['run']['data']}.",
            "command": command,
            "figures": drawn,
        }
        write_json(path.with_suffix(".json"), values)
        return values


def figure_3(budget: BudgetName) -> RunFigure:
    """Inputs beside their reconstructions, right and wrong ones."""
    return _figure(3, "reconstructions", "sabour2017-mnist", budget, draw_reconstructions)


def figure_4(budget: BudgetName) -> RunFigure:
    """What one number of a digit's capsule does to its picture."""
    return _figure(4, "dimension tweaks", "sabour2017-mnist", budget, draw_tweaks)


def figure_5(budget: BudgetName) -> RunFigure:
    """Pairs of digits, each reconstructed in its own colour, right and wrong ones."""
    return _figure(5, "MultiMNIST", "sabour2017-multimnist", budget, draw_pairs)


def draw_reconstructions(model: ImageClassifier, images: LabelledImages) -> Drawn:
    """Figure 3. Right ones are not chosen for their looks; wrong ones are the most confident."""
    few = single_images(images).subset(torch.arange(min(len(images), LOOKED_AT)))
    evaluation = evaluate(model, few)
    picked = pick_examples(evaluation)
    part = reconstruct(model, few.images[picked].float() / 255, few.labels[picked])
    true, predicted = ([few.classes[k] for k in labels.tolist()] for labels in (part.labels, part.predictions))
    shown, from_true, from_predicted = (pixels.numpy() for pixels in (part.images, part.from_true, part.from_predicted))
    figure = reconstruction_figure(shown, from_true, from_predicted, true, predicted)
    return figure, {"test_images": picked.tolist(), "labels": true, "predictions": predicted}


def draw_tweaks(model: ImageClassifier, images: LabelledImages) -> Drawn:
    """Figure 4: a row for each of the first six classes, of the number of its capsule that changes the picture most.

    The image of a class is the first test image of it that is classified right. A class without one has no row.
    """
    few = single_images(images).subset(torch.arange(min(len(images), LOOKED_AT)))
    evaluation = evaluate(model, few)
    rows, elements, shown = [], [], []
    for label in range(min(TWEAKED, len(few.classes))):
        right = (evaluation.correct & (few.labels == label)).nonzero()
        if len(right) == 0:
            continue
        index = int(right[0])
        grid = dimension_tweaks(model, few.images[index].float() / 255, label)  # [d offsets c h w]
        element = int(_change(grid).argmax())
        rows.append(grid[element])
        elements.append(element)
        shown.append({"class": few.classes[label], "test_image": index, "number": element + 1})
    if not rows:
        raise ValueError(f"images: must hold one that is classified right, got none among {len(few)}")
    return tweak_figure(torch.stack(rows).numpy(), OFFSETS, elements), {"rows": shown}


def draw_pairs(model: ImageClassifier, images: LabelledImages) -> Drawn:
    """Figure 5. Right ones are not chosen for their looks; wrong ones are the most confident.

    Raises:
        ValueError: images that are no pairs.
    """
    if not isinstance(images, PairSet):
        raise ValueError("images: must be pairs, got images of one class each")
    few = images.subset(torch.arange(min(len(images), LOOKED_AT)))
    evaluation = evaluate(model, few)
    picked = pick_examples(evaluation)
    names = {
        key: [pair_name(few.classes, both) for both in classes[picked]]
        for key, classes in (("labels", evaluation.labels), ("predictions", evaluation.predictions))
    }
    return pairs_figure(model, few, evaluation, picked), {"test_pairs": picked.tolist(), **names}


def _change(grid: Tensor) -> Tensor:
    """[d]: the mean difference of the pictures at both ends of each row [d offsets c h w]."""
    return (grid[:, -1] - grid[:, 0]).abs().flatten(1).mean(1)


def _figure(
    number: int, shows: str, recipe: str, budget: BudgetName, draw: Callable[[ImageClassifier, LabelledImages], Drawn]
) -> RunFigure:
    title = f"Sabour et al. 2017, Figure {number}: {shows}"
    return RunFigure(f"sabour2017-{number}", title, capsnet_slug(recipe), recipe, capsnet_recipe(recipe, budget), draw)

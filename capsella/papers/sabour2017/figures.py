"""The figures of Sabour, Frosst, Hinton 2017 that a training must precede: 3, 4 and 5."""

from collections.abc import Callable

import torch

from capsella.data import LabelledImages, PairSet, single_images
from capsella.evaluation import evaluate
from capsella.grid import BudgetName, Row
from capsella.models import ImageClassifier
from capsella.papers.kinds.run_figure import Drawn, RunFigure
from capsella.papers.sabour2017.tables import capsnet_recipe, capsnet_slug
from capsella.report import OFFSETS, dimension_tweaks, pairs_figure, pick_examples, reconstruct
from capsella.report.image_grids import reconstruction_figure, tweak_figure
from capsella.report.reconstruction import pair_name, share_nearest_own
from capsella.report.tweaks import row_changes

LOOKED_AT = 1000  # test images among which examples are looked for
TWEAKED = 6  # classes in Figure 4, as in the paper


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
    """Figure 3. Right ones are not chosen for their looks; wrong ones are the most confident.

    And in numbers: of how many of the first test images the reconstruction is nearer to its own image than to others.
    """
    few = single_images(images, "figures 3 and 4").subset(torch.arange(min(len(images), LOOKED_AT)))
    evaluation = evaluate(model, few)
    picked = pick_examples(evaluation)
    part = reconstruct(model, few.images[picked].float() / 255, few.labels[picked])
    true, predicted = ([few.classes[k] for k in labels.tolist()] for labels in (part.labels, part.predictions))
    shown, from_true, from_predicted = (pixels.numpy() for pixels in (part.images, part.from_true, part.from_predicted))
    figure = reconstruction_figure(shown, from_true, from_predicted, true, predicted)
    own = 100 * share_nearest_own(model, few.images, few.labels)
    return figure, {
        "test_images": picked.tolist(),
        "labels": true,
        "predictions": predicted,
        "nearest_is_own_percent": own,
        "nearest_among": len(few),
    }


def draw_tweaks(model: ImageClassifier, images: LabelledImages) -> Drawn:
    """Figure 4: a row for each of the first six classes, of the number of its capsule that changes the picture most.

    The image of a class is the first test image of it that is classified right. A class without one has no row.
    """
    few = single_images(images, "figures 3 and 4").subset(torch.arange(min(len(images), LOOKED_AT)))
    evaluation = evaluate(model, few)
    rows, elements, shown = [], [], []
    for label in range(min(TWEAKED, len(few.classes))):
        right = (evaluation.correct & (few.labels == label)).nonzero()
        if len(right) == 0:
            continue
        index = int(right[0])
        grid = dimension_tweaks(model, few.images[index].float() / 255, label)  # [d offsets c h w]
        element = int(row_changes(grid).argmax())
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


def _figure(
    number: int, shows: str, recipe: str, budget: BudgetName, draw: Callable[[ImageClassifier, LabelledImages], Drawn]
) -> RunFigure:
    row = Row(slug=capsnet_slug(recipe), recipe_name=recipe, recipe=capsnet_recipe(recipe, budget))
    title = f"Sabour et al. 2017, Figure {number}: {shows}"
    return RunFigure(name=f"sabour2017-{number}", title=title, row=row, draw=draw, family="sabour2017-1")

"""The figure of Hinton, Sabour, Frosst 2018 that a training must precede: 2."""

from typing import Any

import torch

from capsella.data import LabelledImages, single_images
from capsella.evaluation import evaluate
from capsella.grid import BudgetName
from capsella.models import ImageClassifier
from capsella.papers.hinton2018.tables import best_row
from capsella.papers.kinds.run_figure import Drawn, RunFigure
from capsella.report import VoteDistances, class_vote_distances, pick_examples
from capsella.report.vote_distances import vote_examples_figure

RIGHT, WRONG = 2, 1  # images, as in the paper


def figure_2(budget: BudgetName) -> RunFigure:
    """Distances of votes to the means of the class capsules after each iteration, of the best row of Table 1."""
    return RunFigure(
        name="hinton2018-2",
        title="Hinton et al. 2018, Figure 2: votes and their means",
        row=best_row(budget),
        draw=draw_votes,
        family="hinton2018-1",
    )


def draw_votes(model: ImageClassifier, images: LabelledImages) -> Drawn:
    """Two images that are classified right, not chosen for their looks, and the most confident mistake.

    The paper shows a truck and a human, both right, and an airplane taken for a car.
    """
    images = single_images(images, "figures of votes")
    evaluation = evaluate(model, images)
    picked = pick_examples(evaluation, RIGHT, WRONG)
    pixels = images.images[picked].float() / 255
    names = [images.classes[label] for label in evaluation.labels[picked].tolist()]
    found = [images.classes[label] for label in evaluation.predictions[picked].tolist()]
    titles = [
        f"{name}: right" if name == other else f"{name}, taken for {other}"
        for name, other in zip(names, found, strict=True)
    ]
    histograms = [class_vote_distances(model, image) for image in pixels]
    shown = [
        {"test_image": index, "label": name, "prediction": other, **_numbers(one)}
        for index, name, other, one in zip(picked.tolist(), names, found, histograms, strict=True)
    ]
    return vote_examples_figure(pixels, titles, histograms, images.classes), {"images": shown}


def _numbers(histograms: VoteDistances) -> dict[str, Any]:
    """The histograms [iterations classes bins], and the couplings' mean distance [iterations classes] within them."""
    centres = torch.from_numpy(histograms.edges).unfold(0, 2, 1).mean(1)
    weights = torch.from_numpy(histograms.weights)
    means = (weights * centres).sum(2) / weights.sum(2).clamp(min=torch.finfo(weights.dtype).tiny)
    return {"edges": histograms.edges.tolist(), "weights": weights.tolist(), "mean_distance": means.tolist()}

"""Distances of votes to their parent's mean in each routing iteration (Hinton et al. 2018, Figure 2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure, FigureBase
from torch import Tensor

from capsella.errors import ArgumentError, CapsellaError, check_argument, check_minimum
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.inference import inference
from capsella.report.figures import shorten
from capsella.report.image_figures import show
from capsella.routing import RoutingTrace, record


@dataclass(frozen=True)
class VoteDistances:
    """Histograms of the distances of votes to their parent's mean, for each routing iteration and parent.

    Attributes:
        edges: edges of the bins, common to all histograms.
        weights: sum of the couplings of the votes in each bin, for each iteration and parent j.
    """

    edges: Float[np.ndarray, " edges"]
    weights: Float[np.ndarray, "iterations j bins"]


def vote_distances(trace: RoutingTrace, bins: int = 40) -> VoteDistances:
    """Return the histograms of a recorded pass through an EM-routed layer, over all images and positions."""
    check_minimum(1, bins=bins)
    check_argument(bool(trace.distances), "have vote distances, which only EM routing records", trace=trace.name)
    return distance_histograms(trace.distances, trace.couplings, bins)


def distance_histograms(
    distances: Sequence[Float[Tensor, "b i j"]], couplings: Sequence[Float[Tensor, "b i j"]], bins: int = 40
) -> VoteDistances:
    """Return the histograms of distances weighted by couplings; each sequence has one tensor per iteration."""
    largest = max(float(values.max()) for values in distances)
    edges = np.linspace(0, largest or 1.0, bins + 1)
    weights = []
    for pair in zip(distances, couplings, strict=True):
        values, shares = (tensor.flatten(0, 1).T.double().cpu().numpy() for tensor in pair)  # [j b·i]
        weights.append([np.histogram(v, edges, weights=w)[0] for v, w in zip(values, shares, strict=True)])
    return VoteDistances(edges, np.array(weights))


def has_vote_distances(model: ImageClassifier) -> bool:
    """Return True if the class capsules are routed by distance, as in EM."""
    routing = model.class_routing if isinstance(model, CapsuleClassifier) else None
    return routing is not None and routing.compares_poses


def class_vote_distances(model: ImageClassifier, image: Float[Tensor, "c h w"], bins: int = 40) -> VoteDistances:
    """Return the histograms of the class capsules for one image in [0, 1]."""
    if not has_vote_distances(model):
        raise CapsellaError(f"{model.name}: the class capsules must be routed by distance, as in EM")
    model.check_images(image[None])
    with inference(model) as device, record() as traces:
        model(image[None].to(device))
    return vote_distances(traces[-1], bins)


def vote_distances_figure(histograms: VoteDistances, parents: Sequence[str]) -> Figure:
    """Draw a row for each iteration and a column for each parent; votes that agree pile up on the left."""
    iterations, j, _ = histograms.weights.shape
    if len(parents) != j:
        raise ArgumentError("parents", f"be one name for each of {j} parents", len(parents))
    figure = Figure(figsize=(1.7 * j + 0.8, 1.25 * iterations + 0.8), layout="constrained")
    _draw_grid(figure, histograms, parents)
    figure.supxlabel("distance of a vote to its parent's mean", fontsize=9)
    figure.supylabel("couplings", fontsize=9)
    return figure


def vote_examples_figure(
    images: Float[Tensor, "n c h w"], titles: Sequence[str], histograms: Sequence[VoteDistances], parents: Sequence[str]
) -> Figure:
    """Draw several images in [0, 1], each with its title and, beside it, its histograms."""
    n = len(images)
    iterations, j, _ = histograms[0].weights.shape
    figure = Figure(figsize=(1.5 * (j + 2) + 0.8, n * (1.0 * iterations + 0.7)), layout="constrained")
    parts = figure.subfigures(n, 1, squeeze=False)[:, 0]
    for part, image, title, own in zip(parts, images, titles, histograms, strict=True):
        left, right = part.subfigures(1, 2, width_ratios=(2, j))
        axes = left.subplots()
        show(axes, image.permute(1, 2, 0).numpy())
        axes.set_title(title, fontsize=10, parse_math=False)
        _draw_grid(right, own, parents)
    figure.supxlabel("distance of a vote to its parent's mean; heights are couplings", fontsize=9)
    return figure


def _draw_grid(part: FigureBase, histograms: VoteDistances, parents: Sequence[str]) -> None:
    grid = part.subplots(*histograms.weights.shape[:2], sharex=True, sharey=True, squeeze=False)
    for axes, parent in zip(grid[0], parents, strict=True):
        axes.set_title(shorten(parent), fontsize=9, parse_math=False)
    for number, (row, weights) in enumerate(zip(grid, histograms.weights, strict=True), 1):
        row[0].set_ylabel(f"iteration {number}", fontsize=9)
        for axes, of_parent in zip(row, weights, strict=True):
            axes.stairs(of_parent, histograms.edges, fill=True, color="#1f6f9f")

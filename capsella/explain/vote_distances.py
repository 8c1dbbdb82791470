"""How votes gather around their parents from one routing iteration to the next (Hinton et al. 2018, Figure 2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from capsella.errors import CapsellaError
from capsella.evaluation.inference import inference
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.routing import EMRouting, RoutingTrace, record


@dataclass(frozen=True)
class VoteDistances:
    """Histograms of the distances of votes to their parent's mean, one per routing iteration and parent.

    edges: [bins + 1], the same for all. weights: [iterations j bins], the couplings of the votes in each bin, added up:
    a vote counts as much as its child was assigned to the parent.
    """

    edges: Float[np.ndarray, "edges"]
    weights: Float[np.ndarray, "iterations j bins"]


def vote_distances(trace: RoutingTrace, bins: int = 40) -> VoteDistances:
    """The histograms of one recorded pass through an EM-routed layer, over all its images (and positions).

    Raises:
        ValueError: fewer than one bin, or a trace without distances: only EM routing keeps them.
    """
    _check_bins(bins)
    if not trace.distances:
        raise ValueError(f"trace: must have vote distances, which EM routing keeps; got one of {trace.name!r} routing")
    return distance_histograms(trace.distances, trace.couplings, bins)


def distance_histograms(
    distances: Sequence[Float[Tensor, "b i j"]], couplings: Sequence[Float[Tensor, "b i j"]], bins: int = 40
) -> VoteDistances:
    """The histograms of distances and couplings, one of each per iteration.

    Raises:
        ValueError: fewer than one bin, no iteration, or not as many of both.
    """
    _check_bins(bins)
    if not distances or len(distances) != len(couplings):
        raise ValueError(
            f"distances, couplings: must be one of each per iteration, got {len(distances)} and {len(couplings)}"
        )
    largest = max(float(of_one.max()) for of_one in distances)
    edges = np.linspace(0, largest or 1.0, bins + 1)
    weights = [
        [_histogram(of_one[..., j], given[..., j], edges) for j in range(of_one.shape[2])]
        for of_one, given in zip(distances, couplings, strict=True)
    ]
    return VoteDistances(edges, np.array(weights))


def _check_bins(bins: int) -> None:
    if bins < 1:
        raise ValueError(f"bins: must be at least 1, got {bins}")


def _histogram(distances: Tensor, couplings: Tensor, edges: np.ndarray) -> np.ndarray:
    values, weights = (tensor.flatten().double().cpu().numpy() for tensor in (distances, couplings))
    return np.histogram(values, edges, weights=weights)[0]


def has_vote_distances(model: ImageClassifier) -> bool:
    """Whether EM routes the class capsules, so that `class_vote_distances` works."""
    return isinstance(model, CapsuleClassifier) and isinstance(model.capsule_layers[-1].routing, EMRouting)


def class_vote_distances(model: ImageClassifier, image: Float[Tensor, "c h w"], bins: int = 40) -> VoteDistances:
    """The histograms of the class capsules, the last routed layer, for one image.

    Raises:
        CapsellaError: the model's last layer is not routed by EM.
    """
    if not has_vote_distances(model):
        raise CapsellaError(f"{model.name}: the class capsules must be routed by EM for vote distances")
    model.check_images(image[None])
    with inference(model) as device, record() as traces:
        model(image[None].to(device))
    return vote_distances(traces[-1], bins)


def vote_distances_figure(histograms: VoteDistances, parents: Sequence[str]) -> Figure:
    """One row an iteration, one column a parent; votes that agree pile up on the left.

    Raises:
        ValueError: not one name a parent.
    """
    iterations, j, _ = histograms.weights.shape
    if len(parents) != j:
        raise ValueError(f"parents: must be one name for each of {j} parents, got {len(parents)}")
    figure = Figure(figsize=(1.7 * j + 0.8, 1.25 * iterations + 0.8), layout="constrained")
    grid = figure.subplots(iterations, j, sharex=True, sharey=True, squeeze=False)
    for iteration, row in enumerate(grid):
        for parent, axes in enumerate(row):
            axes.stairs(histograms.weights[iteration, parent], histograms.edges, fill=True, color="#1f6f9f")
            if iteration == 0:
                axes.set_title(parents[parent], fontsize=9, parse_math=False)
        row[0].set_ylabel(f"iteration {iteration + 1}", fontsize=9)
    figure.supxlabel("distance of a vote to its parent's mean", fontsize=9)
    figure.supylabel("couplings", fontsize=9)
    return figure

"""The routing of an image as the page shows it: evidence for each class, entropies, votes in two dimensions."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsella.layers import CapsuleConv2d
from capsella.models import CapsuleClassifier
from capsella.models.inference import inference
from capsella.report.routing_views import RoutedLayer, children_seen
from capsella.routing import record
from capsella.routing.convolution import capsule_votes

MAX_VOTES = 160  # number of children, the most active ones, whose votes are shown
WITHIN = 0.95  # proportion of the couplings inside the rim of the plot of votes; outliers would dwarf all other votes
MAX_CLASSES = 10  # number of classes, the most active ones, whose routing is shown
MAX_TARGETS = 4  # number of parents listed for a grid position: those that receive most


@dataclass(frozen=True)
class ClassVotes:
    """Votes for k class capsules after the last layer's routing, projected to their first two principal axes.

    Attributes:
        points: votes of the p most active children, relative to the last mean. The nearest ones, with `WITHIN` of the
            couplings, are within distance 1; others are moved onto this rim.
        means: mean of the votes after each iteration.
        couplings: couplings of the p children.
        spread: proportion of the votes' variance in the plane.
        children: number of all children.
        positions: row, column and type of each of the p children.
    """

    points: Float[np.ndarray, "k p 2"]
    means: Float[np.ndarray, "k iterations 2"]
    couplings: Float[np.ndarray, "k iterations p"]
    spread: Float[np.ndarray, " k"]
    children: int
    positions: Int[np.ndarray, "p 3"]


def class_votes(model: CapsuleClassifier, image: Float[Tensor, "c h w"], classes: list[int]) -> ClassVotes:
    """Return the votes for these class capsules; the model's last layer must be a `CapsuleConv2d`."""
    last = model.capsule_layers[-1]
    assert isinstance(last, CapsuleConv2d)
    with inference(model) as device, record() as traces, children_seen(model) as seen:
        model.encode(image.unsqueeze(0).to(device))
        children = seen[last]
        votes = capsule_votes(last.routing_inputs(children))[0][0]  # [i j d]
    trace = traces[-1]
    V = votes[:, classes].transpose(0, 1).double().cpu()  # [k i d]
    R = torch.stack([iteration[0][:, classes].T for iteration in trace.couplings], 1).double().cpu()  # [k iterations i]
    if trace.distances:  # routing by Gaussians: the poses are the means
        means = torch.stack([poses[0, classes] for poses in trace.poses], 1).double().cpu()
    else:
        means = torch.einsum("kti,kid->ktd", R / R.sum(2, keepdim=True).clamp(min=1e-12), V)
    strongest = children.activations.flatten().argsort(descending=True, stable=True)[:MAX_VOTES].cpu()
    couplings = R[:, :, strongest]
    points, flat_means, spread = _project(V, means, strongest, couplings[:, -1])
    positions = np.stack(np.unravel_index(strongest.numpy(), children.activations.shape[1:]), 1)
    return ClassVotes(points, flat_means, couplings.numpy(), spread, V.shape[1], positions)


def _project(
    V: Float[Tensor, "k i d"],
    means: Float[Tensor, "k iterations d"],
    strongest: Int[Tensor, " p"],
    couplings: Float[Tensor, "k p"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points and means on the first two principal axes, relative to the last mean, and the variance there."""
    around = means[:, -1:]
    away, axes = V - around, torch.linalg.svd(V - V.mean(1, keepdim=True), full_matrices=False)
    plane = axes.Vh[:, :2].transpose(1, 2)  # [k d 2]
    if plane.shape[2] < 2:  # one child, or poses of one element
        plane = torch.nn.functional.pad(plane, (0, 2 - plane.shape[2]))
    squared = axes.S.square()
    spread = squared[:, :2].sum(1) / squared.sum(1).clamp(min=1e-30)
    points, moved = away[:, strongest] @ plane, (means - around) @ plane
    distances, order = points.norm(dim=2).sort(1)
    held = couplings.gather(1, order).cumsum(1)
    last = (held < WITHIN * held[:, -1:]).sum(1, keepdim=True).clamp(max=distances.shape[1] - 1)
    rim = distances.gather(1, last).clamp(min=1e-12).unsqueeze(2)
    points = points / rim
    points = points / points.norm(dim=2, keepdim=True).clamp(min=1)
    return points.numpy(), (moved / rim).clamp(-1, 1).numpy(), spread.numpy()


def evidence_for(layer: RoutedLayer, parents: list[int]) -> Float[np.ndarray, "k iterations h w"]:
    """Return what went from each position to each of k parents, divided by the parent's maximum."""
    maps = np.stack([layer.evidence[..., parent].sum(3) for parent in parents])
    return maps / np.maximum(maps.max((1, 2, 3), keepdims=True), 1e-30)


def targets_of(layer: RoutedLayer) -> tuple[Int[np.ndarray, "iterations h w t"], Float[np.ndarray, "iterations h w t"]]:
    """Return the parents to which each position of a layer's grid, all types together, sends most.

    Returns:
        The t parents in descending order, and the proportion that each of them receives of all that the position sends.
    """
    sent = layer.evidence.sum(3)  # [iterations h w c_out]
    parents = np.argsort(-sent, axis=3, kind="stable")[..., :MAX_TARGETS]
    return parents, np.take_along_axis(sent, parents, 3) / np.maximum(sent.sum(3, keepdims=True), 1e-30)

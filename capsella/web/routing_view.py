"""The routing of each image, for a page: evidence for each class, entropies, votes in two dimensions."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsella.layers import CapsuleConv2d
from capsella.losses import top_classes
from capsella.models import CapsuleClassifier
from capsella.models.inference import inference
from capsella.report.routing_views import RoutedLayer, children_seen, routed_layers, strongest_path
from capsella.routing import record
from capsella.routing.convolution import capsule_votes

MAX_VOTES = 160  # children whose votes are shown: the most active ones
WITHIN = 0.95  # share of the couplings within the rim of a picture of votes; a few far votes would dwarf all others
MAX_CLASSES = 10  # classes of an image whose routing is shown: the most active ones
MAX_TARGETS = 4  # parents that are named for a place: those that get most


@dataclass(frozen=True)
class ClassVotes:
    """Votes for k class capsules after the last layer's routing, projected to their first two principal axes.

    Attributes:
        points: [k p 2], of p children, around the last mean. Votes with `WITHIN` of the couplings are within distance
            1; others are moved to this rim.
        means: [k iterations 2].
        couplings: [k iterations p].
        spread: [k], the share of the votes' variance in the plane.
        children: number of all children, of which the p are the most active.
        positions: [p 3], row, column and type of each child.
    """

    points: Float[np.ndarray, "k p 2"]
    means: Float[np.ndarray, "k iterations 2"]
    couplings: Float[np.ndarray, "k iterations p"]
    spread: Float[np.ndarray, " k"]
    children: int
    positions: Int[np.ndarray, "p 3"]


def class_votes(model: CapsuleClassifier, image: Float[Tensor, "c h w"], classes: list[int]) -> ClassVotes | None:
    """Return the votes for some class capsules, or None if the class layer has no votes."""
    last = model.capsule_layers[-1]
    if not isinstance(last, CapsuleConv2d):
        return None
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
    """Return points, means and the share of the variance, on the first two principal axes about the last mean."""
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


@dataclass(frozen=True)
class Targets:
    """The parents to which the children at each grid position send most, over all types of child.

    Attributes:
        parents: [iterations h w t], the t parents that get most, in falling order.
        shares: the share of all that the place sends to each of them; 0 if it sends nothing.
    """

    parents: Int[np.ndarray, "iterations h w t"]
    shares: Float[np.ndarray, "iterations h w t"]


def targets_of(layer: RoutedLayer) -> Targets:
    """Return the parents to which each place of a layer's grid sends most, and what each gets."""
    sent = layer.evidence.sum(3)  # [iterations h w c_out]
    parents = np.argsort(-sent, axis=3, kind="stable")[..., :MAX_TARGETS]
    return Targets(parents, np.take_along_axis(sent, parents, 3) / np.maximum(sent.sum(3, keepdims=True), 1e-30))


@dataclass(frozen=True)
class Routed:
    """All layers of one image's routing, for the k classes in `classes`.

    Attributes:
        evidence: for each layer [k iterations h w], what went to the class; in lower layers to the type in `parents`,
            which gave most to the next layer. 1 is the maximum over all iterations.
        parents: [layers][k].
        targets: for each layer, where each place of its grid sends.
    """

    classes: list[int]
    layers: list[RoutedLayer]
    evidence: list[Float[np.ndarray, "k iterations h w"]]
    parents: list[list[int]]
    votes: ClassVotes | None
    targets: list[Targets]


def look_at_routing(
    model: CapsuleClassifier, image: Float[Tensor, "c h w"], activations: Float[Tensor, " classes"]
) -> Routed:
    """Route one image in [0, 1] and return what a page shows of it."""
    classes = top_classes(activations, MAX_CLASSES).tolist()
    layers = routed_layers(model, image)
    if not layers:
        return Routed(classes, [], [], [], None, [])
    paths = [strongest_path(layers, target) for target in classes]
    evidence, parents = [], []
    for number, layer in enumerate(layers):
        of_layer = [path[number] for path in paths]
        maps = np.stack([layer.evidence[..., parent].sum(3) for parent in of_layer])  # [k iterations h w]
        evidence.append(maps / np.maximum(maps.max((1, 2, 3), keepdims=True), 1e-30))
        parents.append(of_layer)
    targets = [targets_of(layer) for layer in layers]
    return Routed(classes, layers, evidence, parents, class_votes(model, image, classes), targets)

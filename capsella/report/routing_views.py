"""The routing of images by layer and iteration: maps and votes of a single image, summary numbers for many."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor, nn

from capsella.errors import ArgumentError
from capsella.layers import CapsuleConv2d, CropImages, EnlargeImages, PadCapsules
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.heinsen2019 import PartCapsules
from capsella.models.inference import inference
from capsella.report.figures import shorten
from capsella.report.image_figures import show
from capsella.routing import Geometry, RoutingTrace, capsule_votes, coupling_entropy, record
from capsella.routing.convolution import gather_windows
from capsella.types import Capsules


@dataclass(frozen=True, eq=False)
class ReceptiveFields:
    """The receptive fields of a grid of capsules, as (vertical, horizontal) pixels of the image.

    Attributes:
        first: centre of the upper left field; the centre of pixel k is k + 1/2.
        step: distance between the centres of neighbours.
        side: size of each field.
    """

    first: Float[np.ndarray, "2"]
    step: Float[np.ndarray, "2"]
    side: Float[np.ndarray, "2"]

    def after(self, kernel: ArrayLike, stride: ArrayLike, padding: ArrayLike = 0) -> "ReceptiveFields":
        """Return the receptive fields after a convolution or pooling of this grid."""
        wider = (np.asarray(kernel) - 1) * self.step
        first = self.first + wider / 2 - np.asarray(padding) * self.step
        return ReceptiveFields(first, self.step * np.asarray(stride), self.side + wider)

    def spread(self, grid: Float[np.ndarray, "h w"], image_size: tuple[int, int]) -> Float[np.ndarray, "height width"]:
        """Interpolate the values of a grid over the image, linearly between the centres and constant beyond them."""
        for axis, pixels in enumerate(image_size):
            centres = self.first[axis] + self.step[axis] * np.arange(grid.shape[axis])
            at = np.arange(pixels) + 0.5
            # np.interp keeps the end values beyond both ends.
            lines = [np.interp(at, centres, line) for line in np.moveaxis(grid, axis, -1)]
            grid = np.moveaxis(np.stack(lines), -1, axis)
        return grid


def receptive_fields(model: CapsuleClassifier) -> list[ReceptiveFields]:
    """Return the receptive fields of the children of each routed layer, beginning with the primary capsules."""
    fields = ReceptiveFields(np.full(2, 0.5), np.ones(2), np.ones(2))  # of the pixels
    for part in (model.backbone, model.primary):
        for name, module in part.named_modules():
            if "shortcut" not in name.split("."):  # beside the convolutions of its residual block, which see more
                fields = _after(fields, module)
        if any("attention" in type(module).__name__.lower() for module in part.modules()):
            fields = replace(fields, side=np.array(model.image_size, float))  # every place looks at all others
    fields_of_layers = []
    for layer in model.capsule_layers:
        if isinstance(layer, PadCapsules):
            fields = fields.after(1, 1, layer.width)
        if isinstance(layer, CapsuleConv2d):
            grid = _grid_on_image(model, layer)
            fields_of_layers.append(fields)
            fields = fields.after(grid or layer.geometry.kernel, layer.geometry.stride)
    return fields_of_layers


def _grid_on_image(model: CapsuleClassifier, layer: CapsuleConv2d) -> tuple[int, int] | None:
    """Return (rows, columns) of the grid on the image, for a layer whose children are laid out as positions × types."""
    primary = model.primary
    return primary.grid if isinstance(primary, PartCapsules) and layer is model.capsule_layers[0] else None


def _after(fields: ReceptiveFields, module: nn.Module) -> ReceptiveFields:
    if isinstance(module, nn.Conv2d | nn.MaxPool2d):
        if isinstance(module.padding, str):
            raise ArgumentError("convolution", "have a kernel, stride and padding in numbers", module.padding)
        return fields.after(module.kernel_size, module.stride, module.padding)
    if isinstance(module, CropImages):
        return fields.after(1, 1, [-(room // 2) for room in module.room])
    if isinstance(module, EnlargeImages):
        scale = np.divide(module.image_size, module.size)
        return replace(fields.after(scale, scale), side=fields.side)  # new pixels hold no more of the image
    return fields


@dataclass(frozen=True)
class VoteDistances:
    """Histograms of the distances of votes to their parent's mean, for each routing iteration and parent.

    Attributes:
        edges: edges of the bins, common to all histograms.
        weights: sum of the couplings of the votes in each bin, for each iteration and parent j.
    """

    edges: Float[np.ndarray, " edges"]
    weights: Float[np.ndarray, "iterations j bins"]


@dataclass(frozen=True, eq=False)
class RoutedLayer:
    """One image's pass through one routed layer: children on a grid [h w c_in], parents of c_out types.

    Attributes:
        title: number of the layer, and its routing.
        fields: receptive fields of the children.
        evidence: a child's activation times its coupling, summed over all windows: how much of the child went to the
            parent type.
        entropy: mean coupling entropy of the children, from 0 (each to one parent) to 1 (uniform); NaN if there is a
            single parent type.
        histograms: distances of the votes from the parents' means.
    """

    title: str
    fields: ReceptiveFields
    evidence: Float[np.ndarray, "iterations h w c_in c_out"]
    entropy: Float[np.ndarray, "iterations"]
    histograms: VoteDistances

    @property
    def iterations(self) -> int:
        """The number of routing iterations."""
        return len(self.evidence)

    @cached_property
    def between_types(self) -> Float[np.ndarray, "iterations c_in c_out"]:
        """The evidence from each child type to each parent type, summed over positions."""
        return self.evidence.sum((1, 2))


def routed_layers(model: ImageClassifier, image: Float[Tensor, "c h w"]) -> list[RoutedLayer]:
    """Route one image in [0, 1] and return every routed layer; an empty list for a model without capsules."""
    model.check_images(image.unsqueeze(0))
    if not isinstance(model, CapsuleClassifier):
        return []
    layers = [layer for layer in model.capsule_layers if isinstance(layer, CapsuleConv2d)]
    with inference(model) as device, record() as traces, children_seen(model) as children:
        model.encode(image.unsqueeze(0).to(device))
        views = [
            _view(f"routing layer {number} ({trace.name})", fields, layer, children[layer], trace)
            for number, (fields, layer, trace) in enumerate(
                zip(receptive_fields(model), layers, traces, strict=True), 1
            )
        ]
    return [_laid_out(view, _grid_on_image(model, layer)) for view, layer in zip(views, layers, strict=True)]


@contextmanager
def children_seen(model: CapsuleClassifier) -> Iterator[dict[nn.Module, Capsules]]:
    """Record the children of each routed layer, by layer, as the model runs."""
    layers = [layer for layer in model.capsule_layers if isinstance(layer, CapsuleConv2d)]
    children: dict[nn.Module, Capsules] = {}
    with ExitStack() as hooks:
        for layer in layers:
            handle = layer.register_forward_pre_hook(lambda module, args: children.update({module: args[0]}))
            hooks.callback(handle.remove)
        if layers and layers[-1] is model.last_layer():  # where log-odds are the logits, it is asked for them instead
            below = [model.primary, *model.capsule_layers][-2]
            handle = below.register_forward_hook(lambda module, args, made: children.update({layers[-1]: made}))
            hooks.callback(handle.remove)
        yield children


def _laid_out(layer: RoutedLayer, grid: tuple[int, int] | None) -> RoutedLayer:
    """Arrange the evidence on the grid of the image, if the children are laid out as positions × types."""
    if grid is None:
        return layer
    evidence = layer.evidence.squeeze(3)  # [iterations positions types c_out]
    return replace(layer, evidence=evidence.reshape(len(evidence), *grid, *evidence.shape[2:]))


def _view(
    title: str, fields: ReceptiveFields, layer: CapsuleConv2d, children: Capsules, trace: RoutingTrace
) -> RoutedLayer:
    size = children.activations.shape[1:3]
    active = gather_windows(children.activations, layer.geometry)[0]  # [h' w' kh kw c_in]
    evidence, entropy = [], []
    for couplings in trace.couplings:
        routed = couplings.reshape(*active.shape, -1) * active.unsqueeze(-1)  # [h' w' kh kw c_in c_out]
        evidence.append(_fold(routed, size, layer.geometry).float().cpu().numpy())
        entropy.append(float(_entropy(couplings).mean()))
    histograms = vote_distances(layer, children, trace)
    return RoutedLayer(title, fields, np.stack(evidence), np.array(entropy), histograms)


def _entropy(couplings: Tensor) -> Tensor:
    """Return the entropy of each child [b i]; NaN if there is a single parent."""
    if couplings.shape[2] < 2:
        return torch.full(couplings.shape[:2], torch.nan)
    return coupling_entropy(couplings.float())


def _fold(windows: Tensor, size: tuple[int, ...], geometry: Geometry) -> Tensor:
    """Add up windows [h' w' kh kw *rest] on the grid of children [h w *rest]."""
    grid = windows.new_zeros(*size, *windows.shape[4:])
    (kh, kw), (down, across) = geometry.kernel, geometry.stride
    for row in range(windows.shape[0]):
        for column in range(windows.shape[1]):
            grid[row * down :, column * across :][:kh, :kw] += windows[row, column]
    return grid


def vote_distances(layer: CapsuleConv2d, children: Capsules, trace: RoutingTrace, bins: int = 40) -> VoteDistances:
    """Return the histograms of a recorded pass, over all images and positions.

    The distances are those that EM routing records, or those from the coupling-weighted mean of the votes: a pose that
    went through a squash is not the mean of its votes.
    """
    distances = list(trace.distances)
    if not distances:
        V = capsule_votes(layer.routing_inputs(children))[0]  # [n i j d]
        for couplings in trace.couplings:
            weights = couplings / couplings.sum(1, keepdim=True).clamp(min=1e-12)
            mean = torch.einsum("nij,nijd->njd", weights, V)
            distances.append((V - mean.unsqueeze(1)).norm(dim=3))
    largest = max(float(values.max()) for values in distances)
    edges = np.linspace(0, largest or 1.0, bins + 1)
    histograms = []
    for pair in zip(distances, trace.couplings, strict=True):
        values, shares = (tensor.flatten(0, 1).T.double().cpu().numpy() for tensor in pair)  # [j b·i]
        histograms.append([np.histogram(v, edges, weights=w)[0] for v, w in zip(values, shares, strict=True)])
    return VoteDistances(edges, np.array(histograms))


def vote_distances_figure(
    images: Float[Tensor, "n c h w"], titles: Sequence[str], histograms: Sequence[VoteDistances], parents: Sequence[str]
) -> Figure:
    """Draw images in [0, 1] with their titles, and beside each a row per iteration and a column per parent.

    Votes that agree pile up on the left (Hinton et al. 2018, Figure 2).
    """
    n = len(images)
    iterations, j, _ = histograms[0].weights.shape
    figure = Figure(figsize=(1.5 * (j + 2) + 0.8, n * (1.0 * iterations + 0.7)), layout="constrained")
    parts = figure.subfigures(n, 1, squeeze=False)[:, 0]
    for part, image, title, own in zip(parts, images, titles, histograms, strict=True):
        left, right = part.subfigures(1, 2, width_ratios=(2, j))
        axes = left.subplots()
        show(axes, image.permute(1, 2, 0).numpy())
        axes.set_title(title, fontsize=10, parse_math=False)
        grid = right.subplots(iterations, j, sharex=True, sharey=True, squeeze=False)
        for axes, parent in zip(grid[0], parents, strict=True):
            axes.set_title(shorten(parent), fontsize=9, parse_math=False)
        for number, (row, weights) in enumerate(zip(grid, own.weights, strict=True), 1):
            row[0].set_ylabel(f"iteration {number}", fontsize=9)
            for axes, of_parent in zip(row, weights, strict=True):
                axes.stairs(of_parent, own.edges, fill=True, color="#1f6f9f")
    figure.supxlabel("distance of a vote to its parent's mean; heights are couplings", fontsize=9)
    return figure


def strongest_path(layers: list[RoutedLayer], target: int) -> list[int]:
    """Return a parent type per layer: `target` in the last, in others the one that contributed most to the next."""
    if not layers:
        raise ArgumentError("layers", "hold at least one routed layer", None)
    parents = layers[-1].evidence.shape[4]
    if not 0 <= target < parents:
        raise ArgumentError("target", f"be a class index in 0…{parents - 1}", target)
    path = [target]
    for layer in reversed(layers[1:]):
        path.insert(0, int(layer.between_types[-1][:, path[0]].argmax()))
    return path

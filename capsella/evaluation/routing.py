"""Measure how much a trained network routes: starved capsules, static couplings, parse trees and gradients.

Mitterreiter, Koch, Giesen, Laue 2023 ("Why capsule neural networks do not scale", AAAI, arXiv 2301.01583) find that in
deeper networks capsules starve and couplings hardly depend on the image: the parse tree, in which each part belongs to
the parent with its largest coupling, is nearly the same for all images.
"""

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.data import LabelledImages, batches, single_images
from capsella.errors import CapsellaError
from capsella.losses import LossOptions, total_loss
from capsella.models import ImageClassifier
from capsella.progress import tracked
from capsella.routing import RoutingTrace, record

WON_BY = 1e-6  # a parent wins a child if its coupling exceeds a uniform one by this fraction


@dataclass(frozen=True)
class LayerRouting:
    """One routed layer over a set of images.

    Attributes:
        name: index of the layer in the network, and its routing method.
        starved_share: share of the parent capsules (types at positions) that win no child in any image.
        image_share: share of the couplings' variance that is between images; 0 means static routing. The rest is
            between children and parents. NaN if couplings do not vary at all, e.g. uniform ones.
        class_share: share of the variance between images that is between the classes' means.
        expected_class_share: value of `class_share` to expect by chance if couplings do not depend on the class.
    """

    name: str
    starved_share: float
    image_share: float
    class_share: float
    expected_class_share: float


@dataclass(frozen=True)
class RoutingReport:
    """A network's routing over a set of images.

    Attributes:
        images: number of images.
        layers: its routed layers.
        parse_trees: by class, the number of distinct parse trees and the number of images.
        gradient_norms: by module, the norm of the loss gradient, averaged over batches.
    """

    images: int
    layers: tuple[LayerRouting, ...]
    parse_trees: dict[str, tuple[int, int]]
    gradient_norms: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def measure_routing(
    model: ImageClassifier,
    images: LabelledImages,
    loss: LossOptions,
    batch_size: int = 32,
    *,
    progress: bool = False,
) -> RoutingReport:
    """Measure the routing of a trained network; its weights do not change.

    Raises:
        CapsellaError: the network has no routed layer with several parents, or the images are pairs.
    """
    images = single_images(images, "measurements of routing")
    layers: list[_Layer] = []
    trees: list[set[bytes]] = [set() for _ in images.classes]
    norms: defaultdict[str, float] = defaultdict(float)
    parts = torch.arange(len(images)).split(batch_size)
    model.eval()
    for rows in tracked(parts, "routing", is_shown=progress):
        pixels, labels, _ = next(batches(images, batch_size, order=rows))
        model.zero_grad()
        with record() as traces:
            output = model(pixels, labels)
        total_loss(output, pixels, labels, loss).total.backward()
        for name, module in model.named_modules():
            gradients = [weight.grad for weight in module.parameters(recurse=False) if weight.grad is not None]
            if gradients:
                norms[name] += float(torch.nn.utils.get_total_norm(gradients)) / len(parts)
        routed = [trace for trace in traces if trace.couplings[-1].shape[2] > 1]
        if not routed:
            raise CapsellaError(f"{model.name} has no routed layer with several parents")
        if not layers:
            layers = [_Layer(f"layer {n} ({trace.name})", len(images.classes)) for n, trace in enumerate(routed, 1)]
        winners = [layer.add(trace, labels) for layer, trace in zip(layers, routed, strict=True)]
        for tree, label in zip(torch.cat(winners, 1).to(torch.int16), labels.tolist(), strict=True):
            trees[label].add(tree.numpy().tobytes())
    model.zero_grad()
    counts = images.labels.bincount(minlength=len(images.classes)).tolist()
    return RoutingReport(
        images=len(images),
        layers=tuple(layer.measured() for layer in layers),
        parse_trees={name: (len(trees[k]), counts[k]) for k, name in enumerate(images.classes)},
        gradient_norms=dict(norms),
    )


@dataclass
class _Layer:
    """Running sums over images for one layer. Couplings are [images, positions, children, parents]."""

    name: str
    classes: int
    images: int = 0
    squares: float = 0.0
    won: Tensor = field(default_factory=lambda: torch.zeros(0))
    sums: list[Float[Tensor, "positions i j"]] = field(default_factory=list)  # by class
    counts: list[int] = field(default_factory=list)

    def add(self, trace: RoutingTrace, labels: Tensor) -> Tensor:
        """Add a batch, and return the winner of every child [images, positions · children]."""
        couplings = trace.couplings[-1].double()
        couplings = couplings.unflatten(0, (len(labels), -1))
        parents = couplings.shape[3]
        if not self.sums:
            self.sums = [torch.zeros_like(couplings[0]) for _ in range(self.classes)]
            self.counts = [0] * self.classes
            self.won = torch.zeros(couplings.shape[1], parents, dtype=torch.bool)
        largest, winner = couplings.max(3)
        total = couplings.sum(3)
        is_won = largest > (1 + WON_BY) * total / parents
        chosen = torch.nn.functional.one_hot(winner, parents).bool() & is_won[..., None]
        self.won |= chosen.any(2).any(0)
        self.images += len(labels)
        self.squares += float((couplings**2).sum())
        for k in labels.unique().tolist():
            self.sums[k] += couplings[labels == k].sum(0)
            self.counts[k] += int((labels == k).sum())
        return torch.where(is_won, winner, -1).flatten(1)

    def measured(self) -> LayerRouting:
        """Return the shares of variance: total = between children and parents + between classes + within classes."""
        mean = torch.stack(self.sums).sum(0) / self.images
        over_images = self.squares / self.images - float((mean**2).sum())
        static = float(((mean - mean.mean()) ** 2).sum())
        between = sum(
            count * float(((total / count - mean) ** 2).sum())
            for total, count in zip(self.sums, self.counts, strict=True)
            if count
        )
        total, seen = over_images + static, sum(count > 0 for count in self.counts)
        varies = total > 1e-9 * mean.numel()
        return LayerRouting(
            self.name,
            starved_share=1 - float(self.won.double().mean()),
            image_share=over_images / total if varies else float("nan"),
            class_share=between / self.images / over_images if over_images > 1e-9 * mean.numel() else float("nan"),
            expected_class_share=(seen - 1) / max(1, self.images - 1),
        )

"""Compare an exported network with the trained one on real images."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.data.batching import batches
from capsella.data.images import ImageSet
from capsella.errors import CapsellaError, check_argument, not_negative
from capsella.export.graph import Exportable, Output
from capsella.models import ImageClassifier
from capsella.models.inference import inference
from capsella.routing import EMRouting
from capsella.uncertainty import FALSE_POSITIVE_RATE

Precision = Literal["float32", "int8"]
Activations = Callable[[Float[Tensor, "b c h w"]], Float[Tensor, "b classes"]]
Outputs = Mapping[Output, Callable[[Tensor], Tensor]]  # functions from images to each output of a file, by name
BATCH = 64


@dataclass(frozen=True)
class Tolerance:
    """The limits of the fields of a `Parity` with the same names; here, flips are in per cent of the images.

    Raises:
        ArgumentError: a number below 0.
    """

    difference: float
    flips: float
    probability: float = math.inf

    def __post_init__(self) -> None:
        not_negative(difference=self.difference, flips=self.flips, probability=self.probability)


TOLERANCES: dict[Precision, Tolerance] = {
    "float32": Tolerance(difference=1e-4, flips=0.0, probability=1e-4),
    "int8": Tolerance(difference=0.1, flips=1.0),
}
# With votes in bfloat16, a difference in float32's last bit can become one in the last of bfloat16's eight bits.
BFLOAT16_VOTES = Tolerance(difference=1e-2, flips=0.5, probability=1e-2)


def default_tolerance(model: ImageClassifier, precision: Precision) -> Tolerance:
    """Return the tolerance of a precision; in float32 with votes in bfloat16, a wider one."""
    routings = [getattr(module, "routing", None) for module in model.modules()]
    rounds = any(isinstance(routing, EMRouting) and routing.votes == "bfloat16" for routing in routings)
    return BFLOAT16_VOTES if precision == "float32" and rounds else TOLERANCES[precision]


@dataclass(frozen=True)
class Parity:
    """The differences between an exported network and the original in PyTorch, on labelled images.

    images: number of images. difference: the largest of any activation. flips: images with another predicted class.
    error, exported_error: per cent of images that PyTorch and the exported network classify wrong.
    probability: the largest difference of any probability; None without a calibration.
    ood_flips: images with another outcome of the OOD check; None without an OOD detector.
    """

    images: int
    difference: float
    flips: int
    error: float
    exported_error: float
    tolerance: Tolerance
    probability: float | None = None
    ood_flips: int | None = None

    @property
    def holds(self) -> bool:
        """True if all are within the tolerance; outcomes of the OOD check share the limit of classes."""
        near = self.difference <= self.tolerance.difference and (self.probability or 0) <= self.tolerance.probability
        return near and 100 * max(self.flips, self.ood_flips or 0) <= self.tolerance.flips * self.images

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**asdict(self), "holds": self.holds}

    def __str__(self) -> str:
        return (
            f"largest activation difference {self.difference:.2g} (at most {self.tolerance.difference:g}), "
            f"{'' if self.probability is None else f'largest probability difference {self.probability:.2g}, '}"
            f"{'' if self.ood_flips is None else f'other OOD outcome for {self.ood_flips}, '}"
            f"other label for {self.flips} of {self.images} images (at most {self.tolerance.flips:g} %), "
            f"error {self.error:.2f} % in PyTorch and {self.exported_error:.2f} % exported"
        )


def compare(model: ImageClassifier, exported: Outputs, images: ImageSet, tolerance: Tolerance) -> Parity:
    """Compare an exported network with the trained one: the first image alone, then all others in batches.

    Args:
        model: the trained network, in PyTorch.
        exported: the exported network's outputs; its activations, and others that it has.
        images: at the size of the network.
        tolerance: limits to store in the result; see `check_parity`.

    Raises:
        ArgumentError: no images, or of another size.
        CapsellaError: the exported network returns NaN or infinity, or another shape.
    """
    check_argument(len(images) > 0, "hold at least one to compare on", images=len(images))
    model.check_images(images.images)
    reference = Exportable(model, tuple(exported))
    pairs: dict[Output, list[tuple[Tensor, Tensor]]] = {name: [] for name in exported}
    first, rest = torch.arange(len(images)).split([1, len(images) - 1])
    with inference(model) as device:
        for part, *_ in chain(batches(images, 1, order=first), batches(images, BATCH, order=rest)):
            for name, expected in zip(exported, reference(part.to(device)), strict=True):
                expected = expected.float().cpu()
                pairs[name].append((expected, _checked(exported[name](part), expected, name)))
    ours, theirs = ({name: torch.cat([pair[k] for pair in parts]) for name, parts in pairs.items()} for k in (0, 1))
    predicted, exported_predicted = ours["activations"].argmax(1), theirs["activations"].argmax(1)
    ood_flips = None
    if "ood_score" in exported and model.ood_detector is not None:
        threshold = model.ood_detector.threshold(FALSE_POSITIVE_RATE)
        ood_flips = int(((ours["ood_score"] <= threshold) != (theirs["ood_score"] <= threshold)).sum())
    differences = {name: float((ours[name] - theirs[name]).abs().max()) for name in exported}
    return Parity(
        images=len(images),
        difference=differences["activations"],
        flips=int((predicted != exported_predicted).sum()),
        error=100 * float((predicted != images.labels).double().mean()),
        exported_error=100 * float((exported_predicted != images.labels).double().mean()),
        tolerance=tolerance,
        probability=differences.get("probabilities"),
        ood_flips=ood_flips,
    )


def _checked(output: Tensor, expected: Tensor, what: str) -> Tensor:
    if output.shape != expected.shape:
        shapes = f"shape {tuple(output.shape)}, not {tuple(expected.shape)}"
        raise CapsellaError(f"the exported network returns {what} of {shapes}")
    if not output.isfinite().all():
        raise CapsellaError(f"the exported network returns NaN or infinity ({what})")
    return output


def check_parity(parity: Parity) -> None:
    """Raise `CapsellaError` if anything differs by more than the tolerance."""
    if not parity.holds:
        raise CapsellaError(f"the exported network differs from PyTorch: {parity}; --tolerance and --flips allow more")

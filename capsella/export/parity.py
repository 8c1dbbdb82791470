"""Compare an exported network with the trained one on real images."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.data.batching import batches
from capsella.data.images import ImageSet
from capsella.errors import ArgumentError, CapsellaError
from capsella.export.graph import Exportable, Output
from capsella.models import ImageClassifier
from capsella.models.inference import inference
from capsella.routing import EMRouting
from capsella.uncertainty import FALSE_POSITIVE_RATE

Precision = Literal["float32", "int8"]
Activations = Callable[[Float[Tensor, "b c h w"]], Float[Tensor, "b classes"]]
Others = Mapping[Output, Callable[[Tensor], Tensor]]  # the other outputs of a file, by name


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
        for name in ("difference", "flips", "probability"):
            if not getattr(self, name) >= 0:  # NaN fails too
                raise ArgumentError(name, "not be negative", getattr(self, name))


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
    pixel_difference: the largest of any reconstructed pixel, over images with the same predicted class; None without
    reconstructions. probability: the largest difference of any probability; None without a calibration.
    ood_flips: images with another outcome of the OOD check; None without an OOD detector.
    """

    images: int
    difference: float
    flips: int
    error: float
    exported_error: float
    tolerance: Tolerance
    pixel_difference: float | None = None
    probability: float | None = None
    ood_flips: int | None = None

    @property
    def holds(self) -> bool:
        """True if all are within the tolerance; pixels share the limit of activations, OOD outcomes that of classes."""
        largest, flips = max(self.difference, self.pixel_difference or 0.0), max(self.flips, self.ood_flips or 0)
        is_near = largest <= self.tolerance.difference and (self.probability or 0.0) <= self.tolerance.probability
        return is_near and 100 * flips <= self.tolerance.flips * self.images

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**asdict(self), "holds": self.holds}

    def __str__(self) -> str:
        pixels = self.pixel_difference
        more = "" if pixels is None else f"largest pixel difference of reconstructions {pixels:.2g}, "
        more += "" if self.probability is None else f"largest probability difference {self.probability:.2g}, "
        return (
            f"largest activation difference {self.difference:.2g} (at most {self.tolerance.difference:g}), {more}"
            f"{'' if self.ood_flips is None else f'other OOD outcome for {self.ood_flips}, '}"
            f"other label for {self.flips} of {self.images} images (at most {self.tolerance.flips:g} %), "
            f"error {self.error:.2f} % in PyTorch and {self.exported_error:.2f} % exported"
        )


def compare(
    model: ImageClassifier,
    exported: Activations,
    images: ImageSet,
    tolerance: Tolerance,
    batch_size: int = 64,
    others: Others = MappingProxyType({}),
) -> Parity:
    """Compare an exported network with the trained one: the first image alone, then all others in batches.

    Args:
        model: the trained network, in PyTorch.
        exported: function from images to the exported network's activations.
        images: at the size of the network.
        tolerance: limits to store in the result; see `check_parity`.
        batch_size: batch size of all images but the first.
        others: functions from images to its other outputs, by name.

    Raises:
        ArgumentError: no images, or of another size.
        CapsellaError: the exported network returns NaN or infinity, or another shape.
    """
    if len(images) == 0:
        raise ArgumentError("images", "hold at least one to compare on", None)
    model.check_images(images.images)
    reference = Exportable(model, ("activations", *others))
    ours: dict[str, list[Tensor]] = {name: [] for name in reference.outputs}
    theirs: dict[str, list[Tensor]] = {name: [] for name in reference.outputs}
    first, rest = torch.arange(len(images)).split([1, len(images) - 1])
    with inference(model) as device:
        for part, *_ in chain(batches(images, 1, order=first), batches(images, batch_size, order=rest)):
            for name, expected in zip(reference.outputs, reference(part.to(device)), strict=True):
                output = (exported if name == "activations" else others[name])(part)
                ours[name].append(expected.float().cpu())
                theirs[name].append(_checked(output, ours[name][-1], name))
    pairs = {name: (torch.cat(ours[name]), torch.cat(theirs[name])) for name in ours}
    (a, b), labels = pairs["activations"], images.labels
    alike = a.argmax(1) == b.argmax(1)  # otherwise they reconstruct from different capsules
    pixel_difference = None
    if "reconstruction" in pairs and alike.any():
        expected, output = pairs["reconstruction"]
        pixel_difference = float((output - expected)[alike].abs().max())
    ood_flips = None
    if "ood_score" in pairs and model.ood_detector is not None:
        threshold = model.ood_detector.threshold(FALSE_POSITIVE_RATE)
        inside, exported_inside = (scores <= threshold for scores in pairs["ood_score"])
        ood_flips = int((inside != exported_inside).sum())
    return Parity(
        images=len(images),
        difference=_largest(a, b),
        flips=int((~alike).sum()),
        error=100 * float((a.argmax(1) != labels).double().mean()),
        exported_error=100 * float((b.argmax(1) != labels).double().mean()),
        tolerance=tolerance,
        pixel_difference=pixel_difference,
        probability=_largest(*pairs["probabilities"]) if "probabilities" in pairs else None,
        ood_flips=ood_flips,
    )


def _largest(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


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

"""Compare an exported network with the trained one on real images."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.data.batching import batches
from capsella.data.images import ImageSet
from capsella.errors import ArgumentError, CapsellaError
from capsella.models import ImageClassifier
from capsella.models.inference import inference
from capsella.routing import EMRouting
from capsella.uncertainty import is_fitted_to

Precision = Literal["float32", "int8"]
Activations = Callable[[Float[Tensor, "b c h w"]], Float[Tensor, "b classes"]]
Reconstructions = Callable[[Float[Tensor, "b c h w"]], Float[Tensor, "b c h w"]]


@dataclass(frozen=True)
class Tolerance:
    """Limits. difference: of any activation. flips: per cent of images with another class.

    Raises:
        ArgumentError: a number below 0.
    """

    difference: float
    flips: float

    def __post_init__(self) -> None:
        for name in ("difference", "flips"):
            if not getattr(self, name) >= 0:  # NaN fails too
                raise ArgumentError(name, "not be negative", getattr(self, name))


TOLERANCES: dict[Precision, Tolerance] = {
    "float32": Tolerance(difference=1e-4, flips=0.0),
    "int8": Tolerance(difference=0.1, flips=1.0),
}
# With votes in bfloat16, a difference in float32's last bit can become one in the last of bfloat16's eight.
BFLOAT16_VOTES = Tolerance(difference=1e-2, flips=0.5)


def default_tolerance(model: ImageClassifier, precision: Precision) -> Tolerance:
    """Return the tolerance of a precision; in float32 with votes in bfloat16, a wider one."""
    routings = [getattr(module, "routing", None) for module in model.modules()]
    rounds = any(isinstance(routing, EMRouting) and routing.votes == "bfloat16" for routing in routings)
    return BFLOAT16_VOTES if precision == "float32" and rounds else TOLERANCES[precision]


@dataclass(frozen=True)
class Parity:
    """An exported network beside the one in PyTorch on labelled images.

    images: their number. difference: the largest of any activation. flips: images with another class.
    error, exported_error: per cent of images that PyTorch and the exported network classify wrong.
    drawn: the largest difference of any pixel of the reconstructions, over images with the same class in both; None
    without reconstructions. probability: the largest difference of any probability; None without a calibration.
    """

    images: int
    difference: float
    flips: int
    error: float
    exported_error: float
    tolerance: Tolerance
    drawn: float | None = None
    probability: float | None = None

    @property
    def holds(self) -> bool:
        """True if all are within the tolerance; pixels have that of activations."""
        largest = max(self.difference, self.drawn or 0.0)
        return largest <= self.tolerance.difference and 100 * self.flips <= self.tolerance.flips * self.images

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**asdict(self), "holds": self.holds}

    def __str__(self) -> str:
        drawn = "" if self.drawn is None else f"largest pixel difference of reconstructions {self.drawn:.2g}, "
        drawn += "" if self.probability is None else f"largest probability difference {self.probability:.2g}, "
        return (
            f"largest activation difference {self.difference:.2g} (at most {self.tolerance.difference:g}), {drawn}"
            f"other label for {self.flips} of {self.images} images (at most {self.tolerance.flips:g} %), "
            f"error {self.error:.2f} % in PyTorch and {self.exported_error:.2f} % exported"
        )


def compare(
    model: ImageClassifier,
    exported: Activations,
    images: ImageSet,
    tolerance: Tolerance,
    batch_size: int = 64,
    drawn: Reconstructions | None = None,
) -> Parity:
    """Run both networks on every image.

    The first image is a batch of its own, the others come in batches: a program for one batch size fails.

    Args:
        model: the network in PyTorch, with its own backend.
        exported: images [b c h w] in [0, 1] to activations [b classes].
        images: labelled images of the model's size.
        tolerance: limits.
        batch_size: images per batch.
        drawn: the same images to the exported network's reconstructions, if it has them.

    Raises:
        ArgumentError: no images, or of another size.
        CapsellaError: the exported network returns NaN or infinity, or another shape.
    """
    if len(images) == 0:
        raise ArgumentError("images", "hold at least one to compare on", None)
    model.check_images(images.images)
    ours, theirs, pixels = [], [], []
    first, rest = torch.arange(len(images)).split([1, len(images) - 1])
    with inference(model) as device:
        for part, *_ in chain(batches(images, 1, order=first), batches(images, batch_size, order=rest)):
            output = model(part.to(device))
            ours.append(output.activations.float().cpu())
            theirs.append(_checked(exported(part), ours[-1], "activations"))
            alike = ours[-1].argmax(1) == theirs[-1].argmax(1)  # otherwise they reconstruct from different capsules
            if drawn is not None and output.reconstruction is not None and alike.any():
                expected = output.reconstruction.float().cpu()
                reconstructions = _checked(drawn(part), expected, "reconstructions")
                pixels.append(float((reconstructions - expected)[alike].abs().max()))
    a, b, labels = torch.cat(ours), torch.cat(theirs), images.labels
    probability = None
    if (calibration := model.calibration) is not None and is_fitted_to(model, calibration):
        # A temperature below 1 makes more of a difference than the activations show.
        probability = float((calibration.probabilities(a) - calibration.probabilities(b)).abs().max())
    return Parity(
        images=len(images),
        difference=float((a - b).abs().max()),
        flips=int((a.argmax(1) != b.argmax(1)).sum()),
        error=100 * float((a.argmax(1) != labels).double().mean()),
        exported_error=100 * float((b.argmax(1) != labels).double().mean()),
        tolerance=tolerance,
        drawn=max(pixels, default=None),
        probability=probability,
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

"""Whether an exported network says what the trained one says, on real images."""

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

Precision = Literal["float32", "float16", "int8"]
Activations = Callable[[Float[Tensor, "b c h w"]], Float[Tensor, "b classes"]]
Reconstructions = Callable[[Float[Tensor, "b c h w"]], Float[Tensor, "b c h w"]]


@dataclass(frozen=True)
class Tolerance:
    """What may differ. difference: of any activation. flips: share of images with another class, in per cent.

    Raises:
        ValueError: a number below 0.
    """

    difference: float
    flips: float

    def __post_init__(self) -> None:
        for name in ("difference", "flips"):
            if not getattr(self, name) >= 0:
                raise ArgumentError(f"{name}", "not be negative", getattr(self, name))


TOLERANCES: dict[Precision, Tolerance] = {
    "float32": Tolerance(difference=1e-4, flips=0.0),
    "float16": Tolerance(difference=1e-2, flips=0.5),
    "int8": Tolerance(difference=0.1, flips=1.0),
}
"""What rounding to each precision may change."""


def usual_tolerance(model: ImageClassifier, precision: Precision) -> Tolerance:
    """That of the precision; with votes in bfloat16, at least that of float16.

    There a difference in the last bit before the votes can become one of the last of bfloat16's eight.
    """
    routings = [getattr(module, "routing", None) for module in model.modules()]
    rounds = any(isinstance(routing, EMRouting) and routing.votes == "bfloat16" for routing in routings)
    return TOLERANCES["float16" if precision == "float32" and rounds else precision]


@dataclass(frozen=True)
class Parity:
    """An exported network beside the one in PyTorch on labelled images.

    images: their number. difference: the largest of any activation. flips: images with another class.
    error, exported_error: share of images classified wrong by PyTorch and by the exported network, in per cent.
    drawn: the largest difference of any pixel of the reconstructions, of images that have the same class in both; None
    of a file without them.
    probability: the largest difference of any probability; None of a network that is not calibrated.
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
        """All are within the tolerance, of which the pixels' is the activations'."""
        within = self.difference <= self.tolerance.difference and (self.drawn or 0.0) <= self.tolerance.difference
        return within and 100 * self.flips <= self.tolerance.flips * self.images

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
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
    """Run both on every image.

    The first image goes alone, the others in batches: a program that takes one batch size only fails.

    Args:
        model: the network in PyTorch, with the backend that it runs with.
        exported: from images [b c h w] in [0, 1] to activations [b classes].
        images: labelled, of the model's size.
        tolerance: what may differ.
        batch_size: images at a time.
        drawn: from the same images to the exported network's reconstructions, where it has them.

    Raises:
        ValueError: no images, or of another size.
        CapsellaError: the exported network answers NaN or infinity, or another shape.
    """
    if len(images) == 0:
        raise ArgumentError("images", "hold at least one to compare on", None)
    model.check_images(images.images)
    labels = images.labels
    (a, b), apart = _answers(model, exported, images, batch_size, drawn)
    return Parity(
        images=len(images),
        difference=float((a - b).abs().max()),
        flips=int((a.argmax(1) != b.argmax(1)).sum()),
        error=100 * float((a.argmax(1) != labels).double().mean()),
        exported_error=100 * float((b.argmax(1) != labels).double().mean()),
        tolerance=tolerance,
        drawn=apart,
        probability=_probability_difference(model, a, b),
    )


def _probability_difference(model: ImageClassifier, ours: Tensor, theirs: Tensor) -> float | None:
    """A temperature below 1 makes more of a difference than the activations show."""
    if (calibration := model.calibration) is None or not is_fitted_to(model, calibration):
        return None
    return float((calibration.probabilities(ours) - calibration.probabilities(theirs)).abs().max())


def _answers(
    model: ImageClassifier, exported: Activations, images: ImageSet, batch_size: int, drawn: Reconstructions | None
) -> tuple[tuple[Tensor, Tensor], float | None]:
    """Activations of both, and by how much pixels of reconstructions differ at most, of images of one class in both."""
    ours, theirs, apart = [], [], None
    first, rest = torch.arange(len(images)).split([1, len(images) - 1])
    with inference(model) as device:
        for part, *_ in chain(batches(images, 1, order=first), batches(images, batch_size, order=rest)):
            output = model(part.to(device))
            ours.append(output.activations.float().cpu())
            theirs.append(exported(part))
            _check_answer(theirs[-1], ours[-1])
            if drawn is not None and output.reconstruction is not None:
                alike = ours[-1].argmax(1) == theirs[-1].argmax(1)  # else another capsule is drawn
                if alike.any():
                    pictures, expected = drawn(part), output.reconstruction.float().cpu()
                    _check_answer(pictures, expected, "pictures")
                    most = float((pictures - expected)[alike].abs().max())
                    apart = most if apart is None else max(apart, most)
    return (torch.cat(ours), torch.cat(theirs)), apart


def _check_answer(answer: Tensor, expected: Tensor, what: str = "activations") -> None:
    if answer.shape != expected.shape:
        raise CapsellaError(
            f"the exported network answers {what} of shape {tuple(answer.shape)}, not {tuple(expected.shape)}"
        )
    if not answer.isfinite().all():
        raise CapsellaError(f"the exported network answers NaN or infinity ({what})")


def check_parity(parity: Parity) -> None:
    """Nothing differs by more than the tolerance.

    Raises:
        CapsellaError: something does; names the numbers.
    """
    if not parity.holds:
        raise CapsellaError(f"the exported network differs from PyTorch: {parity}; --tolerance and --flips allow more")

"""What is familiar to a trained model: fitted on training and validation images, and kept beside the weights."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import bdtr
from torch import Tensor

from capsella.errors import CapsellaError, check_argument
from capsella.models.novelty.gaussians import ClassGaussian

REASONS = {
    "appearance": "colours or sharpness unlike the training images",
    "features": "details unlike any {class_name}",
    "poses": "shape unlike any {class_name}",
    "reconstruction": "the network cannot draw it",
    "turned": "another answer when turned upside down",
}
"""The scores that decide whether an image is known, and what each says of one that is not."""
REFUSE = 0.05
"""The share of usual images that may be called unknown, if not said otherwise."""
CERTAINTY = 0.9
"""How often, over draws of the validation images, no larger share of usual images is called unknown."""
_TAIL = 10  # the largest tenth of the validation images' scores is the tail


@dataclass(frozen=True, eq=False)
class Familiar:
    """One score of the validation images, and how surprising another score is beside them.

    values: [n], ascending.

    Raises:
        CapsellaError: no values, or not finite and ascending.
    """

    values: Float[Tensor, " n"]

    def __post_init__(self) -> None:
        values = self.values
        good = values.ndim == 1 and len(values) > 0 and bool(values.isfinite().all())
        if not good or bool((values.diff() < 0).any()):
            raise CapsellaError("validation scores: must be at least one finite number, ascending")

    def surprise(self, scores: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """−ln of the share of validation images that are at least as strange, the image itself counted among them.

        In the largest tenth, and beyond it, that share falls exponentially with the mean excess of the tail, so that
        images stranger than all can still be told apart; there it has a gradient.
        """
        values = self.values.to(scores)
        number = len(values)
        tail = max(1, number // _TAIL)
        start = values[max(0, number - tail - 1)]
        spread = values.std(correction=0)
        excess = (values[-tail:].mean() - start).clamp_min(1e-3 * spread + 1e-9)
        stranger = number - torch.searchsorted(values, scores.detach().contiguous())
        inside = math.log(number + 1) - (1 + stranger).to(scores).log()
        beyond = math.log((number + 1) / (tail + 1)) + (scores - start) / excess
        return torch.where(scores > start, beyond, inside)


@dataclass(frozen=True, eq=False)
class Novelty:
    """What was fitted; made by `fit_novelty`.

    gaussians: of the features by which a score is taken, by the score's name. familiar: the validation images' values
    of each score in use. largest: [n], ascending, the largest surprise of each validation image.
    weights: SHA-256 of the weights it is of, where known.

    Raises:
        CapsellaError: values that no fit gives, as those of a damaged file.
    """

    gaussians: Mapping[str, ClassGaussian]
    familiar: Mapping[str, Familiar]
    largest: Float[Tensor, " n"]
    weights: str | None = None

    def __post_init__(self) -> None:
        unknown = set(self.familiar) - set(REASONS)
        if unknown or not self.familiar:
            raise CapsellaError(f"scores: must be some of {', '.join(REASONS)}, got {sorted(unknown) or 'none'}")
        without = set(self.familiar) - set(self.gaussians) - {"reconstruction", "turned"}
        if without or set(self.gaussians) - set(self.familiar):
            raise CapsellaError(f"gaussians: must be those of the scores, got {', '.join(self.gaussians) or 'none'}")
        Familiar(self.largest)
        if {len(one.values) for one in self.familiar.values()} != {len(self.largest)}:
            raise CapsellaError("validation scores: must be of the same images")

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores, in order."""
        return tuple(name for name in REASONS if name in self.familiar)

    @property
    def images(self) -> int:
        """Validation images."""
        return len(self.largest)

    @property
    def draws(self) -> bool:
        """Whether images must be reconstructed."""
        return "reconstruction" in self.familiar

    @property
    def turns(self) -> bool:
        """Whether images must be classified a second time, upside down."""
        return "turned" in self.familiar

    @property
    def digest(self) -> str:
        """SHA-256 of the validation images' scores: that of another fit is another."""
        digest = hashlib.sha256()
        for name in self.scores:
            digest.update(name.encode() + self.familiar[name].values.cpu().numpy().tobytes())
        return digest.hexdigest()

    def surprises(self, strangeness: Float[Tensor, "b scores"]) -> Float[Tensor, "b scores"]:
        """How surprising each score is, −ln of a share of validation images; in the order of `scores`."""
        columns = zip(self.scores, strangeness.unbind(1), strict=True)
        return torch.stack([self.familiar[name].surprise(column) for name, column in columns], 1)

    def threshold(self, refuse: float) -> float:
        """The largest surprise up to which an image is known; infinite if the validation images are too few.

        Of images drawn like the validation images, at most the share `refuse` is beyond it, with a certainty of
        `CERTAINTY` over their draw, whatever the distribution: a tolerance limit (Wilks 1941), the smallest r-th
        smallest surprise for which a binomial of n trials with probability 1 − refuse is below r that often.

        Raises:
            ValueError: a share that is not between 0 and 1.
        """
        check_refuse(refuse)
        below = bdtr(np.arange(self.images + 1.0), self.images, 1 - refuse)  # P(binomial ≤ 0, 1, …)
        rank = int(np.searchsorted(below, CERTAINTY)) + 1
        return float(self.largest[rank - 1]) if rank <= self.images else math.inf

    def can_refuse(self, refuse: float | None) -> bool:
        """Whether there are validation images enough for a threshold; of None, no."""
        return refuse is not None and math.isfinite(self.threshold(refuse))

    def why(self, surprises: Float[Tensor, "scores"], class_name: str) -> str:
        """In words, what is strangest about an image that was taken for `class_name`."""
        return REASONS[self.scores[int(surprises.argmax())]].format(class_name=class_name)


def images_to_refuse(refuse: float) -> int:
    """Validation images below which every image counts as known.

    >>> images_to_refuse(0.05), images_to_refuse(0.01)
    (45, 230)
    """
    check_refuse(refuse)
    return math.ceil(math.log(1 - CERTAINTY) / math.log(1 - refuse))


def check_refuse(refuse: float) -> None:
    """Raise `ValueError` for a share of images to refuse that is not between 0 and 1."""
    check_argument(0 < refuse < 1, "be between 0 and 1, as 0.05", refuse=refuse)

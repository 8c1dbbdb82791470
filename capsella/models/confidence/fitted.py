"""How sure a trained model may be: calibrated probabilities, and sets that hold the true class as often as asked for.

Temperature scaling (Guo et al. 2017, section 4.2): softmax(z/T) with one number T. Where training drew classes
otherwise than they are, z is first brought back to their own shares (Saerens, Latinne and Decaestecker 2002).
Prediction sets by split conformal prediction (Vovk et al. 2005; Angelopoulos and Bates 2021, section 1).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from capsella.errors import CapsellaError, check_argument

Logits = Literal["log", "logit"]
MOST = 1 - 2**-24  # the largest float32 below 1
LEAST = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Confidence:
    """What was fitted on validation images, and is kept beside the weights; made by `fit_confidence`.

    logits: what z is, "log" (ln a) or "logit" (ln a − ln(1 − a)) of the activations a. temperature: T.
    prior: what is added to z, a number a class: ln of its share of the training images over the share with which the
    training drew it; None where they were drawn as they are.
    scores: of the validation images, 1 − probability of the true class, ascending.
    nll, nll_before: mean −ln p of the true class on them, in nats; `before`, of activations divided by their sum.
    ece, ece_before: expected calibration error on them, 15 bins, in [0, 1].
    weights: SHA-256 of the weights it is of, where known.

    Raises:
        CapsellaError: values that no fit gives, as those of a damaged file.
    """

    logits: Logits
    temperature: float
    scores: tuple[float, ...]
    nll_before: float
    nll: float
    ece_before: float
    ece: float
    weights: str | None = None
    prior: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.logits not in get_args(Logits):
            raise CapsellaError(f"logits: must be log or logit, got {self.logits!r}")
        measured = (self.nll_before, self.nll, self.ece_before, self.ece)
        if not (0 < self.temperature < math.inf and all(0 <= value < math.inf for value in measured)):
            raise CapsellaError("temperature, nll, ece: must be finite and not negative")
        if self.prior is not None and not all(map(math.isfinite, self.prior)):
            raise CapsellaError("prior: must be finite numbers, one a class")
        inside = all(0 <= score <= 1 for score in self.scores)
        if not self.scores or not inside or list(self.scores) != sorted(self.scores):
            raise CapsellaError("scores: must be at least one number in [0, 1], ascending")

    @property
    def images(self) -> int:
        """Validation images that it was fitted on."""
        return len(self.scores)

    def probabilities(self, activations: Float[Tensor, "*b classes"]) -> Float[Tensor, "*b classes"]:
        """Calibrated probabilities, in float64; they sum to one over the classes.

        They keep the activations' order, but for a network that was trained on balanced classes: of an image that it
        takes for a rare one, a common class may be the more probable.
        """
        return (shifted_logits(activations, self.logits, self.prior) / self.temperature).softmax(-1)

    def quantile(self, coverage: float) -> float:
        """The score up to which a class is in the set: the ⌈(n + 1) · coverage⌉-th smallest; infinite if n is too few.

        Raises:
            ValueError: a coverage that is not between 0 and 1.
        """
        check_coverage(coverage)
        rank = math.ceil(round((self.images + 1) * coverage, 9))  # 0.55 · 20 is a last bit above 11
        return self.scores[rank - 1] if rank <= self.images else math.inf

    def sets(self, activations: Float[Tensor, "*b classes"], coverage: float) -> Bool[Tensor, "*b classes"]:
        """Which classes are in the set of each image: those with 1 − probability up to `quantile(coverage)`.

        Of images drawn like the validation images, at least the share `coverage` have their true class in the set, on
        average over draws of both (Angelopoulos and Bates 2021, Theorem 1); not of each class by itself. The predicted
        class is always there, and with it every class that is at least as probable, which only adds to the coverage.

        Raises:
            ValueError: a coverage that is not between 0 and 1.
        """
        p = self.probabilities(activations)
        predicted = p.gather(-1, activations.argmax(-1, keepdim=True))
        return (1 - p <= self.quantile(coverage)) | (p >= predicted)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "scores": list(self.scores)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """What `to_dict` gave.

        Raises:
            CapsellaError: something else.
        """
        try:
            scores = tuple(map(float, values["scores"]))
            numbers = {name: float(values[name]) for name in ("temperature", "nll_before", "nll", "ece_before", "ece")}
            prior = None if values.get("prior") is None else tuple(map(float, values["prior"]))
            return cls(logits=values["logits"], scores=scores, weights=values["weights"], prior=prior, **numbers)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CapsellaError(f"must hold what a calibration writes: {error!r}") from error


def logits_of(activations: Float[Tensor, "*b classes"], kind: Logits) -> Float[Tensor, "*b classes"]:
    """Ln a, or ln a − ln(1 − a), in float64; a is kept from 0 and, for the second, from 1 by float32's least step."""
    activations = activations.double()
    logarithm = activations.clamp_min(LEAST).log()
    return logarithm if kind == "log" else logarithm - torch.log1p(-activations.clamp_max(MOST))


def shifted_logits(
    activations: Float[Tensor, "*b classes"], kind: Logits, prior: Sequence[float] | None
) -> Float[Tensor, "*b classes"]:
    """`logits_of`, with a number added for each class where there is a prior."""
    z = logits_of(activations, kind)
    return z if prior is None else z + torch.tensor(prior, dtype=z.dtype, device=z.device)


def check_coverage(coverage: float) -> None:
    """Raise `ValueError` for a coverage that is not between 0 and 1."""
    check_argument(0 < coverage < 1, "be between 0 and 1, as 0.95", coverage=coverage)


def images_needed(coverage: float) -> int:
    """Validation images below which every prediction set must hold all classes.

    >>> images_needed(0.95), images_needed(0.99)
    (19, 99)
    """
    check_coverage(coverage)
    return math.ceil(round(coverage / (1 - coverage), 9))

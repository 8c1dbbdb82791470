"""Calibrated probabilities, and prediction sets with a guaranteed coverage.

Temperature scaling (Guo et al. 2017, section 4.2): softmax(z/T) with one number T. If training drew classes in other
proportions than they have, z is first corrected for them (Saerens, Latinne and Decaestecker 2002). Prediction sets by
split conformal prediction (Vovk et al. 2005; Angelopoulos and Bates 2021, section 1).

Two choices are ours. Capsule lengths do not sum to one and have no logits, so ln a and ln a − ln(1 − a) are both tried,
and the one with the lower loss on the validation images is used; activations that sum to one are a softmax, and ln a is
its logits up to a constant. And a network that classifies all n validation images correctly would get T → 0 and be
certain of everything, so each target gives 1/(n + 2) of its weight to the strongest other class, as Platt (1999,
section 2.2) does for two classes: n images without a mistake give a probability of (n + 1)/(n + 2).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from capsella.errors import CapsellaError, check_argument

Logits = Literal["log", "logit"]
MOST = 1 - 2**-24  # the largest float32 below 1
LEAST = torch.finfo(torch.float32).tiny
BINS = 15
_LOG_TEMPERATURE_BOUNDS = (-7.0, 7.0)
_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Calibration:
    """A calibration fitted on validation images by `fit_calibration`.

    Attributes:
        logits: the logits z of activations a: "log" (ln a) or "logit" (ln a − ln(1 − a)).
        temperature: T.
        scores: 1 − probability of the true class of each validation image, ascending.
        weights: SHA-256 of the weights that it was fitted to, if known.
        prior: one number per class, added to z: ln(proportion of the training images / proportion of the draws in
            training). None if both are the same.
    """

    logits: Logits
    temperature: float
    scores: tuple[float, ...]
    weights: str | None = None
    prior: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_argument(self.logits in get_args(Logits), "be log or logit", logits=self.logits)
        check_argument(0 < self.temperature < math.inf, "be above 0 and finite", temperature=self.temperature)
        check_argument(all(map(math.isfinite, self.prior or ())), "be finite", prior=self.prior)
        inside = all(0 <= score <= 1 for score in self.scores) and list(self.scores) == sorted(self.scores)
        check_argument(bool(self.scores) and inside, "be at least one number in [0, 1], ascending", scores="others")

    @property
    def images(self) -> int:
        """The number of validation images it was fitted on."""
        return len(self.scores)

    def probabilities(self, activations: Float[Tensor, "*b classes"]) -> Float[Tensor, "*b classes"]:
        """Return calibrated probabilities in float64, which sum to one over the classes.

        They keep the order of the activations, except after training with balanced classes: then a frequent class may
        be more probable than the rare class that the network predicts.
        """
        return (_shifted_logits(activations, self.logits, self.prior) / self.temperature).softmax(-1)

    def quantile(self, coverage: float) -> float:
        """Return the ⌈(n + 1) · coverage⌉-th smallest score, or infinity if there are too few images."""
        check_coverage(coverage)
        rank = math.ceil(round((self.images + 1) * coverage, 9))  # in floating point, 0.55 · 20 > 11
        return self.scores[rank - 1] if rank <= self.images else math.inf

    def sets(self, activations: Float[Tensor, "*b classes"], coverage: float) -> Bool[Tensor, "*b classes"]:
        """Return which classes are in the prediction set of each image: 1 − probability up to `quantile(coverage)`.

        For images drawn like the validation images, the set contains the true class with at least the probability
        `coverage`, on average over draws of both (Angelopoulos and Bates 2021, Theorem 1), but not for each class. The
        predicted class is always included, and every class that is at least as probable, which adds to the coverage.
        """
        p = self.probabilities(activations)
        predicted = p.gather(-1, activations.argmax(-1, keepdim=True))
        return (1 - p <= self.quantile(coverage)) | (p >= predicted)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the calibration whose `dataclasses.asdict` these values are; JSON has lists for tuples."""
        try:
            prior = values["prior"] and tuple(map(float, values["prior"]))
            scores = tuple(map(float, values["scores"]))
            return cls(values["logits"], float(values["temperature"]), scores, values["weights"], prior)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CapsellaError(f"must hold a calibration: {error!r}") from error


def fit_calibration(
    activations: Float[Tensor, "n classes"], labels: Int[Tensor, " n"], prior: Sequence[float] | None = None
) -> Calibration:
    """Fit temperature and conformal scores to a model's activations for validation images.

    Args:
        activations: in [0, 1].
        labels: the true classes.
        prior: as in `Calibration`.
    """
    shape = tuple(activations.shape)
    check_argument(activations.ndim == 2 and shape[0] > 0 and shape[1] > 1, "be [images classes]", activations=shape)
    check_argument(tuple(labels.shape) == shape[:1], f"be [{shape[0]}], one class per image", labels=labels.shape)
    check_argument(bool(activations.isfinite().all()), "be finite", activations="NaN or infinity")
    sums = activations.double().sum(1)
    is_softmax = bool(((sums - 1).abs() < _SUM_TOLERANCE).all())
    kinds: tuple[Logits, ...] = ("log",) if is_softmax else ("log", "logit")
    fits = {kind: _fit_temperature(_shifted_logits(activations, kind, prior), labels) for kind in kinds}
    kind = min(fits, key=lambda kind: fits[kind][1])
    temperature = fits[kind][0]
    probabilities = (_shifted_logits(activations, kind, prior) / temperature).softmax(1)
    scores = (1 - probabilities.gather(1, labels[:, None])[:, 0]).clamp(0, 1).sort().values
    return Calibration(kind, temperature, tuple(scores.tolist()), prior=None if prior is None else tuple(prior))


def logits_of(activations: Float[Tensor, "*b classes"], kind: Logits) -> Float[Tensor, "*b classes"]:
    """Return ln a or ln a − ln(1 − a) in float64. a is kept away from 0, and from 1 for the latter."""
    activations = activations.double()
    logarithm = activations.clamp_min(LEAST).log()
    return logarithm if kind == "log" else logarithm - torch.log1p(-activations.clamp_max(MOST))


def check_coverage(coverage: float) -> None:
    """Check that a coverage is between 0 and 1."""
    check_argument(0 < coverage < 1, "be between 0 and 1, e.g. 0.95", coverage=coverage)


def images_for_coverage(coverage: float) -> int:
    """Return the number of validation images below which every prediction set contains all classes.

    >>> images_for_coverage(0.95), images_for_coverage(0.99)
    (19, 99)
    """
    check_coverage(coverage)
    return math.ceil(round(coverage / (1 - coverage), 9))


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """A reliability curve: images sorted by confidence into bins of equal width over [0, 1].

    Attributes:
        edges: [bins + 1].
        counts: images in each bin.
        confidence, accuracy: their means within each bin; NaN if a bin is empty.
    """

    edges: Float[np.ndarray, " edges"]
    counts: Int[np.ndarray, " bins"]
    confidence: Float[np.ndarray, " bins"]
    accuracy: Float[np.ndarray, " bins"]

    @property
    def expected_error(self) -> float:
        """The expected calibration error, Σ_bins n_bin/n · |accuracy − confidence| (Guo et al. 2017, Eq. 3)."""
        filled = self.counts > 0
        gaps = np.abs(self.accuracy[filled] - self.confidence[filled])
        return float(np.average(gaps, weights=self.counts[filled]))


def calibration_curve(confidence: Float[np.ndarray, " n"], correct: Bool[np.ndarray, " n"]) -> CalibrationCurve:
    """Bin predictions by confidence into 15 bins (Guo et al. 2017, section 2).

    Args:
        confidence: one per prediction, in [0, 1]. Capsule lengths need not sum to one over the classes: each is the
            probability that its entity is present (Sabour et al. 2017).
        correct: True for each prediction that was right.
    """
    lengths = len(confidence), len(correct)
    check_argument(0 < lengths[0] == lengths[1], "have the same length, at least 1", confidence_and_correct=lengths)
    # Written so that NaN fails too.
    inside = bool(((confidence >= 0) & (confidence <= 1)).all())
    check_argument(inside, "be in [0, 1]", confidence=(float(confidence.min()), float(confidence.max())))
    edges = np.linspace(0, 1, BINS + 1)
    # A confidence on an edge belongs to the bin above it, and 1 to the last.
    which = np.digitize(confidence, edges[1:-1])
    counts = np.bincount(which, minlength=BINS)
    filled = np.where(counts > 0, counts, np.nan)
    return CalibrationCurve(
        edges=edges,
        counts=counts,
        confidence=np.bincount(which, weights=confidence, minlength=BINS) / filled,
        accuracy=np.bincount(which, weights=correct, minlength=BINS) / filled,
    )


def _shifted_logits(
    activations: Float[Tensor, "*b classes"], kind: Logits, prior: Sequence[float] | None
) -> Float[Tensor, "*b classes"]:
    z = logits_of(activations, kind)
    return z if prior is None else z + torch.tensor(prior, dtype=z.dtype, device=z.device)


def _fit_temperature(logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]) -> tuple[float, float]:
    """Return the temperature with the least mean cross-entropy, and that loss. It is convex in 1/T: one minimum.

    Targets leave 1/(n + 2) to the strongest wrong class.
    """
    from scipy.optimize import minimize_scalar  # predictions need not wait for its import

    rest = 1 / (len(labels) + 2)
    true = logits.gather(1, labels[:, None])[:, 0]
    other = logits.scatter(1, labels[:, None], -math.inf).max(1).values
    target = (1 - rest) * true + rest * other

    def loss(log_temperature: float) -> float:
        scale = math.exp(-log_temperature)
        return float(((scale * logits).logsumexp(1) - scale * target).mean())

    fit = minimize_scalar(loss, bounds=_LOG_TEMPERATURE_BOUNDS, method="bounded", options={"xatol": 1e-6})
    return math.exp(fit.x), float(fit.fun)

"""Fitting the temperature on validation images.

Two choices are ours. Capsule lengths do not sum to one and have no logits of their own, so ln a and ln a − ln(1 − a)
are both tried, and the one with the lower loss on the validation images is kept; where activations sum to one they are
a softmax, and ln a is its logits up to a constant. And a network that has all n validation images right would get
T → 0 and be sure of everything; so each target gives 1/(n + 2) of its weight to the strongest other class, as Platt
(1999, section 2.2) does for two classes: n images without a mistake make a network as sure as (n + 1)/(n + 2).
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsella.errors import check_argument
from capsella.models.confidence.fitted import Confidence, Logits, logits_of, shifted_logits
from capsella.models.confidence.reliability import calibration

_RANGE = (-7.0, 7.0)  # of ln T
_SUM_TOLERANCE = 1e-3


def fit_confidence(
    activations: Float[Tensor, "n classes"], labels: Int[Tensor, " n"], prior: Sequence[float] | None = None
) -> Confidence:
    """Temperature and conformal scores from a model's activations for validation images.

    Args:
        activations: [n classes], in [0, 1]. labels: [n], the true classes.
        prior: as of `Confidence`.

    Raises:
        ValueError: no images, shapes that do not fit, activations that are not finite.
    """
    shape = tuple(activations.shape)
    check_argument(activations.ndim == 2 and shape[0] > 0 and shape[1] > 1, "be [images classes]", activations=shape)
    check_argument(tuple(labels.shape) == shape[:1], f"be [{shape[0]}], one class an image", labels=tuple(labels.shape))
    check_argument(bool(activations.isfinite().all()), "be finite", activations="NaN or infinity")
    sums = activations.double().sum(1)
    is_softmax = bool(((sums - 1).abs() < _SUM_TOLERANCE).all())
    kinds: tuple[Logits, ...] = ("log",) if is_softmax else ("log", "logit")
    fits = {kind: _fit(shifted_logits(activations, kind, prior), labels) for kind in kinds}
    kind = min(fits, key=lambda kind: fits[kind][1])
    temperature = fits[kind][0]
    after = (shifted_logits(activations, kind, prior) / temperature).softmax(1)
    before = logits_of(activations, "log").softmax(1)
    true = after.gather(1, labels[:, None])[:, 0]
    return Confidence(
        logits=kind,
        temperature=temperature,
        scores=tuple((1 - true).clamp(0, 1).sort().values.tolist()),
        nll_before=log_loss(before, labels),
        nll=log_loss(after, labels),
        ece_before=_calibration_error(before, activations, labels),
        ece=_calibration_error(after, activations, labels),
        prior=None if prior is None else tuple(prior),
    )


def log_loss(probabilities: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]) -> float:
    """Mean −ln of the probability of the true class, in nats."""
    true = probabilities.gather(1, labels[:, None]).clamp_min(torch.finfo(probabilities.dtype).tiny)
    return float(-true.log().mean()) + 0.0  # no -0.0


def _fit(logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]) -> tuple[float, float]:
    """The temperature with the least smoothed loss, and that loss; convex in 1/T, so there is one minimum."""
    from scipy.optimize import minimize_scalar  # predictions need not wait for its import

    loss = _smoothed_loss(logits, labels)
    found = minimize_scalar(loss, bounds=_RANGE, method="bounded", options={"xatol": 1e-6})
    return math.exp(found.x), float(found.fun)


def _smoothed_loss(logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]) -> Callable[[float], float]:
    """Of ln T: the mean cross-entropy with targets that leave something to the strongest wrong class."""
    left = 1 / (len(labels) + 2)
    true = logits.gather(1, labels[:, None])[:, 0]
    other = logits.scatter(1, labels[:, None], -math.inf).max(1).values
    wanted = (1 - left) * true + left * other

    def loss(log_temperature: float) -> float:
        scale = math.exp(-log_temperature)
        return float(((scale * logits).logsumexp(1) - scale * wanted).mean())

    return loss


def _calibration_error(
    probabilities: Float[Tensor, "n classes"], activations: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]
) -> float:
    """Of the class that is predicted, whether or not it is the most probable one."""
    predicted = activations.argmax(1)
    sure = probabilities.gather(1, predicted[:, None])[:, 0]
    return calibration(sure.clamp(0, 1).numpy(), (predicted == labels).numpy()).expected_error

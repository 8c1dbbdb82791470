"""Detection of out-of-distribution (OOD) images: scores, class Gaussians, and a detector with a false-positive rate.

Every score is higher for images less like the training images. `fit_detector` compares the scores of new images with
those of validation images; `OODDetector.threshold` bounds the rate at which in-distribution images are flagged. Scores
of validation images that augmentation changed tell another laboratory from another kind of image.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import bdtr
from torch import Tensor

from capsella.errors import check_argument
from capsella.types import Output
from capsella.uncertainty.calibration import logits_of

# Names of the scores, and the reason that each gives for an OOD image.
REASONS = {
    "low_level": "unusual colours or sharpness",
    "features": "details unlike any {class_name}",
    "poses": "shape unlike any {class_name}",
    "reconstruction": "the network cannot reconstruct it",
    "rotation": "another prediction when turned upside down",
}
LABORATORY, KIND = "another laboratory", "another kind of image"  # the two answers for an OOD image
FALSE_POSITIVE_RATE = 0.05
CERTAINTY = 0.9  # probability, over draws of the validation images, that the false-positive rate holds
FOLDS = 10
STEADY, MOST_CHANGE = 0.9, 0.5  # the rotation score is used if 90 % of the validation images change by less than 0.5
_TAIL = 10  # the largest tenth of the validation scores is the tail
_FLAT = 1e-3  # differences of neighbours below this count as flat
_LEAST_SCALE = 0.01  # times the mean deviation: features that never varied in training must not dominate
_RIDGE = 1e-6


# Scores


def msp_score(logits: Float[Tensor, "b classes"]) -> Float[Tensor, " b"]:
    """Return ln((1 − p)/p) of the maximum softmax probability p (Hendrycks and Gimpel 2017), exact for p near 1."""
    largest, predicted = logits.max(1)
    others = logits.scatter(1, predicted[:, None], float("-inf"))
    return others.logsumexp(1) - largest


def energy_score(logits: Float[Tensor, "b classes"]) -> Float[Tensor, " b"]:
    """Return −ln Σ_k exp z_k (Liu et al. 2020, "Energy-based Out-of-distribution Detection", Eq. 4 at T = 1)."""
    return -logits.logsumexp(1)


def class_logits(output: Output) -> Float[Tensor, "b classes"]:
    """Return a CNN's logits, or the log-odds ln a − ln(1 − a) of capsule activations, in float64."""
    return logits_of(output.activations, "logit") if output.logits is None else output.logits.double()


def low_level_features(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 5*c"]:
    """Return mean, standard deviation and three sharpness values of each channel.

    A sharpness is ln of the mean difference between neighbours: vertical, horizontal, and mixed second difference.
    """
    down, across = images.diff(dim=2), images.diff(dim=3)
    sharpness = []
    for difference in (down, across, down.diff(dim=3)):
        flat = difference.flatten(2).abs()
        sharpness.append((flat.sum(2) / max(1, flat.shape[2]) + _FLAT).log())
    return torch.cat([map_statistics(images), *sharpness], 1)


def map_statistics(maps: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 2*c"]:
    """Return mean and deviation of each map over its positions in float32 (Lee et al. 2018, section 2, use means)."""
    flat = maps.flatten(2).float()
    # The square root has no gradient at zero, so a small number is added for constant maps.
    return torch.cat([flat.mean(2), (flat.var(2, correction=0) + 1e-12).sqrt()], 1)


def reconstruction_score(
    images: Float[Tensor, "b c h w"], reconstruction: Float[Tensor, "b c h w"]
) -> Float[Tensor, " b"]:
    """Return the root mean squared error over pixels: DARCCC (Frosst, Sabour, Hinton 2018, arXiv 1811.06969, §2)."""
    return ((images - reconstruction).flatten(1).float().square().mean(1) + 1e-12).sqrt()


def rotation_score(activations: Float[Tensor, "b classes"], rotated: Float[Tensor, "b classes"]) -> Float[Tensor, " b"]:
    """Return the largest change of an activation when the image is turned by 180°.

    An adversarial perturbation fits one orientation only (as in feature squeezing: Xu, Evans, Qi 2018, who blur).
    """
    return (activations - rotated).abs().amax(1).float()


# The detector


@dataclass(frozen=True, eq=False)
class ClassGaussian:
    """A mean for each class, and one covariance for all (Lee et al. 2018, section 2.1).

    Attributes:
        means: [classes d].
        whitening: [d d]; (x − mean) · whitening has unit covariance.
    """

    means: Float[Tensor, "classes d"]
    whitening: Float[Tensor, "d d"]

    def distance(self, features: Float[Tensor, "b d"], classes: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Return the Mahalanobis distance to the mean of each image's class, divided by √d."""
        from_mean = features.float() - self.means.to(features.device)[classes]
        whitened = from_mean @ self.whitening.to(features.device)
        return (whitened.square().mean(1) + 1e-12).sqrt()


def fit_gaussian(features: Float[Tensor, "n d"], labels: Int[Tensor, " n"], classes: int) -> ClassGaussian:
    """Fit class means and a shared covariance, shrunk as by Ledoit and Wolf (2004), so that few images suffice.

    Features are scaled to about unit deviation first. A class without images takes the mean of all.
    """
    from sklearn.covariance import LedoitWolf  # predictions need not wait for its import

    check_argument(len(features) > 0, "be of at least one image", features=tuple(features.shape))
    check_argument(bool(features.isfinite().all()), "be finite", features="NaN or infinity")
    features = features.double()
    by_class = [features[labels == label] for label in range(classes)]
    means = torch.stack([(own if len(own) else features).mean(0) for own in by_class])
    residuals = features - means[labels]
    scale = residuals.square().mean(0).sqrt()
    scale = scale + _LEAST_SCALE * scale.mean() + _RIDGE
    unit = torch.eye(len(scale), dtype=torch.float64)
    shrunk = unit
    if len(features) > 1:
        shrunk = torch.from_numpy(LedoitWolf(assume_centered=True).fit((residuals / scale).numpy()).covariance_)
    root = torch.linalg.cholesky(shrunk + _RIDGE * unit)
    whitening = torch.linalg.solve_triangular(root, unit, upper=False).T / scale[:, None]
    return ClassGaussian(means.float(), whitening.float())


def normalize_score(scores: Float[Tensor, " b"], validation: Float[Tensor, " n"]) -> Float[Tensor, " b"]:
    """Return −ln of the proportion of validation images with at least this score; the image itself counts as one.

    In the largest tenth of the scores and beyond, an exponential tail with the same mean excess replaces the
    proportion. So scores above all validation scores still differ, and have a gradient.

    Args:
        scores: one score of each image.
        validation: the same score of the validation images, ascending.
    """
    values = validation.to(scores)
    number = len(values)
    tail = max(1, number // _TAIL)
    start = values[max(0, number - tail - 1)]
    spread = values.std(correction=0)
    excess = (values[-tail:].mean() - start).clamp_min(1e-3 * spread + 1e-9)
    above = number - torch.searchsorted(values, scores.detach().contiguous())
    inside = math.log(number + 1) - (1 + above).to(scores).log()
    beyond = math.log((number + 1) / (tail + 1)) + (scores - start) / excess
    return torch.where(scores > start, beyond, inside)


@dataclass(frozen=True, eq=False)
class OODDetector:
    """A detector of out-of-distribution images, fitted by `capsella.uncertainty.fit_ood_detector`.

    Attributes:
        gaussians: Gaussians of the features that a score is computed from, by the score's name.
        distributions: the values of each score in use for the validation images [n], ascending.
        largest: [n], ascending, the largest normalised score of each validation image.
        weights: SHA-256 of the weights that it was fitted to, if known.
        shifted: [n], ascending, the largest normalised scores of validation images changed as by another laboratory;
            None for a network that was not trained with such changes.
    """

    gaussians: Mapping[str, ClassGaussian]
    distributions: Mapping[str, Float[Tensor, " n"]]
    largest: Float[Tensor, " n"]
    weights: str | None = None
    shifted: Float[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        names = set(self.distributions)
        check_argument(bool(names) and names <= set(REASONS), f"be some of {', '.join(REASONS)}", scores=sorted(names))
        of_features = names - {"reconstruction", "rotation"}
        check_argument(set(self.gaussians) == of_features, "be those of the scores", gaussians=list(self.gaussians))
        for gaussian in self.gaussians.values():
            means, whitening = gaussian.means, gaussian.whitening
            fits = means.ndim == 2 and whitening.shape == (means.shape[1],) * 2
            is_finite = bool(means.isfinite().all() and whitening.isfinite().all())
            check_argument(fits and is_finite, "be finite, of [classes d] and [d d]", means_and_whitening="others")
        shifted = self.largest if self.shifted is None else self.shifted
        for values in (self.largest, shifted, *self.distributions.values()):
            fits = values.ndim == 1 and len(values) == len(self.largest) > 0
            is_sorted = fits and bool(values.isfinite().all()) and not bool((values.diff() < 0).any())
            check_argument(is_sorted, "be finite numbers, ascending, of the same images", validation_scores="others")

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores, in the order of `REASONS`."""
        return tuple(name for name in REASONS if name in self.distributions)

    @property
    def images(self) -> int:
        """The number of validation images."""
        return len(self.largest)

    @property
    def digest(self) -> str:
        """SHA-256 of the validation scores, which identifies the fit."""
        digest = hashlib.sha256()
        for name in self.scores:
            digest.update(name.encode() + self.distributions[name].cpu().numpy().tobytes())
        return digest.hexdigest()

    def normalized_scores(self, scores: Float[Tensor, "b scores"]) -> Float[Tensor, "b scores"]:
        """Return each score as −ln of a proportion of validation images, in the order of `scores`."""
        columns = zip(self.scores, scores.unbind(1), strict=True)
        return torch.stack([normalize_score(column, self.distributions[name]) for name, column in columns], 1)

    def threshold(self, false_positive_rate: float) -> float:
        """Return the normalised score above which an image is OOD; infinity with too few validation images.

        At most this rate of the images drawn like the validation images is above it, with probability 0.9 over the draw
        of the validation images and for any distribution. This is a tolerance limit (Wilks 1941): the r-th smallest
        score, with the smallest r that a binomial of n trials with probability 1 − rate stays below that often.
        """
        return _tolerance_limit(self.largest, false_positive_rate)

    def kind_threshold(self, false_positive_rate: float) -> float | None:
        """Return the normalised score above which an image is of another kind; None if the network cannot tell.

        It is the tolerance limit of `threshold`, for the validation images as another laboratory would make them.
        """
        return None if self.shifted is None else _tolerance_limit(self.shifted, false_positive_rate)

    def supports(self, false_positive_rate: float | None) -> bool:
        """Return True if there are enough validation images for a threshold; False for None."""
        return false_positive_rate is not None and math.isfinite(self.threshold(false_positive_rate))

    def reason(self, normalized: Float[Tensor, " scores"], class_name: str, false_positive_rate: float) -> str:
        """Return why an image that was classified as `class_name` is OOD: the text of its largest score.

        If the network can tell, the text begins with `LABORATORY` or `KIND`.
        """
        text = REASONS[self.scores[int(normalized.argmax())]].format(class_name=class_name)
        limit = self.kind_threshold(false_positive_rate)
        return text if limit is None else f"{KIND if float(normalized.max()) > limit else LABORATORY} ({text})"


def _tolerance_limit(ascending: Float[Tensor, " n"], false_positive_rate: float) -> float:
    check_false_positive_rate(false_positive_rate)
    number = len(ascending)
    below = bdtr(np.arange(number + 1.0), number, 1 - false_positive_rate)  # P(binomial ≤ 0, 1, …)
    rank = int(np.searchsorted(below, CERTAINTY)) + 1
    return float(ascending[rank - 1]) if rank <= number else math.inf


def fit_detector(
    gaussians: Mapping[str, ClassGaussian],
    columns: Mapping[str, Float[Tensor, " n"]],
    shifted: Mapping[str, Float[Tensor, " n"]] | None = None,
) -> OODDetector:
    """Fit a detector to the scores of validation images, by name; `shifted` are those of the changed images.

    The rotation score is dropped if the predictions for validation images themselves change when turned, as for digits.
    """
    check_argument(bool(columns) and all(map(len, columns.values())), "be of at least one image", validation=0)
    is_finite = all(bool(column.isfinite().all()) for column in columns.values())
    check_argument(is_finite, "be finite", activations="NaN or infinity")
    columns = dict(columns)
    if float(columns["rotation"].quantile(STEADY)) >= MOST_CHANGE:
        del columns["rotation"]
    distributions = {name: column.sort().values for name, column in columns.items()}
    detector = OODDetector(gaussians, distributions, largest_scores(list(columns.values())).sort().values)
    if not shifted:
        return detector
    normalized = detector.normalized_scores(torch.stack([shifted[name] for name in detector.scores], 1))
    return replace(detector, shifted=normalized.amax(1).sort().values)


def largest_scores(columns: list[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
    """Return the largest normalised score of each validation image, normalised by the images of other folds.

    Normalised by all images, itself included, it would be less extreme than that of a new image.
    """
    number = len(columns[0])
    fold, largest = torch.arange(number) % min(FOLDS, number), torch.empty(number)
    for k in fold.unique():
        inside = fold == k
        others = ~inside if number > 1 else inside
        normalized = [normalize_score(column[inside], column[others].sort().values) for column in columns]
        largest[inside] = torch.stack(normalized, 1).amax(1)
    return largest


def images_for_rate(false_positive_rate: float) -> int:
    """Return the number of validation images below which no image is flagged as OOD.

    >>> images_for_rate(0.05), images_for_rate(0.01)
    (45, 230)
    """
    check_false_positive_rate(false_positive_rate)
    return math.ceil(math.log(1 - CERTAINTY) / math.log(1 - false_positive_rate))


def check_false_positive_rate(false_positive_rate: float) -> None:
    """Check that a false-positive rate is between 0 and 1."""
    check_argument(
        0 < false_positive_rate < 1, "be between 0 and 1, e.g. 0.05", ood_false_positive_rate=false_positive_rate
    )

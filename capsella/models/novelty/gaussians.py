"""How far features are from those of their class: Mahalanobis distances with one covariance for all classes."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsella.errors import CapsellaError, check_argument

_LEAST_SCALE = 0.01  # of the mean deviation: a feature that never varied in training is not infinitely telling
_RIDGE = 1e-6


@dataclass(frozen=True, eq=False)
class ClassGaussian:
    """A mean for each class, and one covariance around them (Lee et al. 2018, section 2.1).

    means: [classes d]. whitening: [d d], such that (x − mean) · whitening has unit covariance.

    Raises:
        CapsellaError: shapes that do not fit, or numbers that are not finite.
    """

    means: Float[Tensor, "classes d"]
    whitening: Float[Tensor, "d d"]

    def __post_init__(self) -> None:
        fits = self.means.ndim == 2 and self.whitening.shape == (self.means.shape[1],) * 2
        if not (fits and self.means.isfinite().all() and self.whitening.isfinite().all()):
            raise CapsellaError("means, whitening: must be finite, of [classes d] and [d d]")

    def distance(self, features: Float[Tensor, "b d"], classes: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Of each image from the mean of its class, per root of the number of features."""
        from_mean = features.float() - self.means.to(features.device)[classes]
        whitened = from_mean @ self.whitening.to(features.device)
        return (whitened.square().mean(1) + 1e-12).sqrt()


def fit_gaussian(features: Float[Tensor, "n d"], labels: Int[Tensor, " n"], classes: int) -> ClassGaussian:
    """Means of classes and their shared covariance, shrunk as Ledoit and Wolf (2004) do: few images will do.

    Each feature is brought to about unit deviation first. A class without images takes the mean of all.

    Raises:
        ValueError: no images, or features that are not finite.
    """
    from sklearn.covariance import LedoitWolf  # predictions need not wait for its import

    check_argument(len(features) > 0, "be of at least one image", features=tuple(features.shape))
    check_argument(bool(features.isfinite().all()), "be finite", features="NaN or infinity")
    features = features.double()
    found = [features[labels == label] for label in range(classes)]
    means = torch.stack([(own if len(own) else features).mean(0) for own in found])
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

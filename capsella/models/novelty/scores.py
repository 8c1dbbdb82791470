"""How strange an image is to a network, by several measures; the higher, the stranger."""

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.models.confidence.fitted import logits_of
from capsella.types import Output

_FLAT = 1e-3  # differences of neighbours, of images in [0, 1], below which an image counts as flat


def appearance(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 5*c"]:
    """What an image looks like before any network: of each channel the mean, the deviation, and three sharpnesses.

    A sharpness is ln of the mean difference between neighbours: down, across, and of the second between those.
    """
    down, across = images.diff(dim=2), images.diff(dim=3)
    sharpness = []
    for one in (down, across, down.diff(dim=3)):
        flat = one.flatten(2).abs()
        sharpness.append((flat.sum(2) / max(1, flat.shape[2]) + _FLAT).log())
    return torch.cat([map_statistics(images), *sharpness], 1)


def map_statistics(maps: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 2*c"]:
    """Mean and deviation of each map over its positions, in float32 (Lee et al. 2018, section 2, have the means)."""
    flat = maps.flatten(2).float()
    # The root of zero has no gradient: a map that is the same everywhere keeps a last bit.
    return torch.cat([flat.mean(2), (flat.var(2, correction=0) + 1e-12).sqrt()], 1)


def reconstruction_distance(
    images: Float[Tensor, "b c h w"], reconstruction: Float[Tensor, "b c h w"]
) -> Float[Tensor, " b"]:
    """Root of the mean squared difference a pixel: DARCCC's distance, where what is drawn is the winning class's.

    Frosst, Sabour, Hinton 2018 (arXiv 1811.06969), section 2.
    """
    return ((images - reconstruction).flatten(1).float().square().mean(1) + 1e-12).sqrt()


def change_when_turned(
    activations: Float[Tensor, "b classes"], turned: Float[Tensor, "b classes"]
) -> Float[Tensor, " b"]:
    """The largest change of an activation, in [0, 1], between an image and the same turned by half.

    Changes of pixels that fool a network fit one position alone (after feature squeezing: Xu, Evans, Qi 2018, which
    blurs where this turns).
    """
    return (activations - turned).abs().amax(1).float()


def class_logits(output: Output) -> Float[Tensor, "b classes"]:
    """A CNN's logits; of capsules, which have none, the log-odds ln a − ln(1 − a) of their activations. In float64."""
    return logits_of(output.activations, "logit") if output.logits is None else output.logits.double()


def doubt(logits: Float[Tensor, "b classes"]) -> Float[Tensor, " b"]:
    """Ln((1 − p)/p) of the largest softmax probability p (Hendrycks and Gimpel 2017), exact where p is next to 1."""
    largest, predicted = logits.max(1)
    others = logits.scatter(1, predicted[:, None], float("-inf"))
    return others.logsumexp(1) - largest


def energy(logits: Float[Tensor, "b classes"]) -> Float[Tensor, " b"]:
    """−ln Σ_k exp z_k (Liu et al. 2020, "Energy-based Out-of-distribution Detection", Equation 4 at T = 1)."""
    return -logits.logsumexp(1)

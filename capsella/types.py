"""What every layer and every model speak: `Capsules` between layers, `Output` at the end of a model."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import ArgumentError


def check_children(children: "Capsules", types: int, pose: int) -> None:
    """Raises:
    ValueError: a layer's children are not of so many types and pose elements.
    """
    if (came := tuple(children.poses.shape[3:])) != (types, pose):
        raise ArgumentError("children", f"have the layer's {types} types of {pose} pose elements", came)


def check_finite(activations: Tensor) -> None:
    """Raises:
    ValueError: activations [b classes] are not all numbers: the weights of a network are broken.
    """
    if broken := int((~activations.isfinite()).any(1).sum()):
        raise ValueError(f"activations: must be finite, got NaN or infinity for {broken} of {len(activations)} images")


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 where it is. Routing sums thousands of small votes, and squashing divides by them.

    A model of half precision so computes what its layers make of their capsules in float32, and one of float64 stays
    exact to the end.
    """
    return x if x.dtype == torch.float64 else x.float()


class Capsules(NamedTuple):
    """What a capsule layer returns. Dense layers have h = w = 1.

    poses: [b h w c d], one d-element pose for each of c capsule types at each grid position.
    activations: [b h w c], in [0, 1]: how sure the layer is that the entity is there.
    """

    poses: Float[Tensor, "b h w c d"]
    activations: Float[Tensor, "b h w c"]


class CapsuleLogits(NamedTuple):
    """Capsules before the logistic function: log-odds keep what activations near 0 and 1 would round away.

    Attributes:
        poses: [b h w c d], as in `Capsules`.
        log_odds: [b h w c], ln a/(1 − a) of the activations a.
    """

    poses: Float[Tensor, "b h w c d"]
    log_odds: Float[Tensor, "b h w c"]

    def capsules(self) -> Capsules:
        """Return the capsules with their activations."""
        return Capsules(self.poses, self.log_odds.sigmoid())


class Output(NamedTuple):
    """What every registered model returns, CNN baselines included.

    activations: [b classes], in [0, 1]; the largest is the prediction.
    capsules: the class capsules [b 1 1 classes d], or None for a CNN.
    reconstruction: [b channels height width] in [0, 1], or None for a model without a decoder. A model called with two
        labels an image gives [b 2 channels height width], one image from the capsule of each.
    logits: [b classes], or None; where given, cross-entropy is computed from them instead of the activations.
    """

    activations: Float[Tensor, "b classes"]
    capsules: Capsules | None = None
    reconstruction: Float[Tensor, "b *k channels height width"] | None = None
    logits: Float[Tensor, "b classes"] | None = None

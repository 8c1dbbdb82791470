"""Types of layers and models: `Capsules` between layers, `Output` of a model."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import ArgumentError


def check_children(children: "Capsules", types: int, pose: int) -> None:
    """Raise `ValueError` unless the child capsules have `types` capsule types of `pose` elements each."""
    if (came := tuple(children.poses.shape[3:])) != (types, pose):
        raise ArgumentError("children", f"have the layer's {types} types of {pose} pose elements", came)


def check_finite(activations: Tensor) -> None:
    """Raise `ValueError` if activations [b classes] hold NaN or infinity: the network's weights are broken."""
    if broken := int((~activations.isfinite()).any(1).sum()):
        raise ValueError(f"activations: must be finite, got NaN or infinity for {broken} of {len(activations)} images")


def at_least_float32(x: Tensor) -> Tensor:
    """Return `x` in float32, or unchanged if it is in float64, because routing sums thousands of small votes.

    A model in half precision thus computes its capsules in float32, and a model in float64 stays exact.
    """
    return x if x.dtype == torch.float64 else x.float()


class Capsules(NamedTuple):
    """The output of a capsule layer. Dense layers have h = w = 1.

    Attributes:
        poses: [b h w c d], one d-element pose for each of c capsule types at each grid position.
        activations: [b h w c], in [0, 1]: the probability that the entity is present.
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
    """The output of every registered model, including CNN baselines.

    Attributes:
        activations: [b classes], in [0, 1]; the largest is the prediction.
        capsules: the class capsules [b 1 1 classes d], or None for a CNN.
        reconstruction: [b channels height width] in [0, 1], or None for a model without a decoder. For two labels per
            image: [b 2 channels height width], a reconstruction from the capsule of each label.
        logits: [b classes], or None; if given, cross-entropy is computed from them instead of the activations.
    """

    activations: Float[Tensor, "b classes"]
    capsules: Capsules | None = None
    reconstruction: Float[Tensor, "b *k channels height width"] | None = None
    logits: Float[Tensor, "b classes"] | None = None

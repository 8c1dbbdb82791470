"""Normalisation of feature maps by the batch, by groups of channels, or by each image's channels alone."""

from typing import Literal

from torch import nn

from capsella.errors import at_least, unknown_name

Norm = Literal["batch", "group", "instance"]
GROUP = 16
"""Channels a group (Wu and He 2018, Table 3), or all where there are fewer."""


def norm_layer(kind: str, channels: int, eps: float = 1e-5) -> nn.Module:
    """A layer with scale and shift for maps [b channels h w].

    batch: as over all images, by running statistics when it classifies (Ioffe and Szegedy 2015). group: over the pixels
    of `GROUP` channels of one image (Wu and He 2018). instance: of one channel of one image (Ulyanov et al. 2016).
    The last two know no other images, so those of another laboratory are normalised by their own statistics.

    Raises:
        ValueError: not a `Norm`, `channels` below 1, or no multiple of its groups.
    """
    at_least(1, channels=channels)
    if kind == "batch":
        return nn.BatchNorm2d(channels, eps=eps)
    if kind == "group":
        groups = max(1, channels // GROUP)
        return nn.GroupNorm(groups, channels, eps=eps)
    if kind == "instance":
        return nn.GroupNorm(channels, channels, eps=eps)
    raise unknown_name("norm", kind, ("batch", "group", "instance"))

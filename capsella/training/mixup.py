"""Mixup: each training image is blended with another of its batch, and its loss with that one's (Zhang et al. 2018)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsella.losses import Others


def mix(
    images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"], alpha: float
) -> tuple[Float[Tensor, "b c h w"], Others]:
    """s·image + (1 − s)·another image of the batch, s from Beta(α, α), drawn for each image (arXiv 1710.09412, Eq. 1).

    s is never below one half, so that an image's own label stays that of what it mostly shows: pairs are drawn in both
    orders alike, and the blend of a pair with 1 − s is that of the pair turned round with s.

    Returns:
        The blended images, and what was mixed into each.
    """
    share = torch.distributions.Beta(alpha, alpha).sample((len(images),)).to(images.device)
    share = torch.maximum(share, 1 - share)
    other = torch.randperm(len(images), device=images.device)
    s = share[:, None, None, None].to(images.dtype)
    return s * images + (1 - s) * images[other], Others(labels[other], 1 - share)

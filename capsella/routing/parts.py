"""Routing some images at a time, so that memory holds the votes of a few and no layer stores those of a batch."""

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

from capsella.routing.backends import is_traced, is_transformed
from capsella.routing.recording import is_recording, unrecorded
from capsella.types import Capsules

VOTES = {"cpu": 2**20}
"""About how many elements the votes of a part have, by device, though at least those of one image: on a CPU few enough
for its cache, elsewhere `MANY_VOTES`."""
MANY_VOTES = 2**26


def in_parts(route: Callable[[Capsules], Capsules], children: Capsules, elements: int) -> Capsules:
    """`route(children)`, for parts of the images one after another; the backward pass makes each part's votes again.

    Outputs have the bits of one part. Gradients of weights are sums over parts, so they differ by rounding. A graph
    that is traced, a routing that is recorded, and what `torch.func` or a forward derivative works on, stay whole.

    Args:
        route: makes the votes and routes them, each image by itself; a backward pass draws the same random numbers.
        children: poses [b h w c p] and activations [b h w c].
        elements: of the votes of one image, windows · children · parents · pose elements.
    """
    # The number of images is asked for last: a traced graph that compares it would take this number alone.
    if is_traced() or is_transformed() or is_recording():
        return route(children)
    images = max(1, VOTES.get(children.poses.device.type, MANY_VOTES) // max(1, elements))
    if len(children.poses) <= images:
        return route(children)
    parts = zip(children.poses.split(images), children.activations.split(images), strict=True)
    if not torch.is_grad_enabled():
        routed = [route(Capsules(*part)) for part in parts]
    else:

        def route_part(poses: torch.Tensor, activations: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with unrecorded():  # a backward pass may be while others are recorded
                return tuple(route(Capsules(poses, activations)))

        routed = [checkpoint(route_part, *part, use_reentrant=False) for part in parts]
    poses, activations = zip(*routed, strict=True)
    return Capsules(torch.cat(poses), torch.cat(activations))

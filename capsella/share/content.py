"""What a page holds of one run: facts, which go into JSON, and arrays."""

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from capsella.models import CapsuleClassifier
from capsella.report.reconstructions import dial_names, dial_range
from capsella.routing.diagnostics import DEAD_BELOW
from capsella.share.arrays import Arrays
from capsella.share.choice import SURE
from capsella.share.drawing import NO_DECODER, add_decoder, drawer_of
from capsella.share.engine import decoder_graph
from capsella.share.looked import add_changes, add_images, add_routing, draw
from capsella.share.pool import Pool
from capsella.share.turned import changes_of

LENGTH_TOLERANCE = 1e-3  # an activation nearer than this to the pose's length, on every image, is that length


def run_content(
    name: str, model: CapsuleClassifier, pool: Pool, chosen: Pool, arrays: Arrays, prefix: str, *, live: bool = False
) -> dict[str, Any]:
    """Facts about a run and the `chosen` of the pool's images; arrays go to `arrays`, named `prefix`/…

    live: a server stands behind the page. It draws what the page cannot, and shows changed images to the network when
    they are asked for.
    """
    lengths, drawer = pool.poses.norm(dim=2), drawer_of(model, live)
    axes, after = class_axes(pool), None
    if drawer == "graph":
        arrays.add(f"{prefix}/graph", "u1", np.frombuffer(decoder_graph(model, pool.poses.shape[2]), np.uint8))
    if drawer == "matrices":
        axes, after = steepest_axes(model, axes, lengths.amax(0)), add_decoder(model, arrays, prefix)
    arrays.add(f"{prefix}/axes", "f4", axes.numpy())
    if not live:
        add_changes(model, chosen.images.float() / 255, chosen.taken[:, 0], arrays, prefix)
    return {
        "name": name,
        "network": model.name,
        "classes": list(model.classes),
        "size": list(model.image_size),
        "channels": model.channels,
        "sure": SURE,
        "silent": DEAD_BELOW,
        "lengthIsActivation": bool((lengths - pool.activations).abs().max() < LENGTH_TOLERANCE),
        "dials": {"names": dial_names(model, pool.poses.shape[2]), "most": dial_range(model)},
        "images": add_images(model, chosen, arrays, prefix),
        "decoder": {"after": after, "size": arrays.table[f"{prefix}/drawn"][1][2:]} if model.has_decoder else None,
        "whyNoDials": "" if model.has_decoder else NO_DECODER,
        "of": pool.of,
        "changes": [asdict(change) for change in changes_of(chosen.images.shape[3])],
        "routed": add_routing(model, chosen, arrays, prefix),
    }


def class_axes(pool: Pool) -> Float[Tensor, "classes 2 d"]:
    """For each class the plane in which its capsules point: the usual direction, and that in which most differ from it.

    Both are the first right singular vectors of the directions of the poses, uncentred, on images that the network
    takes for the class; of all images where it takes fewer than two for it. The first points the way of their mean.
    """
    directions = torch.nn.functional.normalize(pool.poses, dim=2)
    predicted = pool.activations.argmax(1)
    axes = torch.zeros(directions.shape[1], 2, directions.shape[2])
    for label in range(directions.shape[1]):
        own = directions[predicted == label, label]
        of_class = own if len(own) > 1 else directions[:, label]
        Vh = torch.linalg.svd(of_class, full_matrices=False).Vh[:2]
        axes[label, : len(Vh)] = Vh
        if of_class.mean(0) @ axes[label, 0] < 0:
            axes[label, 0] *= -1
    return axes


def steepest_axes(
    model: CapsuleClassifier, axes: Float[Tensor, "classes 2 d"], lengths: Float[Tensor, " classes"]
) -> Float[Tensor, "classes 2 d"]:
    """The same planes, but the second axis is where the drawing of the usual pose changes most.

    It is the first left singular vector of the drawing's differences as each number of the pose, of the length given,
    goes from one end of its dial to the other; what lies along the first axis is taken off before.
    """
    d, steps = axes.shape[2], dial_range(model) * torch.eye(axes.shape[2])
    steepest = axes.clone()
    for label, usual in enumerate(axes[:, 0]):
        poses = lengths[label] * usual + torch.cat([steps, -steps])
        drawn = draw(model, torch.full((2 * d,), label), poses)
        changes = (drawn[:d] - drawn[d:]).flatten(1)  # [d pixels]
        changes = changes - torch.outer(usual, usual @ changes)
        steepest[label, 1] = torch.linalg.svd(changes, full_matrices=False).U[:, 0]
    return steepest

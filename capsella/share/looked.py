"""What a page holds of each image: pixels, capsules, drawing, routing, and what becomes of it where it is changed."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsella.models import CapsuleClassifier
from capsella.models.inference import inference
from capsella.share.arrays import Arrays
from capsella.share.pool import Pool, seen
from capsella.share.routed import Routed, look_at_routing
from capsella.share.turned import changes_of, turned
from capsella.types import Capsules


def add_images(model: CapsuleClassifier, chosen: Pool, arrays: Arrays, prefix: str) -> list[dict[str, Any]]:
    """Keep arrays of each image, named `prefix`/…, but not of its changes; returns facts about each."""
    arrays.add(f"{prefix}/images", "u1", chosen.images.numpy())
    arrays.add(f"{prefix}/activations", "f4", chosen.activations.numpy())
    arrays.add(f"{prefix}/poses", "f4", chosen.poses.numpy())
    if model.has_decoder:
        first = chosen.taken[:, 0]
        drawn = draw(model, first, chosen.poses[torch.arange(len(first)), first])
        arrays.add(f"{prefix}/drawn", "u1", (drawn.clamp(0, 1) * 255).round().numpy())
    rows = zip(chosen.numbers, chosen.labels.tolist(), chosen.taken.tolist(), strict=True)
    return [
        {"number": number if number >= 0 else None, "truth": truth, "taken": taken, "predicted": taken[0]}
        for number, truth, taken in rows
    ]


def draw(model: CapsuleClassifier, targets: Int[Tensor, " n"], poses: Float[Tensor, "n d"]) -> Float[Tensor, "n c h w"]:
    """What class capsules of some poses draw, all other classes masked; on the processor.

    Raises:
        CapsellaError: the model has no decoder.
    """
    places = torch.arange(len(poses))
    grid = torch.zeros(len(poses), 1, 1, len(model.classes), poses.shape[1])
    grid[places, 0, 0, targets] = poses
    with inference(model) as device:
        capsules = Capsules(grid.to(device), grid.norm(dim=4).to(device))
        return model.decode(capsules, targets.to(device)).float().cpu().clone()


def add_changes(
    model: CapsuleClassifier,
    images: Float[Tensor, "n c h w"],
    predicted: Int[Tensor, " n"],
    arrays: Arrays,
    prefix: str,
) -> None:
    """What the network makes of each image turned, shifted and scaled: [n stops classes], and [n stops d] of a pose.

    The pose is that of the class in `predicted`.
    """
    for number, change in enumerate(changes_of(images.shape[3])):
        activations, poses = [], []
        for amount in change.amounts:
            active, found = seen(model, turned(images, change.name, amount))
            activations.append(active)
            poses.append(found[torch.arange(len(found)), predicted])
        arrays.add(f"{prefix}/changedActivations{number}", "f4", torch.stack(activations, 1).numpy())
        arrays.add(f"{prefix}/changedPoses{number}", "f4", torch.stack(poses, 1).numpy())


def add_routing(model: CapsuleClassifier, chosen: Pool, arrays: Arrays, prefix: str) -> list[dict[str, Any]]:
    """Facts about each routed layer; evidence, goals, entropies, votes, couplings of each image go to `arrays`."""
    pairs = zip(chosen.images.float() / 255, chosen.activations, strict=True)
    routed = [look_at_routing(model, image, active) for image, active in pairs]
    arrays.add(f"{prefix}/shown", "u2", np.array([one.classes for one in routed]))
    facts = []
    for number, layer in enumerate(routed[0].layers):
        arrays.add(f"{prefix}/evidence{number}", "u1", np.stack([255 * one.evidence[number] for one in routed]).round())
        arrays.add(f"{prefix}/parents{number}", "u2", np.array([one.parents[number] for one in routed]))
        arrays.add(f"{prefix}/entropy{number}", "f4", np.stack([one.layers[number].entropy for one in routed]))
        goals = [one.goals[number] for one in routed]
        arrays.add(f"{prefix}/goals{number}", "u2", np.stack([one.parents for one in goals]))
        arrays.add(f"{prefix}/shares{number}", "u1", np.stack([255 * one.shares for one in goals]).round())
        fields = {part: getattr(layer.fields, part).tolist() for part in ("first", "step", "side")}
        types = layer.evidence.shape[3]
        facts.append({"title": layer.title, "iterations": layer.iterations, "fields": fields, "types": types})
    if facts and routed[0].votes is not None:
        facts[-1]["children"] = routed[0].votes.children
        _add_votes(routed, arrays, prefix)
    return facts


def _add_votes(routed: list[Routed], arrays: Arrays, prefix: str) -> None:
    """Points to 1/127 of the farthest one; couplings as their roots, so that small ones keep their digits."""
    votes = [one.votes for one in routed if one.votes is not None]
    arrays.add(f"{prefix}/points", "i1", np.stack([127 * one.points for one in votes]).round())
    arrays.add(f"{prefix}/means", "f4", np.stack([one.means for one in votes]))
    arrays.add(f"{prefix}/couplings", "u1", np.stack([255 * np.sqrt(one.couplings) for one in votes]).round())
    arrays.add(f"{prefix}/spread", "f4", np.stack([one.shown for one in votes]))
    arrays.add(f"{prefix}/parts", "u2", np.stack([one.parts for one in votes]))

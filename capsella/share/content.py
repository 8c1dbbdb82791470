"""What a page holds of one run: facts, which go into JSON, and arrays."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from capsella.data.images import ImageSet
from capsella.explain.tweaks import dial_names, dial_range
from capsella.models import CapsuleClassifier
from capsella.models.inference import inference
from capsella.routing.diagnostics import DEAD_BELOW
from capsella.share.arrays import Arrays
from capsella.share.choice import SURE, choose_images
from capsella.share.drawing import add_decoder, why_no_dials
from capsella.share.routed import Routed, look_at_routing
from capsella.share.turned import changes_of, turned
from capsella.types import Capsules

LENGTH_TOLERANCE = 1e-3  # an activation nearer than this to the pose's length, on every image, is that length


@dataclass(frozen=True)
class Pool:
    """Test images, and what the network makes of them: the images of a page are chosen among these.

    numbers: [n] places in the whole test set, of `of` images. poses: [n classes d].
    """

    images: ImageSet
    numbers: tuple[int, ...]
    of: int
    activations: Float[Tensor, "n classes"]
    poses: Float[Tensor, "n classes d"]

    def take(self, places: list[int]) -> "Pool":
        """Those at some places."""
        index = torch.tensor(places)
        numbers = tuple(self.numbers[place] for place in places)
        return Pool(self.images.subset(places), numbers, self.of, self.activations[index], self.poses[index])


def make_pool(model: CapsuleClassifier, test: ImageSet, most: int = 500) -> Pool:
    """At most `most` test images, evenly through the set, seen by the network."""
    numbers = torch.linspace(0, len(test) - 1, min(most, len(test)), dtype=torch.float64).round().long()
    images = test.subset(numbers)
    activations, poses = seen(model, images.images.float() / 255)
    return Pool(images, tuple(numbers.tolist()), len(test), activations, poses)


def seen(model: CapsuleClassifier, images: Float[Tensor, "n c h w"]) -> tuple[Tensor, Tensor]:
    """Activations [n classes] and poses [n classes d] of images in [0, 1]."""
    activations, poses = [], []
    with inference(model) as device:
        for part in images.split(64):
            capsules = model.encode(part.to(device))
            activations.append(capsules.activations[:, 0, 0].float().cpu())
            poses.append(capsules.poses[:, 0, 0].float().cpu())
    return torch.cat(activations).clone(), torch.cat(poses).clone()


def run_content(
    name: str, model: CapsuleClassifier, pool: Pool, most: int, arrays: Arrays, prefix: str
) -> tuple[dict[str, Any], Pool]:
    """Facts about a run, and the chosen `most` of the pool's images; arrays go to `arrays`, named `prefix`/…"""
    chosen = pool.take(choose_images(pool.activations, pool.images.labels, most))
    images = chosen.images.images.float() / 255
    arrays.add(f"{prefix}/images", "u1", chosen.images.images.numpy())
    arrays.add(f"{prefix}/activations", "f4", chosen.activations.numpy())
    arrays.add(f"{prefix}/poses", "f4", chosen.poses.numpy())
    axes = class_axes(pool)
    lengths = pool.poses.norm(dim=2)
    reason = why_no_dials(model)
    if not reason:
        axes = steepest_axes(model, axes, lengths.amax(0))
    arrays.add(f"{prefix}/axes", "f4", axes.numpy())
    decoder = None
    if not reason:
        after = add_decoder(model, arrays, prefix)
        decoder = {"after": after, "size": _add_drawings(model, chosen, arrays, prefix)}
    facts = {
        "name": name,
        "network": model.name,
        "classes": list(model.classes),
        "size": list(model.image_size),
        "channels": model.channels,
        "sure": SURE,
        "silent": DEAD_BELOW,
        "lengthIsActivation": bool((lengths - pool.activations).abs().max() < LENGTH_TOLERANCE),
        "dials": {"names": dial_names(model, pool.poses.shape[2]), "most": dial_range(model)},
        "decoder": decoder,
        "whyNoDials": reason,
        "images": _image_facts(chosen),
        "of": pool.of,
        "changes": _add_changes(model, chosen, images, arrays, prefix),
        "routed": _add_routing(model, chosen, images, arrays, prefix),
    }
    return facts, chosen


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
    model: CapsuleClassifier, axes: Float[Tensor, "classes 2 d"], lengths: Float[Tensor, "classes"]
) -> Float[Tensor, "classes 2 d"]:
    """The same planes, but the second axis is where the drawing of the usual pose changes most.

    It is the first left singular vector of the drawing's differences as each number of the pose, of the length given,
    goes from one end of its dial to the other; what lies along the first axis is taken off before.
    """
    d, steps = axes.shape[2], dial_range(model) * torch.eye(axes.shape[2])
    steepest = axes.clone()
    with inference(model) as device:
        for label, usual in enumerate(axes[:, 0]):
            poses = torch.zeros(2 * d, 1, 1, len(axes), d)
            poses[:, 0, 0, label] = lengths[label] * usual + torch.cat([steps, -steps])
            target = torch.full((2 * d,), label, device=device)
            drawn = model.decode(Capsules(poses.to(device), poses.norm(dim=4).to(device)), target).float().cpu()
            changes = (drawn[:d] - drawn[d:]).flatten(1)  # [d pixels]
            changes = changes - torch.outer(usual, usual @ changes)
            steepest[label, 1] = torch.linalg.svd(changes, full_matrices=False).U[:, 0]
    return steepest


def _image_facts(chosen: Pool) -> list[dict[str, Any]]:
    predicted = chosen.activations.argmax(1).tolist()
    labels = chosen.images.labels.tolist()
    return [
        {"number": number, "truth": truth, "predicted": said}
        for number, truth, said in zip(chosen.numbers, labels, predicted, strict=True)
    ]


def _add_drawings(model: CapsuleClassifier, chosen: Pool, arrays: Arrays, prefix: str) -> list[int]:
    """Keep PyTorch's drawings of the predicted capsules, for the page to compare its own with; returns their size."""
    with inference(model) as device:
        grid = Capsules(chosen.poses[:, None, None].to(device), chosen.activations[:, None, None].to(device))
        drawn = model.decode(grid, chosen.activations.argmax(1).to(device)).float().cpu().clone()
    arrays.add(f"{prefix}/drawn", "u1", (drawn.clamp(0, 1) * 255).round().numpy())
    return list(drawn.shape[2:])


def _add_changes(
    model: CapsuleClassifier, chosen: Pool, images: Tensor, arrays: Arrays, prefix: str
) -> list[dict[str, Any]]:
    """What the network makes of each image turned, shifted and scaled: [n stops classes], and [n stops d] of a pose.

    The pose is that of the class which the network takes the unchanged image for.
    """
    changes, predicted = changes_of(images.shape[3]), chosen.activations.argmax(1)
    for number, change in enumerate(changes):
        activations, poses = [], []
        for amount in change.amounts:
            active, found = seen(model, turned(images, change.name, amount))
            activations.append(active)
            poses.append(found[torch.arange(len(found)), predicted])
        arrays.add(f"{prefix}/changedActivations{number}", "f4", torch.stack(activations, 1).numpy())
        arrays.add(f"{prefix}/changedPoses{number}", "f4", torch.stack(poses, 1).numpy())
    return [asdict(change) for change in changes]


def _add_routing(
    model: CapsuleClassifier, chosen: Pool, images: Tensor, arrays: Arrays, prefix: str
) -> list[dict[str, Any]]:
    """Facts about each routed layer; evidence, entropies, votes and couplings of each image go to `arrays`."""
    routed = [look_at_routing(model, image, active) for image, active in zip(images, chosen.activations, strict=True)]
    arrays.add(f"{prefix}/shown", "u2", np.array([one.classes for one in routed]))
    facts = []
    for number, layer in enumerate(routed[0].layers):
        arrays.add(f"{prefix}/evidence{number}", "u1", np.stack([255 * one.evidence[number] for one in routed]).round())
        arrays.add(f"{prefix}/parents{number}", "u2", np.array([one.parents[number] for one in routed]))
        arrays.add(f"{prefix}/entropy{number}", "f4", np.stack([one.layers[number].entropy for one in routed]))
        fields = {part: getattr(layer.fields, part).tolist() for part in ("first", "step", "side")}
        facts.append({"title": layer.title, "iterations": layer.iterations, "fields": fields})
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

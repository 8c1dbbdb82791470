"""Test images and what a network makes of them: which go on a page, their capsules, and their changes."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from capsella.data import LabelledImages, evenly
from capsella.errors import check_minimum
from capsella.losses import top_classes
from capsella.models import CapsuleClassifier
from capsella.models.inference import inference
from capsella.models.scoring import predict_with_scores
from capsella.types import Capsules
from capsella.uncertainty import FALSE_POSITIVE_RATE
from capsella.web.arrays import Arrays
from capsella.web.routing_view import Routed, look_at_routing

BATCH = 64
SURE = 0.5  # a capsule at least this active is sure
STOPS = 9  # amounts of each change


@dataclass(frozen=True)
class SeenImages:
    """Images, and what the network makes of them.

    Attributes:
        images: [n c h w], 0..255.
        labels: [n k], the classes of each image; k is 1, or 2 for pairs, or 0 if nobody knows.
        numbers: n places in the whole test set; -1 for an image that is not in it.
        test_size: number of images in the whole test set.
        activations: [n classes].
        poses: [n classes d], of the class capsules.
    """

    images: UInt8[Tensor, "n c h w"]
    labels: Int[Tensor, "n k"]
    numbers: tuple[int, ...]
    test_size: int
    activations: Float[Tensor, "n classes"]
    poses: Float[Tensor, "n classes d"]

    def take(self, places: list[int]) -> "SeenImages":
        """Return the images at some places."""
        index, numbers = torch.tensor(places), tuple(self.numbers[place] for place in places)
        images, labels = self.images[index], self.labels[index]
        return SeenImages(images, labels, numbers, self.test_size, self.activations[index], self.poses[index])

    @property
    def predicted(self) -> Int[Tensor, "n k"]:
        """The predicted classes, the most active first: one, or two for a pair."""
        return top_classes(self.activations, max(1, self.labels.shape[1]))

    @property
    def correct(self) -> Bool[Tensor, " n"]:
        """Return True for each image whose prediction is right."""
        return (self.predicted.sort(1).values == self.labels.sort(1).values).all(1)

    def shows_same(self, other: "SeenImages") -> bool:
        """Return True if both hold the same images, whatever the networks make of them."""
        same = torch.equal(self.images, other.images) and torch.equal(self.labels, other.labels)
        return self.numbers == other.numbers and same


def see(
    model: CapsuleClassifier,
    images: UInt8[Tensor, "n c h w"],
    labels: Int[Tensor, " n *k"],
    numbers: tuple[int, ...],
    test_size: int,
) -> SeenImages:
    """Show images to the network."""
    labels = labels.reshape(len(images), -1)
    return SeenImages(images, labels, numbers, test_size, *encode_images(model, images.float() / 255))


def see_test_images(model: CapsuleClassifier, test: LabelledImages, most: int = 500) -> SeenImages:
    """Show at most `most` test images to the network, spread evenly over the set."""
    numbers = evenly(len(test), most)
    batch = test.take(numbers)  # a set of pairs can hold ten million: only these are drawn
    return see(model, batch.images, batch.labels, tuple(numbers.tolist()), len(test))


def encode_images(model: CapsuleClassifier, images: Float[Tensor, "n c h w"]) -> tuple[Tensor, Tensor]:
    """Return activations [n classes] and poses [n classes d] for images in [0, 1]."""
    activations, poses = [], []
    with inference(model) as device:
        for batch in images.split(BATCH):
            capsules = model.encode(batch.to(device))
            activations.append(capsules.activations[:, 0, 0].float().cpu())
            poses.append(capsules.poses[:, 0, 0].float().cpu())
    return torch.cat(activations).clone(), torch.cat(poses).clone()


def decode_poses(
    model: CapsuleClassifier, targets: Int[Tensor, " n"], poses: Float[Tensor, "n d"]
) -> Float[Tensor, "n c h w"]:
    """Return the reconstructions from class capsules with some poses, all other classes masked.

    Raises:
        CapsellaError: the model has no decoder.
    """
    grid = torch.zeros(len(poses), 1, 1, len(model.classes), poses.shape[1])
    grid[torch.arange(len(poses)), 0, 0, targets] = poses
    with inference(model) as device:
        capsules = Capsules(grid.to(device), grid.norm(dim=4).to(device))
        return model.decode(capsules, targets.to(device)).float().cpu().clone()


def choose_images(seen: SeenImages, most: int) -> list[int]:
    """Choose images for a page: for each class the surest correct one, mistakes, uncertain images, then others.

    Raises:
        ArgumentError: `most` is below 1.
    """
    check_minimum(1, images=most)
    labels, correct, confidence = seen.labels, seen.correct, seen.activations.amax(1)
    by_confidence = confidence.argsort(descending=True, stable=True)
    first: list[int] = []
    for label in range(seen.activations.shape[1]):
        of_class = by_confidence[(correct & (labels == label).any(1))[by_confidence]]
        first += of_class[:1].tolist()
    wrong = by_confidence[~correct[by_confidence]].tolist()
    unsure = by_confidence[(confidence < SURE)[by_confidence]].tolist()

    def rank(place: int) -> int:
        """Count the images of the same class before this one; mistakes come last."""
        return int((labels[:place, 0] == labels[place, 0]).sum()) + (0 if correct[place] else len(labels))

    rest = sorted(range(len(labels)), key=lambda place: (rank(place), labels[place].tolist()))
    room = max(2, most - len(first))
    order = [*first[: max(1, most - 2)], *wrong[: room // 2 + 1], *unsure[: room // 2 + 1], *rest]
    chosen = list(dict.fromkeys(order))[:most]
    return sorted(chosen, key=lambda place: (not correct[place], labels[place].tolist(), place))


@dataclass(frozen=True)
class Change:
    """A way to change an image; `amounts` are evenly spaced, and the middle one changes nothing.

    name: "turn" clockwise in degrees, "shift" to the right in pixels, or "scale" in per cent.
    """

    name: str
    unit: str
    amounts: tuple[float, ...]


def changes_of(width: int) -> tuple[Change, ...]:
    """Return the changes of images of some width: 40° and a fifth of the width each way, 60 to 140 %."""
    steps, pixels = range(-(STOPS // 2), STOPS // 2 + 1), max(1, round(width / 20))
    return (
        Change("turn", "°", tuple(10.0 * k for k in steps)),
        Change("shift", " px", tuple(float(pixels * k) for k in steps)),
        Change("scale", " %", tuple(100.0 + 10 * k for k in steps)),
    )


def change_images(images: Float[Tensor, "b c h w"], name: str, amount: float) -> Float[Tensor, "b c h w"]:
    """Change images about their centre, bilinearly, with the border repeated; `page/turned.js` does the same."""
    height, width = images.shape[2:]
    angle = math.radians(amount) if name == "turn" else 0.0
    zoom = amount / 100 if name == "scale" else 1.0
    shift = amount if name == "shift" else 0.0
    c, s = math.cos(angle) / zoom, math.sin(angle) / zoom
    # From a place in the new image to that in the old one; both axes run from -1 to 1.
    rows = [[c, s * height / width, -2 * shift / width], [-s * width / height, c, 0.0]]
    theta = torch.tensor([rows], dtype=torch.float64).expand(len(images), -1, -1)
    grid = torch.nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid.to(images), padding_mode="border", align_corners=False)


def add_images(model: CapsuleClassifier, seen: SeenImages, arrays: Arrays, prefix: str) -> list[dict[str, Any]]:
    """Add the arrays of each image, named `prefix`/…, and return facts about each."""
    arrays.add(f"{prefix}/images", "u1", seen.images.numpy())
    arrays.add(f"{prefix}/activations", "f4", seen.activations.numpy())
    arrays.add(f"{prefix}/poses", "f4", seen.poses.numpy())
    predicted = seen.predicted
    if model.has_decoder:
        first = predicted[:, 0]
        drawn = decode_poses(model, first, seen.poses[torch.arange(len(first)), first])
        arrays.add(f"{prefix}/drawn", "u1", (drawn.clamp(0, 1) * 255).round().numpy())
    rows = zip(seen.numbers, seen.labels.tolist(), predicted.tolist(), certainty(model, seen), strict=True)
    return [
        {"number": number if number >= 0 else None, "truth": truth, "taken": classes, "predicted": classes[0], **known}
        for number, truth, classes, known in rows
    ]


def certainty(model: CapsuleClassifier, seen: SeenImages) -> list[dict[str, Any]]:
    """Return for each image what is known beside the activations.

    "probability": the calibrated probability of the predicted class. "unlike": why the image is out of distribution, ""
    if it is not. Either is missing where the model was not calibrated or has no detector, and for pairs.
    """
    known: list[dict[str, Any]] = [{} for _ in seen.numbers]
    if seen.labels.shape[1] > 1:
        return known
    chosen = seen.predicted[:, :1]
    if model.calibration is not None:
        probabilities = model.calibration.probabilities(seen.activations).gather(1, chosen)[:, 0].tolist()
        known = [{"probability": round(probability, 4)} for probability in probabilities]
    if (detector := model.ood_detector) is not None and detector.supports(FALSE_POSITIVE_RATE):
        threshold, scores = detector.threshold(FALSE_POSITIVE_RATE), []
        with inference(model) as device:
            for batch in (seen.images.float() / 255).split(BATCH):
                scores.append(predict_with_scores(model, batch.to(device), detector)[1].cpu())
        for own, row, label in zip(known, torch.cat(scores).clone(), chosen[:, 0].tolist(), strict=True):
            own["unlike"] = detector.reason(row, model.classes[label]) if row.max() > threshold else ""
    return known


def add_changes(
    model: CapsuleClassifier,
    images: Float[Tensor, "n c h w"],
    predicted: Int[Tensor, " n"],
    arrays: Arrays,
    prefix: str,
) -> None:
    """Add what the network makes of each changed image: [n stops classes], and [n stops d] of the predicted pose."""
    for number, change in enumerate(changes_of(images.shape[3])):
        activations, poses = [], []
        for amount in change.amounts:
            active, found = encode_images(model, change_images(images, change.name, amount))
            activations.append(active)
            poses.append(found[torch.arange(len(found)), predicted])
        arrays.add(f"{prefix}/changedActivations{number}", "f4", torch.stack(activations, 1).numpy())
        arrays.add(f"{prefix}/changedPoses{number}", "f4", torch.stack(poses, 1).numpy())


def add_routing(model: CapsuleClassifier, seen: SeenImages, arrays: Arrays, prefix: str) -> list[dict[str, Any]]:
    """Add evidence, targets, entropies, votes and couplings of each image; return facts about each routed layer."""
    pairs = zip(seen.images.float() / 255, seen.activations, strict=True)
    routed = [look_at_routing(model, image, active) for image, active in pairs]
    arrays.add(f"{prefix}/shown", "u2", np.array([image.classes for image in routed]))
    facts = []
    for number, layer in enumerate(routed[0].layers):
        evidence = np.stack([255 * image.evidence[number] for image in routed]).round()
        arrays.add(f"{prefix}/evidence{number}", "u1", evidence)
        arrays.add(f"{prefix}/parents{number}", "u2", np.array([image.parents[number] for image in routed]))
        arrays.add(f"{prefix}/entropy{number}", "f4", np.stack([image.layers[number].entropy for image in routed]))
        targets = [image.targets[number] for image in routed]
        arrays.add(f"{prefix}/goals{number}", "u2", np.stack([target.parents for target in targets]))
        arrays.add(f"{prefix}/shares{number}", "u1", np.stack([255 * target.shares for target in targets]).round())
        fields = {part: getattr(layer.fields, part).tolist() for part in ("first", "step", "side")}
        types = layer.evidence.shape[3]
        facts.append({"title": layer.title, "iterations": layer.iterations, "fields": fields, "types": types})
    if facts and routed[0].votes is not None:
        facts[-1]["children"] = routed[0].votes.children
        _add_votes(routed, arrays, prefix)
    return facts


def _add_votes(routed: list[Routed], arrays: Arrays, prefix: str) -> None:
    """Add points in 1/127 of the farthest one, and couplings as roots, so that small ones keep their digits."""
    votes = [image.votes for image in routed if image.votes is not None]
    arrays.add(f"{prefix}/points", "i1", np.stack([127 * vote.points for vote in votes]).round())
    arrays.add(f"{prefix}/means", "f4", np.stack([vote.means for vote in votes]))
    arrays.add(f"{prefix}/couplings", "u1", np.stack([255 * np.sqrt(vote.couplings) for vote in votes]).round())
    arrays.add(f"{prefix}/spread", "f4", np.stack([vote.spread for vote in votes]))
    arrays.add(f"{prefix}/parts", "u2", np.stack([vote.positions for vote in votes]))

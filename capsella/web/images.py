"""The images of a page: their choice, their class capsules, changed versions of them, and their routing."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from capsella.data import LabelledImages, evenly
from capsella.errors import check_minimum
from capsella.layers import CapsuleConv2d
from capsella.losses import top_classes
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.inference import inference, predict_with_scores
from capsella.report.routing_views import routed_layers, strongest_path
from capsella.types import Capsules
from capsella.uncertainty import FALSE_POSITIVE_RATE
from capsella.web.arrays import Arrays
from capsella.web.decoders import why_no_dials
from capsella.web.routing_view import MAX_CLASSES, ClassVotes, class_votes, evidence_for, targets_of

BATCH = 64
SURE = 0.5  # the page calls a capsule sure from this activation on
STOPS = 9  # number of amounts of each change


@dataclass(frozen=True)
class EncodedImages:
    """Images with the class capsules that a network computed from them.

    Attributes:
        images: pixels, 0..255.
        labels: the k true classes of each image; k is 1, or 2 for pairs, or 0 if they are unknown.
        numbers: index of each image in the test set; -1 for an image that is not in it.
        test_size: number of images in the test set.
        activations: activations of the class capsules.
        poses: poses of the class capsules.
    """

    images: UInt8[Tensor, "n c h w"]
    labels: Int[Tensor, "n k"]
    numbers: tuple[int, ...]
    test_size: int
    activations: Float[Tensor, "n classes"]
    poses: Float[Tensor, "n classes d"]

    def take(self, places: list[int]) -> "EncodedImages":
        """Return the images at these positions."""
        index, numbers = torch.tensor(places), tuple(self.numbers[place] for place in places)
        images, labels = self.images[index], self.labels[index]
        return EncodedImages(images, labels, numbers, self.test_size, self.activations[index], self.poses[index])

    @property
    def predicted(self) -> Int[Tensor, "n k"]:
        """The predicted class, or for pairs the two predicted classes, most active first."""
        return top_classes(self.activations, max(1, self.labels.shape[1]))

    @property
    def correct(self) -> Bool[Tensor, " n"]:
        """True for each image whose prediction is correct."""
        return (self.predicted.sort(1).values == self.labels.sort(1).values).all(1)

    def shows_same(self, other: "EncodedImages") -> bool:
        """Return True if both contain the same images, whatever their capsules."""
        same = torch.equal(self.images, other.images) and torch.equal(self.labels, other.labels)
        return self.numbers == other.numbers and same


def encode(
    model: CapsuleClassifier,
    images: UInt8[Tensor, "n c h w"],
    labels: Int[Tensor, " n *k"],
    numbers: tuple[int, ...],
    test_size: int,
) -> EncodedImages:
    """Encode images with a network."""
    labels = labels.reshape(len(images), -1)
    return EncodedImages(images, labels, numbers, test_size, *encode_images(model, images.float() / 255))


def encode_test_images(model: CapsuleClassifier, test: LabelledImages, most: int = 500) -> EncodedImages:
    """Encode at most `most` test images, spread evenly over the set, with a network."""
    numbers = evenly(len(test), most)
    batch = test.take(numbers)  # a set of pairs can have ten million, which are generated on demand
    return encode(model, batch.images, batch.labels, tuple(numbers.tolist()), len(test))


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
    """Return the reconstruction from each pose, as that of the class capsule in `targets`; other classes are masked.

    Raises:
        CapsellaError: the model has no decoder.
    """
    grid = torch.zeros(len(poses), 1, 1, len(model.classes), poses.shape[1])
    grid[torch.arange(len(poses)), 0, 0, targets] = poses
    with inference(model) as device:
        capsules = Capsules(grid.to(device), grid.norm(dim=4).to(device))
        return model.decode(capsules, targets.to(device)).float().cpu().clone()


def choose_images(seen: EncodedImages, most: int) -> list[int]:
    """Return the positions of images for a page: the surest correct one per class, mistakes, uncertain ones, others.

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
        """Return the number of earlier images of the same class; mistakes come last."""
        return int((labels[:place, 0] == labels[place, 0]).sum()) + (0 if correct[place] else len(labels))

    rest = sorted(range(len(labels)), key=lambda place: (rank(place), labels[place].tolist()))
    room = max(2, most - len(first))
    order = [*first[: max(1, most - 2)], *wrong[: room // 2 + 1], *unsure[: room // 2 + 1], *rest]
    chosen = list(dict.fromkeys(order))[:most]
    return sorted(chosen, key=lambda place: (not correct[place], labels[place].tolist(), place))


@dataclass(frozen=True)
class Change:
    """A kind of change of images, with evenly spaced amounts, of which the middle one changes nothing.

    name: "turn" (clockwise, in degrees), "shift" (to the right, in pixels) or "scale" (in per cent).
    """

    name: str
    unit: str
    amounts: tuple[float, ...]


def changes_of(width: int) -> tuple[Change, ...]:
    """Return the changes for images of this width: up to 40° and a fifth of the width each way, and 60 to 140 %."""
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
    # Maps positions of the new image to the old one; both axes run from -1 to 1.
    rows = [[c, s * height / width, -2 * shift / width], [-s * width / height, c, 0.0]]
    theta = torch.tensor([rows], dtype=torch.float64).expand(len(images), -1, -1)
    grid = torch.nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid.to(images), padding_mode="border", align_corners=False)


def add_images(model: CapsuleClassifier, seen: EncodedImages, arrays: Arrays, prefix: str) -> list[dict[str, Any]]:
    """Add the arrays of the images, named `prefix`/…, and return JSON values for each image."""
    arrays.add(f"{prefix}/images", "u1", seen.images.numpy())
    arrays.add(f"{prefix}/activations", "f4", seen.activations.numpy())
    arrays.add(f"{prefix}/poses", "f4", seen.poses.numpy())
    predicted = seen.predicted
    if not why_no_dials(model):
        first = predicted[:, 0]
        drawn = decode_poses(model, first, seen.poses[torch.arange(len(first)), first])
        arrays.add(f"{prefix}/drawn", "u1", (drawn.clamp(0, 1) * 255).round().numpy())
    rows = zip(seen.numbers, seen.labels.tolist(), predicted.tolist(), certainty(model, seen), strict=True)
    return [
        {"number": number if number >= 0 else None, "truth": truth, "taken": classes, "predicted": classes[0], **known}
        for number, truth, classes, known in rows
    ]


def certainty(model: CapsuleClassifier, seen: EncodedImages) -> list[dict[str, Any]]:
    """Return for each image its calibrated probability and the result of the OOD check.

    "probability": of the predicted class. "unlike": the reason why the image is out of distribution; "" if it is not.
    The first is missing for a model without calibration, the second without OOD detector, and both for pairs.
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
            is_ood = float(row.max()) > threshold
            own["unlike"] = detector.reason(row, model.classes[label], FALSE_POSITIVE_RATE) if is_ood else ""
    return known


def add_changes(
    model: CapsuleClassifier,
    images: Float[Tensor, "n c h w"],
    predicted: Int[Tensor, " n"],
    arrays: Arrays,
    prefix: str,
    cnn: ImageClassifier | None = None,
) -> None:
    """Add activations [n stops classes], and poses of the predicted class [n stops d], for each kind of change.

    cnn: a CNN whose activations for the same changed images are added, too.
    """
    for number, change in enumerate(changes_of(images.shape[3])):
        changed = [change_images(images, change.name, amount) for amount in change.amounts]
        activations, poses = zip(*(encode_images(model, version) for version in changed), strict=True)
        of_predicted = torch.stack(poses, 1)[torch.arange(len(images)), :, predicted]
        arrays.add(f"{prefix}/changedActivations{number}", "f4", torch.stack(activations, 1).numpy())
        arrays.add(f"{prefix}/changedPoses{number}", "f4", of_predicted.numpy())
        if cnn is not None:
            with inference(cnn) as device:
                active = [cnn(version.to(device)).activations.float().cpu() for version in changed]
            arrays.add(f"{prefix}/cnnActivations{number}", "f4", torch.stack(active, 1).numpy())


def add_routing(model: CapsuleClassifier, seen: EncodedImages, arrays: Arrays, prefix: str) -> list[dict[str, Any]]:
    """Add evidence, targets, entropies, votes and couplings of each image; return JSON values for each routed layer."""
    classes = [top_classes(active, MAX_CLASSES).tolist() for active in seen.activations]
    arrays.add(f"{prefix}/shown", "u2", np.array(classes))
    images = list(seen.images.float() / 255)
    layers = [routed_layers(model, image) for image in images]
    facts: list[dict[str, Any]] = []
    for number, layer in enumerate(layers[0]):
        of_images = [own[number] for own in layers]
        parents = [[strongest_path(own, k)[number] for k in shown] for own, shown in zip(layers, classes, strict=True)]
        evidence = np.stack([evidence_for(*pair) for pair in zip(of_images, parents, strict=True)])
        goals, shares = zip(*map(targets_of, of_images), strict=True)
        arrays.add(f"{prefix}/evidence{number}", "u1", (255 * evidence).round())
        arrays.add(f"{prefix}/parents{number}", "u2", np.array(parents))
        arrays.add(f"{prefix}/entropy{number}", "f4", np.stack([own.entropy for own in of_images]))
        arrays.add(f"{prefix}/goals{number}", "u2", np.stack(goals))
        arrays.add(f"{prefix}/shares{number}", "u1", (255 * np.stack(shares)).round())
        fields = {part: getattr(layer.fields, part).tolist() for part in ("first", "step", "side")}
        types = layer.evidence.shape[3]
        facts.append({"title": layer.title, "iterations": layer.iterations, "fields": fields, "types": types})
    if facts and isinstance(model.capsule_layers[-1], CapsuleConv2d):
        votes = [class_votes(model, *pair) for pair in zip(images, classes, strict=True)]
        facts[-1]["children"] = votes[0].children
        _add_votes(votes, arrays, prefix)
    return facts


def _add_votes(votes: list[ClassVotes], arrays: Arrays, prefix: str) -> None:
    """Add points in units of 1/127 of the rim, and square roots of couplings, so that small ones keep precision."""
    arrays.add(f"{prefix}/points", "i1", np.stack([127 * vote.points for vote in votes]).round())
    arrays.add(f"{prefix}/means", "f4", np.stack([vote.means for vote in votes]))
    arrays.add(f"{prefix}/couplings", "u1", np.stack([255 * np.sqrt(vote.couplings) for vote in votes]).round())
    arrays.add(f"{prefix}/spread", "f4", np.stack([vote.spread for vote in votes]))
    arrays.add(f"{prefix}/parts", "u2", np.stack([vote.positions for vote in votes]))

"""Images decoded from class capsules: reconstructions, dimension tweaks, and overlaid pairs."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from matplotlib.figure import Figure
from torch import Tensor

from capsella.data import PairSet
from capsella.errors import check_argument, check_minimum
from capsella.evaluation import Evaluation
from capsella.layers import CapsuleConv2d
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.inference import check_decoder, inference
from capsella.report.image_figures import columns_figure, two_colours
from capsella.routing import LogisticRouting
from capsella.types import Capsules

OFFSETS = tuple(step / 20 for step in range(-5, 6))  # −0.25, −0.20, … 0.25, as in the paper's figure
MOST_ELEMENTS = 16  # pose elements shown in a picture; CapsNet has 16, Forslöv's networks up to 96
# The rows of `decode_pairs`.
PAIR_ROWS = ("input", "its two\nimages", "from the\npredicted", "from the\ntrue classes", "from two\nothers")


class Reconstructions(NamedTuple):
    """Reconstructions in [0, 1] from the capsules of the true and of the predicted class."""

    from_true: Float[Tensor, "n c h w"]
    from_predicted: Float[Tensor, "n c h w"]
    predictions: Int[Tensor, " n"]


def reconstruct(model: ImageClassifier, images: Float[Tensor, "n c h w"], labels: Int[Tensor, " n"]) -> Reconstructions:
    """Decode each image in [0, 1] from the capsule of its true class, and from that of the predicted one.

    The two differ only for mistakes, where the second shows what the model saw in the image.
    """
    check_decoder(model, "reconstructions")
    model.check_images(images)
    check_argument(labels.shape == images.shape[:1], f"be [n] = ({len(images)},)", labels=tuple(labels.shape))
    with inference(model) as device:
        capsules = model.encode(images.to(device))
        predictions = capsules.activations[:, 0, 0].argmax(1)
        from_true = model.decode(capsules, labels.to(device))
        from_predicted = model.decode(capsules, predictions)
    # Cloned outside inference mode, so that they are ordinary tensors.
    return Reconstructions(
        from_true.float().cpu().clone(), from_predicted.float().cpu().clone(), predictions.cpu().clone()
    )


def share_nearest_own(
    model: ImageClassifier, images: Integer[Tensor, "n c h w"], labels: Int[Tensor, " n"], batch_size: int = 64
) -> float:
    """Return the proportion of reconstructions that are nearer to their own image than to any other, by pixels.

    Images are decoded from the capsule of the true class. Chance is 1/n; a decoder that draws one picture per class is
    right for one image of each.

    Args:
        images: grey levels 0 to 255.
        batch_size: images decoded and compared at a time.
    """
    check_argument(len(images) > 0, "be at least one", images=len(images))
    right = 0
    for first in range(0, len(images), batch_size):
        part = slice(first, first + batch_size)
        decoded = reconstruct(model, images[part].float() / 255, labels[part]).from_true.flatten(1)
        distances = [torch.cdist(decoded, some.flatten(1).float() / 255) for some in images.split(batch_size)]
        own = torch.arange(first, first + len(decoded))
        right += int((torch.cat(distances, 1).argmin(1) == own).sum())
    return right / len(images)


def pick_examples(evaluation: Evaluation, right: int = 6, wrong: int = 6) -> Int[Tensor, " picked"]:
    """Return the indices of up to `right` correct images, then of up to `wrong` mistakes, the most confident first.

    Correct ones are not hand-picked: the first of each class in the order of the set, then the second of each. A pair
    counts for the class of its first image.
    """
    correct = evaluation.correct.nonzero()[:, 0]
    labels = evaluation.labels.reshape(len(evaluation.labels), -1)[:, 0]
    turn = torch.zeros_like(labels)  # [n]: the position among the correct images of its class
    for label in range(len(evaluation.classes)):
        of_class = correct[labels[correct] == label]
        turn[of_class] = torch.arange(len(of_class))
    by_turn = correct[(turn[correct] * len(evaluation.classes) + labels[correct]).argsort()]
    return torch.cat([by_turn[:right], evaluation.mistakes()[:wrong]])


def pair_name(names: tuple[str, ...], classes: Integer[Tensor, "*k"]) -> str:
    """Return the name of one class, or those of two, as in 3 + 8."""
    return " + ".join(names[k] for k in classes.flatten().tolist())


# Dimension tweaks (Sabour et al. 2017, section 5.1, Fig. 4)


def dial_range(model: ImageClassifier) -> float:
    """Return the largest offset of a pose element in either direction.

    0.25 (Sabour et al. 2017, Fig. 4); 0.4 for Forslöv's networks with dynamic routing; 5 for class capsules of EM or
    another Gaussian routing, whose poses no squash keeps below 1 (Forslöv 2018, Figures 35 and 36).
    """
    if isinstance(model, CapsuleClassifier) and isinstance(model.class_routing, LogisticRouting):
        return 5.0
    return 0.4 if model.name.startswith("forslov2018_") else 0.25


def dial_names(model: ImageClassifier, d: int) -> list[str]:
    """Return names for d pose elements: row and column for a matrix pose, otherwise numbers from 1."""
    last = model.capsule_layers[-1] if isinstance(model, CapsuleClassifier) else None
    if isinstance(last, CapsuleConv2d) and last.geometry.matrix:
        n = math.isqrt(d)
        return [f"row {k // n + 1}, column {k % n + 1}" for k in range(d)]
    return [f"number {k + 1}" for k in range(d)]


def offsets_across(model: ImageClassifier, steps: int = 11) -> tuple[float, ...]:
    """Return `steps` evenly spaced offsets over `dial_range`, with zero in the middle."""
    check_argument(steps >= 3 and steps % 2 == 1, "be odd and at least 3", steps=steps)
    half, most = steps // 2, dial_range(model)
    return tuple(most * step / half for step in range(-half, half + 1))


def largest_elements(
    model: ImageClassifier, image: Float[Tensor, "c h w"], target: int | None = None, most: int = MOST_ELEMENTS
) -> list[int]:
    """Return the ascending indices of the `most` pose elements of a class capsule that are largest in magnitude."""
    check_minimum(1, most=most)
    _check_tweaks(model, image, target)
    with inference(model) as device:
        poses, activations = model.encode(image.unsqueeze(0).to(device))
        pose = poses[0, 0, 0, int(activations.argmax()) if target is None else target]
        return sorted(pose.abs().topk(min(most, len(pose))).indices.tolist())


def dimension_tweaks(
    model: ImageClassifier,
    image: Float[Tensor, "c h w"],
    target: int | None = None,
    offsets: Sequence[float] = OFFSETS,
    elements: Sequence[int] | None = None,
) -> Float[Tensor, "d offsets c h w"]:
    """Decode a class capsule of `image` with each pose element moved by each offset in turn.

    Args:
        model: a capsule network with a decoder.
        image: in [0, 1].
        target: index of the class; None takes the predicted one.
        offsets: added to the pose element; zero gives the plain reconstruction.
        elements: indices of the pose elements to move; None takes all.

    Returns:
        Reconstructions on the CPU: a row for each pose element, a column for each offset.
    """
    _check_tweaks(model, image, target)
    check_argument(len(offsets) > 0, "hold at least one number", offsets=offsets)
    with inference(model) as device:
        poses, activations = model.encode(image.unsqueeze(0).to(device))  # [1 1 1 classes d], [1 1 1 classes]
        if target is None:
            target = int(activations.argmax())
        count, d = len(offsets), poses.shape[-1]
        targets = torch.full((count,), target, device=device)
        elements = range(d) if elements is None else elements
        inside = bool(elements) and 0 <= min(elements) <= max(elements) < d
        check_argument(inside, f"be at least one index in 0…{d - 1}", elements=list(elements))
        rows = []
        for element in elements:
            moved = poses.repeat(count, 1, 1, 1, 1)
            moved[:, 0, 0, target, element] += torch.tensor(offsets).to(moved)
            rows.append(model.decode(Capsules(moved, activations.expand(count, -1, -1, -1)), targets).float().cpu())
    return torch.stack(rows).clone()


def row_changes(grid: Float[Tensor, "d offsets c h w"]) -> Float[Tensor, " d"]:
    """Return how much each pose element changes the image: mean absolute difference between the outermost offsets."""
    return (grid[:, -1] - grid[:, 0]).abs().mean((1, 2, 3))


def _check_tweaks(model: ImageClassifier, image: Tensor, target: int | None) -> None:
    check_decoder(model, "dimension tweaks")
    model.check_images(image.unsqueeze(0))
    last = len(model.classes) - 1
    check_argument(target is None or 0 <= target <= last, f"be a class index in 0…{last}", target=target)


# Overlaid pairs


def decode_pairs(
    model: ImageClassifier, pairs: PairSet, evaluation: Evaluation, picked: Integer[Tensor, " picked"]
) -> list[Float[np.ndarray, "n 3 h w"]]:
    """Return some pairs, their two images, and both reconstructions from three choices of classes; see `PAIR_ROWS`.

    The first image and its reconstruction are orange, the second blue (Sabour et al. 2017, Figure 5). The last choice
    is a control: the two most active classes that are neither true nor predicted. A network that fits any class to any
    image reproduces the image there too.
    """
    check_decoder(model, "reconstructions")
    images, labels, parts = pairs.take(picked)
    assert parts is not None
    predictions = evaluation.predictions[picked]
    strength = evaluation.activations[picked].scatter(1, torch.cat([labels, predictions], 1), -torch.inf)
    others = strength.topk(2, 1)
    with inference(model) as device:
        capsules = model.encode(images.float().to(device) / 255)
        decoded = [
            torch.stack([model.decode(capsules, column.to(device)).float().cpu() for column in classes.unbind(1)], 1)
            for classes in (predictions, labels, others.indices)
        ]
    decoded[2] = decoded[2] * (others.values > -torch.inf)[:, :, None, None, None]  # blank if there is no other class
    plain = np.repeat(images.numpy() / 255, 3, 1)
    return [plain, two_colours(parts.numpy() / 255), *(two_colours(both.numpy()) for both in decoded)]


def pairs_figure(
    model: ImageClassifier, pairs: PairSet, evaluation: Evaluation, picked: Integer[Tensor, " picked"]
) -> Figure:
    """Draw pairs above their reconstructions (Sabour et al. 2017, Figure 5)."""
    true, predicted = (
        [pair_name(pairs.classes, both) for both in classes[picked]]
        for classes in (evaluation.labels, evaluation.predictions)
    )
    return columns_figure(decode_pairs(model, pairs, evaluation, picked), PAIR_ROWS, true, predicted)

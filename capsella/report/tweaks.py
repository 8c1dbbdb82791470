"""What each number of a class capsule stands for: move it, decode, look (Sabour et al. 2017, section 5.1, Fig. 4)."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import ArgumentError, check_minimum
from capsella.layers import CapsuleConv2d
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.models.inference import check_decoder, inference
from capsella.routing import LogisticRouting
from capsella.types import Capsules

OFFSETS = tuple(step / 20 for step in range(-5, 6))  # −0.25, −0.20, … 0.25, as in the paper's figure
MOST_ELEMENTS = 16  # of a pose in a picture; CapsNet has 16, the thesis's networks up to 96


def row_changes(grid: Float[Tensor, "d offsets c h w"]) -> Float[Tensor, " d"]:
    """How much moving each number changes the picture: the mean absolute difference of its outermost two."""
    return (grid[:, -1] - grid[:, 0]).abs().mean((1, 2, 3))


def dial_range(model: ImageClassifier) -> float:
    """How far a pose element is moved either way to see what it stands for.

    0.25 (Sabour et al. 2017, Fig. 4); 0.4 for Forslöv's networks with dynamic routing, and 5 where EM routes the class
    capsules (Forslöv 2018, Figures 35 and 36), or another routing by Gaussians: no squash holds those poses below 1.
    """
    if isinstance(model, CapsuleClassifier) and isinstance(model.class_routing, LogisticRouting):
        return 5.0
    return 0.4 if model.name.startswith("forslov2018_") else 0.25


def dial_names(model: ImageClassifier, d: int) -> list[str]:
    """What the d dials of a capsule are called: by row and column of a matrix pose, else by number from 1."""
    last = model.capsule_layers[-1] if isinstance(model, CapsuleClassifier) else None
    if isinstance(last, CapsuleConv2d) and last.geometry.matrix:
        n = math.isqrt(d)
        return [f"row {k // n + 1}, column {k % n + 1}" for k in range(d)]
    return [f"number {k + 1}" for k in range(d)]


def offsets_across(model: ImageClassifier, steps: int = 11) -> tuple[float, ...]:
    """`steps` evenly spaced offsets through `dial_range`, zero in the middle; 11 for the papers' figures.

    Raises:
        ValueError: an even number of steps, or fewer than three.
    """
    if steps < 3 or steps % 2 == 0:
        raise ArgumentError("steps", "be odd and at least 3, so that zero is among the offsets", steps)
    half, most = steps // 2, dial_range(model)
    return tuple(most * step / half for step in range(-half, half + 1))


def largest_elements(
    model: ImageClassifier, image: Float[Tensor, "c h w"], target: int | None = None, most: int = MOST_ELEMENTS
) -> list[int]:
    """Indices, ascending, of the pose elements of one class capsule that are largest in size: all where `most` are.

    Args: as for `dimension_tweaks`; most: how many, at least 1.

    Raises:
        ValueError: a model without a decoder, an image of another shape, a target outside the classes, none wanted.
    """
    check_minimum(1, most=most)
    _check(model, image, target)
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
    """Decode one class capsule of `image` with each of its d pose elements moved by each offset in turn.

    Args:
        model: a capsule network with a decoder.
        image: [c h w] in [0, 1].
        target: index of the class whose capsule is moved; None takes the longest, the prediction.
        offsets: what is added to the pose element; zero shows the plain reconstruction.
        elements: indices of the pose elements to move; None takes all.

    Returns:
        [d offsets c h w] on the CPU: a row a pose element, a column an offset.

    Raises:
        ValueError: a model without a decoder, an image of another shape, no such target or elements, no offsets.
    """
    _check(model, image, target)
    if len(offsets) == 0:
        raise ArgumentError("offsets", "hold at least one number", None)
    with inference(model) as device:
        poses, activations = model.encode(image.unsqueeze(0).to(device))  # [1 1 1 classes d], [1 1 1 classes]
        if target is None:
            target = int(activations.argmax())
        count, d = len(offsets), poses.shape[-1]
        targets = torch.full((count,), target, device=device)
        elements = range(d) if elements is None else elements
        if not elements or min(elements) < 0 or max(elements) >= d:
            raise ArgumentError("elements", f"be at least one index in 0…{d - 1}", list(elements))
        rows = []
        for element in elements:
            moved = poses.repeat(count, 1, 1, 1, 1)
            moved[:, 0, 0, target, element] += torch.tensor(offsets).to(moved)
            rows.append(model.decode(Capsules(moved, activations.expand(count, -1, -1, -1)), targets).float().cpu())
    return torch.stack(rows).clone()


def _check(model: ImageClassifier, image: Tensor, target: int | None) -> None:
    check_decoder(model, "dimension tweaks")
    model.check_images(image.unsqueeze(0))
    if target is not None and not 0 <= target < len(model.classes):
        raise ArgumentError("target", f"be a class index in 0…{len(model.classes) - 1}", target)

"""Holding images out, a share or a fold: class by class, whole groups only, the same for the same seed.

scikit-learn's stratified splitters refuse a share smaller than one image a class, and its group splitters may leave a
class on one side only; both are the rule with small sets of one's own, so this module has a splitter of its own.
"""

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from capsella.data.images import ImageSet
from capsella.errors import CapsellaError, pluralize

TOGETHER = "on one side"
"""What an `ImageSet` calls, among its metadata, the numbers of groups joined by the copies of an image: no patients."""

_TIE = 1e-9  # rounding errors must not decide between two equally good parts


def hold_out(images: ImageSet, share: float, seed: int, keep: int = 1) -> tuple[ImageSet, ImageSet]:
    """Part a set in two, so that each class is on both sides, with about `share` of its images in the second.

    Images with the same number in `metadata["group"]` stay together, or in `metadata[TOGETHER]`, which joins groups by
    the copies of an image.

    Args:
        images: the set; its order is kept within each side.
        share: of each class's images, between 0 and 1; at least one image of each class is taken.
        seed: the same seed gives the same parts.
        keep: images, or groups, of each class that must be kept: 2 where they are parted once more.

    Returns:
        (what is kept, what is held out).

    Raises:
        CapsellaError: a class has no image more than `keep`, or its groups cannot be parted without tearing one.
    """
    held = _held(images, torch.arange(len(images)), share, seed, keep)
    return images.subset((~held).nonzero().flatten()), images.subset(held.nonzero().flatten())


def hold_out_fold(images: ImageSet, folds: int, fold: int, seed: int) -> tuple[ImageSet, ImageSet]:
    """Part a set in `folds` parts of about the same size, so that each class is in every part; hold out one of them.

    Images stay together as in `hold_out`. The parts follow from `folds` and `seed` alone:
    each image is in exactly one of them. The first is what `hold_out` takes as a share of 1 / `folds`.

    Returns:
        (what is kept, what is held out).

    Raises:
        CapsellaError: a class has fewer images than folds, or fewer groups, or cannot be parted without tearing one.
    """
    groups, what, note = _groups(images)
    units = torch.arange(len(images)) if groups is None else groups
    for label, name in enumerate(images.classes):
        count = len(units[images.labels == label].unique())
        if 0 < count < folds:
            raise CapsellaError(
                f"folds: must be at most the number of {what}s of every class, but the class {name!r} has "
                f"{pluralize(count, what)}{note} for {folds} folds; "
                "take fewer folds, add images, or leave the class out"
            )
    parts, rest = [], torch.arange(len(images))
    for left in range(folds - 1, 0, -1):  # all of them: what is wrong with one shows before any is trained on
        chosen = _held(images, rest, 1 / (left + 1), seed, keep=left)
        parts.append(rest[chosen])
        rest = rest[~chosen]
    held = [*parts, rest][fold]
    is_held = torch.zeros(len(images), dtype=torch.bool)
    is_held[held] = True
    return images.subset((~is_held).nonzero().flatten()), images.subset(held)


def first_per_class(images: ImageSet, number: int, seed: int) -> ImageSet:
    """At most `number` images a class, drawn by seed; a smaller number draws a part of what a larger one draws."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(images)))
    drawn = [order[images.labels[order] == label][:number] for label in range(len(images.classes))]
    return images.subset(torch.cat(drawn).sort().values)


def _groups(images: ImageSet) -> tuple[Int64[Tensor, " n"] | None, str, str]:
    """Numbers of what stays together, if anything does; what one of them is called; and a note on copies."""
    groups = images.metadata.get(TOGETHER, images.metadata.get("group"))
    note = " (copies of an image are in one)" if TOGETHER in images.metadata else ""
    return groups, "image" if groups is None else "group", note


def _held(images: ImageSet, among: Int64[Tensor, " n"], share: float, seed: int, keep: int) -> Bool[Tensor, " n"]:
    """Which of the images at `among` to hold out; `keep` groups of each class at least stay.

    Raises:
        CapsellaError: a class would be on one side only.
    """
    labels = images.labels[among].cpu().numpy()
    groups, what, note = _groups(images)
    # Without groups, each image is one of its own.
    units = np.arange(len(labels)) if groups is None else np.unique(groups[among].cpu().numpy(), return_inverse=True)[1]
    counts = np.zeros((units.max(initial=-1) + 1, len(images.classes)), dtype=np.int64)  # images of each class in each
    np.add.at(counts, (units, labels), 1)
    held = _choose_units(counts, share, np.random.default_rng(seed), keep)
    for label in np.flatnonzero(counts.sum(axis=0)):
        here = counts[:, label] > 0
        if held[here].all() or not held[here].any():
            raise CapsellaError(
                f"the class {images.classes[label]!r} has {pluralize(int(here.sum()), what)} to part{note}; holding "
                f"some out for validation or test needs at least {keep + 1} {what}s of each class that no other class "
                "depends on: add images, leave the class out, or say which image goes where"
            )
    return torch.from_numpy(held[units])


def _choose_units(
    counts: Int[np.ndarray, "units classes"], share: float, rng: np.random.Generator, keep: int
) -> Bool[np.ndarray, " units"]:
    """Which groups to hold out: classes of few groups first, at random, while that brings the shares nearer.

    A class whose every group is larger than that gives its smallest one. No class gives its last `keep`.
    """
    total = counts.sum(axis=0)
    present = total > 0
    held = np.zeros(len(counts), dtype=bool)
    taken = np.zeros_like(total)
    has = counts > 0
    left = has.sum(axis=0)  # groups of each class that are not held out

    def distance(taken: Int[np.ndarray, " classes"]) -> float:
        return float(np.abs(taken[present] / total[present] - share).sum())

    def may_give(unit: int) -> bool:
        return bool((left > keep)[has[unit]].all())

    for label in np.argsort(has.sum(axis=0), kind="stable"):
        candidates = rng.permutation(np.flatnonzero(has[:, label] & ~held))
        for unit in candidates:
            if taken[label] >= share * total[label]:
                break
            after = taken + counts[unit]
            if may_give(unit) and distance(after) < distance(taken) - _TIE:
                held[unit], taken = True, after
                left -= has[unit]
        smallest_first = candidates[np.argsort(counts[candidates, label], kind="stable")]
        for unit in smallest_first:
            if taken[label] == 0 and may_give(unit):
                held[unit], taken = True, taken + counts[unit]
                left -= has[unit]
    return held

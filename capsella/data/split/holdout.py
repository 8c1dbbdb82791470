"""Holding images out: class by class, whole groups only, the same for the same seed.

scikit-learn's stratified splitters refuse a share smaller than one image a class, and its group splitters may leave a
class on one side only; both are the rule with small sets of one's own, so this module has a splitter of its own.
"""

import numpy as np
import torch
from jaxtyping import Bool, Int

from capsella.data.images import ImageSet
from capsella.errors import CapsellaError, counted

TOGETHER = "on one side"
"""What an `ImageSet` calls, among its metadata, the numbers of groups joined by the copies of an image: no patients."""

_TIE = 1e-9  # rounding errors must not decide between two equally good parts


def hold_out(images: ImageSet, share: float, seed: int) -> tuple[ImageSet, ImageSet]:
    """Part a set in two, so that each class is on both sides, with about `share` of its images in the second.

    Images with the same number in `metadata["group"]` stay together, or in `metadata[TOGETHER]`, which joins groups by
    the copies of an image.

    Args:
        images: the set; its order is kept within each side.
        share: of each class's images, between 0 and 1; at least one image of each class is taken.
        seed: the same seed gives the same parts.

    Returns:
        (what is kept, what is held out).

    Raises:
        CapsellaError: a class has fewer than 2 images, or its groups cannot be parted without tearing one.
    """
    labels = images.labels.cpu().numpy()
    groups = images.metadata.get(TOGETHER, images.metadata.get("group"))
    # Without groups, each image is one of its own.
    units = np.arange(len(labels)) if groups is None else np.unique(groups.cpu().numpy(), return_inverse=True)[1]
    what = "image" if groups is None else "group"
    counts = np.zeros((units.max(initial=-1) + 1, len(images.classes)), dtype=np.int64)  # images of each class in each
    np.add.at(counts, (units, labels), 1)
    held = _choose_units(counts, share, np.random.default_rng(seed))
    for label in np.flatnonzero(counts.sum(axis=0)):
        here = counts[:, label] > 0
        if held[here].all() or not held[here].any():
            note = " (copies of an image are in one)" if TOGETHER in images.metadata else ""
            raise CapsellaError(
                f"the class {images.classes[label]!r} has {counted(int(here.sum()), what)} to part{note}; holding some "
                f"out for validation or test needs at least 2 {what}s of each class that no other class depends on: "
                "add images, leave the class out, or say which image goes where"
            )
    chosen = torch.from_numpy(held[units])
    return images.subset(torch.nonzero(~chosen).flatten()), images.subset(torch.nonzero(chosen).flatten())


def first_per_class(images: ImageSet, number: int, seed: int) -> ImageSet:
    """At most `number` images a class, drawn by seed; a smaller number draws a part of what a larger one draws."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(images)))
    drawn = [order[images.labels[order] == label][:number] for label in range(len(images.classes))]
    return images.subset(torch.cat(drawn).sort().values)


def _choose_units(
    counts: Int[np.ndarray, "units classes"], share: float, rng: np.random.Generator
) -> Bool[np.ndarray, "units"]:
    """Which groups to hold out: classes of few groups first, at random, while that brings the shares nearer.

    A class whose every group is larger than that gives its smallest one. No class gives its last.
    """
    total = counts.sum(axis=0)
    present = total > 0
    held = np.zeros(len(counts), dtype=bool)
    taken = np.zeros_like(total)

    def distance(taken: Int[np.ndarray, "classes"]) -> float:
        return float(np.abs(taken[present] / total[present] - share).sum())

    def leaves_one(taken: Int[np.ndarray, "classes"]) -> bool:
        return bool((taken < total)[present].all())

    for label in np.argsort((counts > 0).sum(axis=0), kind="stable"):
        candidates = rng.permutation(np.flatnonzero((counts[:, label] > 0) & ~held))
        for unit in candidates:
            if taken[label] >= share * total[label]:
                break
            after = taken + counts[unit]
            if leaves_one(after) and distance(after) < distance(taken) - _TIE:
                held[unit], taken = True, after
        smallest_first = candidates[np.argsort(counts[candidates, label], kind="stable")]
        for unit in smallest_first:
            if taken[label] == 0 and leaves_one(taken + counts[unit]):
                held[unit], taken = True, taken + counts[unit]
    return held

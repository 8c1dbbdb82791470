"""Hold out a fraction or a fold, as arrays of indices: per class, groups as a whole, reproducible from a seed.

scikit-learn's stratified splitters refuse a fraction below one image per class, and its group splitters may put a whole
class on one side. Both are common with small sets, hence this splitter.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from capsella.data.images import ImageSet
from capsella.errors import CapsellaError, pluralize

_TIE = 1e-9  # rounding errors must not decide between two equally good splits


class Items(NamedTuple):
    """The labels and groups of images to divide.

    labels: class of each image. classes: names of the classes. groups: images with the same number, e.g. of a patient,
    or copies of one image, stay together; None if each image is independent.
    """

    labels: Int64[Tensor, " n"]
    classes: tuple[str, ...]
    groups: Int64[Tensor, " n"] | None = None

    @classmethod
    def of(cls, images: ImageSet) -> "Items":
        """Return the items of a set; groups are those of the metadata `copies` or else `group`."""
        return cls(images.labels, images.classes, images.metadata.get("copies", images.metadata.get("group")))

    def count_of(self, number: int) -> str:
        """Return a number of units, images or groups, as text for errors."""
        groups = f"{pluralize(number, 'group')} (--group, or copies of an image)"
        return pluralize(number, "image") if self.groups is None else groups


Divided = tuple[Int64[Tensor, " k"], Int64[Tensor, " m"]]  # indices kept, indices held out


def hold_out(
    items: Items, fraction: float, seed: int, keep: int = 1, among: Int64[Tensor, " k"] | None = None
) -> Divided:
    """Return indices kept and held out, with each class in both and about `fraction` of it held out.

    Args:
        items: the images.
        fraction: fraction of each class's images, between 0 and 1; at least one image of each class is held out.
        seed: the same seed gives the same division.
        keep: number of images, or groups, of each class that must be kept; 2 if they are divided again.
        among: the indices to divide, whose order is kept; None for all.

    Raises:
        CapsellaError: a class has only `keep` images, or its groups cannot be divided.
    """
    among = torch.arange(len(items.labels)) if among is None else among
    held = _held(items, among, fraction, seed, keep)
    return among[~held], among[held]


def hold_out_images(images: ImageSet, fraction: float, seed: int) -> tuple[ImageSet, ImageSet]:
    """Divide a set like `hold_out`; return the images kept and those held out."""
    kept, held = hold_out(Items.of(images), fraction, seed)
    return images.subset(kept), images.subset(held)


def hold_out_fold(items: Items, folds: int, fold: int, seed: int, among: Int64[Tensor, " k"] | None = None) -> Divided:
    """Return indices kept and held out: one of several folds of about the same size, with each class in all of them.

    The folds depend on `folds` and `seed` alone, and each image is in exactly one. The first fold is what `hold_out`
    takes for a fraction of 1 / `folds`.

    Raises:
        CapsellaError: a class has fewer images, or groups, than folds, or its groups cannot be divided.
    """
    among = torch.arange(len(items.labels)) if among is None else among
    units = among if items.groups is None else items.groups[among]
    for label, name in enumerate(items.classes):
        count = len(units[items.labels[among] == label].unique())
        if 0 < count < folds:
            text = f"{items.count_of(count)} for {folds} folds; use fewer folds, add images, or leave the class out"
            raise CapsellaError(f"folds: the class {name!r} has {text}")
    parts, rest = [], among
    for remaining in range(folds - 1, 0, -1):  # all folds, so that an error shows before any is trained on
        chosen = _held(items, rest, 1 / (remaining + 1), seed, keep=remaining)
        parts.append(rest[chosen])
        rest = rest[~chosen]
    held = [*parts, rest][fold]
    return among[~torch.isin(among, held)], held


def limit_per_class(labels: Int64[Tensor, " n"], number: int, seed: int) -> Int64[Tensor, " k"]:
    """Draw at most `number` indices per class. A smaller number draws a subset of what a larger one draws."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
    drawn = [order[labels[order] == label][:number] for label in labels.unique().tolist()]
    return torch.cat([order[:0], *drawn]).sort().values


def _held(items: Items, among: Int64[Tensor, " n"], fraction: float, seed: int, keep: int) -> Bool[Tensor, " n"]:
    """Return a mask of the indices to hold out, of which each class keeps at least `keep` groups."""
    labels = items.labels[among].numpy()
    # Without groups, each image is a group of its own.
    groups = np.arange(len(labels)) if items.groups is None else items.groups[among].numpy()
    units = np.unique(groups, return_inverse=True)[1]
    counts = np.zeros((units.max(initial=-1) + 1, len(items.classes)), dtype=np.int64)  # images per unit and class
    np.add.at(counts, (units, labels), 1)
    held = _choose_units(counts, fraction, np.random.default_rng(seed), keep)
    for label in np.flatnonzero(counts.sum(axis=0)):
        here = counts[:, label] > 0
        if held[here].all() or not held[here].any():
            raise CapsellaError(
                f"the class {items.classes[label]!r} has {items.count_of(int(here.sum()))} to divide; holding some out "
                f"for validation or test needs at least {keep + 1} that no other class depends on: add images, leave "
                "the class out, or use a split file"
            )
    return torch.from_numpy(held[units])


def _choose_units(
    counts: Int[np.ndarray, "units classes"], fraction: float, rng: np.random.Generator, keep: int
) -> Bool[np.ndarray, " units"]:
    """Choose the groups to hold out, in random order, from the classes of fewest groups first.

    A group is held out if that brings the fractions nearer to `fraction`; a class without one gives its smallest.
    """
    total = counts.sum(axis=0)
    present = total > 0
    held = np.zeros(len(counts), dtype=bool)
    taken = np.zeros_like(total)
    has = counts > 0
    remaining = has.sum(axis=0)  # groups of each class that are not held out

    def distance(taken: Int[np.ndarray, " classes"]) -> float:
        return float(np.abs(taken[present] / total[present] - fraction).sum())

    def may_give(unit: int) -> bool:
        return bool((remaining > keep)[has[unit]].all())

    for label in np.argsort(has.sum(axis=0), kind="stable"):
        candidates = rng.permutation(np.flatnonzero(has[:, label] & ~held))
        for unit in candidates:
            if taken[label] >= fraction * total[label]:
                break
            after = taken + counts[unit]
            if may_give(unit) and distance(after) < distance(taken) - _TIE:
                held[unit], taken = True, after
                remaining -= has[unit]
        smallest_first = candidates[np.argsort(counts[candidates, label], kind="stable")]
        for unit in smallest_first:
            if taken[label] == 0 and may_give(unit):
                held[unit], taken = True, taken + counts[unit]
                remaining -= has[unit]
    return held

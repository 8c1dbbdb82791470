"""Images of another laboratory: a folder, an .npz file or a named source, whose classes are matched by name.

All of its images are taken, whatever splits it brings: a network of another laboratory was trained on none of them.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image
from torch import Tensor

from capsella.data.catalogue import source_names
from capsella.data.fingerprints import fingerprint, same_look
from capsella.data.images import ImageSet, join
from capsella.data.options import DataOptions, DomainData, FileData, NamedData, data_from
from capsella.data.source import Parts
from capsella.data.split.copies import keep_together
from capsella.data.split.holdout import TOGETHER
from capsella.data.split.make import ReadSource
from capsella.errors import CapsellaError, near_names, pluralize
from capsella.image_options import ValueRange

_OF_ONE_SOURCE = ("group", "folds", "fold", "split_file", "cell_radius")
MOST_COMPARED = 20_000
"""Images among which copies are looked for by their look; among more, by their pixels alone."""


class Laboratory(NamedTuple):
    """All images of a laboratory, whatever splits it brings. notes, broken, value_range, cell_radius: as in `Splits`.

    left_out: how many there were of each class that the network does not know.
    """

    name: str
    images: ImageSet
    left_out: Mapping[str, int] = {}
    notes: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    value_range: ValueRange | None = None
    cell_radius: float | None = None

    def of_classes(self, classes: Sequence[str]) -> "Laboratory":
        """The images of the classes that a network knows, by name.

        Raises:
            CapsellaError: it knows none.
        """
        known, left_out = by_class_name(self.images, classes)
        if len(known) == 0:
            raise CapsellaError(
                f"{self.name}: must have a class of the network's, which knows {', '.join(classes)}; it has "
                f"{', '.join(self.images.classes)}. Rename the folders of the classes"
            )
        return self._replace(images=known, left_out=left_out)

    def lines(self) -> list[str]:
        """What a user must know before any number."""
        lines = [*self.notes]
        if self.broken:
            lines += [f"left out {pluralize(len(self.broken), 'broken image')}:", *(f"  {one}" for one in self.broken)]
        if self.left_out:
            each = ", ".join(f"{name} ({number})" for name, number in self.left_out.items())
            total = pluralize(sum(self.left_out.values()), "image")
            lines.append(f"{self.name}: left out {total} of other classes: {each}")
        lacking = [name for name, number in self.images.counts().items() if not number]
        return [*lines, *misspelt(self.name, self.left_out, lacking)]


def on_laboratory(data: DataOptions, place: str) -> DataOptions:
    """The options of the images of another laboratory, read as those of `data` are.

    Args:
        data: of the images that a network is trained on.
        place: a folder with one sub-folder a class, an .npz file, or the name of a source.

    Raises:
        CapsellaError: it is none of them.
    """
    path, other = Path(place), data_from(place)
    shared = {field.name: getattr(data, field.name) for field in fields(DataOptions)}
    shared |= {name: getattr(DataOptions, name) for name in _OF_ONE_SOURCE}
    if isinstance(other, FileData) and (path.is_dir() or path.suffix == ".npz"):
        group = data.group if isinstance(data, DomainData) else None
        return replace(other, **{**shared, "group": group}, duplicates="keep")
    if not isinstance(other, NamedData) or place not in source_names():
        hint = near_names(place, source_names(), "`capsella list data` shows the data sets")
        raise CapsellaError(f"{place}: must be a folder of images, an .npz file or a public data set; {hint}")
    return replace(other, **shared)


def read_laboratory(
    place: str,
    data: DataOptions,
    value_range: ValueRange | None = None,
    cell_radius: float | None = None,
    group: str | None = None,
) -> Laboratory:
    """All images of a laboratory.

    Args:
        place: as in `on_laboratory`.
        data: how images are read.
        value_range, cell_radius: as they were found when its images were read before; None finds them now.
        group: which of its images are of one patient, as in `DataOptions`; that of `data` holds for laboratories alone.

    Raises:
        ValueError: a group where it cannot be.
        CapsellaError: the images are not there, or cannot be read.
    """
    options = on_laboratory(data, place)
    options = replace(options, cell_radius=cell_radius, group=group or options.group)
    if isinstance(options, FileData):
        options = replace(options, range=value_range or options.range)
    read = ReadSource.of(options, whole=True)
    source = read.source
    everything = Parts(source.name, join(list(source.named().values())))
    # Copies are looked for over all parts together.
    images = keep_together(everything, options.duplicates if isinstance(options, FileData) else "ignore").train
    return Laboratory(source.name, images, {}, source.notes, source.broken, read.value_range, source.cell_radius)


def by_class_name(images: ImageSet, classes: Sequence[str]) -> tuple[ImageSet, dict[str, int]]:
    """The images of classes that have a name in `classes`, numbered as there; and how many others each class has.

    Upper and lower case are alike where no name is exactly the same, and so are the two ways to write an umlaut.
    """
    names = [_same_name(name, classes) for name in images.classes]
    number = torch.tensor([-1 if name is None else tuple(classes).index(name) for name in names])
    kept = images.subset((number[images.labels] >= 0).nonzero().flatten())
    counts = images.counts()
    left_out = {one: counts[one] for one, name in zip(images.classes, names, strict=True) if name is None}
    mapped = replace(kept, labels=number[kept.labels], classes=tuple(classes))
    return mapped, {name: count for name, count in left_out.items() if count}


def misspelt(place: str, left_out: Iterable[str], lacking: Iterable[str]) -> list[str]:
    """A warning for each class that is left out of a laboratory, where its name is like one that is lacking there."""
    known = {name.casefold(): name for name in lacking}
    near = {name: get_close_matches(name.casefold(), list(known), n=1, cutoff=0.8) for name in left_out}
    return [
        f"WARNING: {place}: is the class {name!r}, which is left out, {known[found[0]]!r}? Then rename it"
        for name, found in near.items()
        if found
    ]


def common_classes(sets: Sequence[ImageSet], places: Sequence[str]) -> tuple[str, ...]:
    """The classes that every set has images of, by the names in the first.

    Raises:
        CapsellaError: there are fewer than two.
    """
    present = [[name for name, count in images.counts().items() if count] for images in sets]
    common = tuple(name for name in present[0] if all(_same_name(name, names) is not None for names in present[1:]))
    if len(common) < 2:
        each = "; ".join(f"{place}: {', '.join(names)}" for place, names in zip(places, present, strict=True))
        raise CapsellaError(f"the laboratories must have at least 2 classes of the same names, got {each}")
    return common


def class_number(name: str, classes: Sequence[str]) -> int:
    """Which of these classes a class of other images is, whatever the case of its letters; -1 for none."""
    same = _same_name(name, classes)
    return -1 if same is None else classes.index(same)


def _same_name(name: str, among: Sequence[str]) -> str | None:
    if name in among:
        return name
    alike = [one for one in among if _folded(one) == _folded(name)]
    return alike[0] if len(alike) == 1 else None


def _folded(name: str) -> str:
    """Without the difference of cases, and of how an umlaut is written: in one character, or in two as on a Mac."""
    return unicodedata.normalize("NFC", name).casefold()


def draw_labelled(images: ImageSet, per_class: int, seed: int) -> tuple[ImageSet, ImageSet, list[str]]:
    """At most `per_class` images of each class, at most half of them, to learn from; and what may be tested.

    A class of one image gives none: it is tested. Images that belong to a group of one that was drawn, or are copies
    of it, are in neither; at most half of the groups that have a class are drawn from.

    Returns:
        (what was drawn, what is left to test, the pixel digests of all that must not be tested).

    Raises:
        CapsellaError: no class has two images; nothing is left to test.
    """
    units = images.metadata.get(TOGETHER, images.metadata.get("group", torch.arange(len(images))))
    units = units.unique(return_inverse=True)[1]
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(images)))
    rows = _dealt(images, units, order, per_class)
    taken = units[rows]
    if len(taken) == 0:
        raise CapsellaError("there is nothing to learn from: at least one class must have two images, or two groups")
    used = torch.isin(units, taken)
    rest = images.subset((~used).nonzero().flatten())
    if len(rest) == 0:
        raise CapsellaError("no image is left to test; label fewer a class, or add images")
    return images.subset(rows), rest, pixel_digests(images.subset(used.nonzero().flatten()))


def _dealt(
    images: ImageSet, units: Int64[Tensor, " n"], order: Int64[Tensor, " n"], per_class: int
) -> Int64[Tensor, " k"]:
    """Rows of images, class by class: of each unit at most one, and of each class at most half of its units.

    Each class takes one in turn, that of the fewest units first, for a patient may have all classes.
    """
    classes = range(len(images.classes))
    has = torch.zeros(int(units.max()) + 1 if len(units) else 0, len(classes), dtype=torch.bool)
    has[units, images.labels] = True
    left = has.sum(0) // 2  # units of each class that may still be taken
    waiting = {label: iter(order[images.labels[order] == label].tolist()) for label in classes}
    rows: dict[int, list[int]] = {label: [] for label in classes}
    taken = torch.zeros(len(has), dtype=torch.bool)
    while waiting:
        for label in sorted(waiting, key=lambda label: int(has[:, label].sum())):
            fits = (row for row in waiting[label] if not taken[units[row]] and bool((left[has[units[row]]] > 0).all()))
            row = next(fits, None) if len(rows[label]) < per_class else None
            if row is None:
                del waiting[label]
                continue
            rows[label].append(row)
            taken[units[row]] = True
            left -= has[units[row]].long()
    return torch.tensor([row for label in classes for row in rows[label]], dtype=torch.int64)


def pixel_digests(images: ImageSet) -> list[str]:
    """A digest of the pixels of each image, at the size it is held."""
    return [blake2b(image.numpy().tobytes(), digest_size=16).hexdigest() for image in images.images]


def without(images: ImageSet, digests: Sequence[str]) -> ImageSet:
    """The images whose pixels have none of these digests, nor an image of their group, as a patient."""
    unwanted = set(digests)
    has = torch.tensor([digest in unwanted for digest in pixel_digests(images)], dtype=torch.bool)
    units = images.metadata.get("group", torch.arange(len(images)))
    return images.subset((~torch.isin(units, units[has])).nonzero().flatten())


def copies_among(images: ImageSet, trained: ImageSet) -> Int64[np.ndarray, " k"]:
    """Rows of the images that are copies of one in `trained`: of the same pixels, or of the same look.

    Both must be of one size. A thousand images take about a second.
    """
    seen = set(pixel_digests(trained))
    exact = [row for row, digest in enumerate(pixel_digests(images)) if digest in seen]
    if len(images) + len(trained) > MOST_COMPARED:
        return np.array(exact, np.int64)
    words = np.stack([fingerprint(_picture(image))[1:] for one in (trained, images) for image in one.images])
    pairs = same_look(words)
    across = pairs[(pairs[:, 0] < len(trained)) & (pairs[:, 1] >= len(trained)), 1] - len(trained)
    return np.union1d(across, np.array(exact, np.int64))


def _picture(image: torch.Tensor) -> Image.Image:
    pixels = image.permute(1, 2, 0).numpy()
    return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])

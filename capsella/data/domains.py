"""Images of another domain, e.g. another laboratory: a folder, an .npz file or a public data set.

All of its images are used, whatever splits it has: a network of another domain was trained on none of them. Classes are
matched by name.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from capsella.data.catalogue import source_names
from capsella.data.decoding import picture_of
from capsella.data.duplicates import fingerprint, similar_pairs
from capsella.data.image_file import ImageData
from capsella.data.images import ImageSet
from capsella.data.options import DataOptions, DomainData, FileData, NamedData, data_from
from capsella.data.splits import SourceFacts
from capsella.errors import CapsellaError, near_names, pluralize

# Options that do not suit other sources.
_OF_ONE_SOURCE = ("group", "folds", "fold", "split_file", "cell_radius", "cell_stain")
MAX_COMPARED = 20_000  # images; among more, copies are found by equal pixels only, not by perceptual hashes


@dataclass(frozen=True, eq=False)
class Domain(SourceFacts):
    """All images of a domain. left_out: number of images left out, for each class that the network does not have."""

    images: ImageSet
    left_out: Mapping[str, int] = field(default_factory=dict)

    def of_classes(self, classes: Sequence[str]) -> "Domain":
        """Return the domain with only the images of a network's classes, matched by name.

        Raises:
            CapsellaError: there are none.
        """
        images = match_classes(self.images, classes)
        if len(images) == 0:
            raise CapsellaError(
                f"{self.name}: must have one of the network's classes ({', '.join(classes)}), but has "
                f"{', '.join(self.images.classes)}. Rename the folders of the classes"
            )
        others = {name: n for name, n in self.images.counts().items() if n and _class_index(name, classes) < 0}
        return replace(self, images=images, left_out=others)

    def lines(self) -> list[str]:
        """Return the notes and warnings to show before any result, a line each."""
        lines = [*self.notes]
        if self.broken:
            lines += [f"left out {pluralize(len(self.broken), 'broken image')}:", *(f"  {why}" for why in self.broken)]
        if self.left_out:
            each = ", ".join(f"{name} ({number})" for name, number in self.left_out.items())
            total = pluralize(sum(self.left_out.values()), "image")
            lines.append(f"{self.name}: left out {total} of other classes: {each}")
        return lines


def options_of_domain(data: DataOptions, domain: str) -> DataOptions:
    """Return options that read a domain's images in the way that `data` reads its own.

    Args:
        data: options of the images that a network is trained on.
        domain: a folder with one subfolder per class, an .npz file, or a public data set.

    Raises:
        CapsellaError: `domain` is none of these.
    """
    path, other = Path(domain), data_from(domain)
    shared = {field.name: getattr(data, field.name) for field in fields(DataOptions)}
    shared |= {name: getattr(DataOptions, name) for name in _OF_ONE_SOURCE}
    if isinstance(other, FileData) and (path.is_dir() or path.suffix == ".npz"):
        group = data.group if isinstance(data, DomainData) else None
        return replace(other, **{**shared, "group": group}, duplicates="keep")
    if not isinstance(other, NamedData) or domain not in source_names():
        hint = near_names(domain, source_names(), "`capsella list data` shows the data sets")
        raise CapsellaError(f"{domain}: must be a folder of images, an .npz file or a public data set; {hint}")
    return replace(other, **shared)


def match_classes(images: ImageSet, classes: Sequence[str]) -> ImageSet:
    """Return the images whose class name is in `classes`; their labels become indices into `classes`.

    A name without an exact match is matched regardless of case and of the two Unicode forms of an umlaut.
    """
    number = torch.tensor([_class_index(name, classes) for name in images.classes])
    matched = images.subset((number[images.labels] >= 0).nonzero().flatten())
    return replace(matched, labels=number[matched.labels], classes=tuple(classes))


def common_classes(sets: Sequence[ImageSet], domains: Sequence[str]) -> tuple[str, ...]:
    """Return the classes of which every set has images, with their names in the first set.

    Raises:
        CapsellaError: there are fewer than two.
    """
    present = [[name for name, count in images.counts().items() if count] for images in sets]
    common = tuple(name for name in present[0] if all(_class_index(name, names) >= 0 for names in present[1:]))
    if len(common) < 2:
        each = "; ".join(f"{domain}: {', '.join(names)}" for domain, names in zip(domains, present, strict=True))
        raise CapsellaError(f"the domains must have at least 2 classes of the same names, got {each}")
    return common


def _class_index(name: str, classes: Sequence[str]) -> int:
    """Return the index of the class with this name, or the only one with it regardless of case; else -1."""
    if name in classes:
        return classes.index(name)
    alike = [index for index, other in enumerate(classes) if _folded(other) == _folded(name)]
    return alike[0] if len(alike) == 1 else -1


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()  # a Mac writes an umlaut as two characters


def draw_labelled(images: ImageSet, per_class: int, seed: int) -> tuple[ImageSet, ImageSet, list[str]]:
    """Draw images to learn from, at most `per_class` and at most half of each class; the rest is for testing.

    A class of one image contributes none. Other images in a drawn image's group, and its copies, are in neither part.
    At most half of the groups that have a class are drawn from.

    Returns:
        The drawn images, the test images, and the pixel digests of all images that must not be tested.

    Raises:
        CapsellaError: no class has two images; nothing is left to test.
    """
    units = images.metadata.get("copies", images.metadata.get("group", torch.arange(len(images))))
    units = units.unique(return_inverse=True)[1]
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(images)))
    rows = _dealt(images, units, order, per_class)
    taken = units[rows]
    if len(taken) == 0:
        raise CapsellaError("no image can be learned from: at least one class needs two images, or two groups")
    used = torch.isin(units, taken)
    rest = images.subset((~used).nonzero().flatten())
    if len(rest) == 0:
        raise CapsellaError("no image is left to test; label fewer images per class, or add images")
    return images.subset(rows), rest, pixel_digests(images.subset(used.nonzero().flatten()))


def _dealt(
    images: ImageSet, units: Int64[Tensor, " n"], order: Int64[Tensor, " n"], per_class: int
) -> Int64[Tensor, " k"]:
    """Return indices of images, class by class: at most one per unit, and at most half of the units of each class.

    A unit is a group, a set of copies or a single image. Classes take one image in turn, the class with the fewest
    units first, because a patient may have all classes.
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
    """Return a digest of each image's pixels, at the size it has in memory."""
    return [blake2b(image.numpy().tobytes(), digest_size=16).hexdigest() for image in images.images]


def without_images(images: ImageSet, digests: Sequence[str]) -> ImageSet:
    """Return the images that do not have one of these digests, and whose group has no image with one."""
    unwanted = set(digests)
    has = torch.tensor([digest in unwanted for digest in pixel_digests(images)], dtype=torch.bool)
    units = images.metadata.get("group", torch.arange(len(images)))
    return images.subset((~torch.isin(units, units[has])).nonzero().flatten())


def copies_among(images: ImageSet, trained: ImageSet) -> Int64[np.ndarray, " k"]:
    """Return the indices of images that are copies of one in `trained`, by equal pixels or perceptual hashes.

    Both sets must have the same image size. A thousand images take about a second.
    """
    seen = set(pixel_digests(trained))
    exact = [row for row, digest in enumerate(pixel_digests(images)) if digest in seen]
    if len(images) + len(trained) > MAX_COMPARED:
        return np.array(exact, np.int64)
    every = (image.permute(1, 2, 0).numpy() for part in (trained, images) for image in part.images)
    words = np.stack([fingerprint(ImageData(picture_of(pixels)))[1:] for pixels in every])
    first, second = np.concatenate([*similar_pairs(words)]).T
    across = second[(first < len(trained)) & (second >= len(trained))] - len(trained)
    return np.unique(np.concatenate([np.array(exact, np.int64), across]))

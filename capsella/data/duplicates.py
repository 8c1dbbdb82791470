"""Copies of an image, exact or resized or compressed anew: found by fingerprints, and kept in one split.

In two classes a copy teaches a mistake; in training and test it makes a test look too good.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from imagehash import phash
from jaxtyping import Bool, Int64, UInt8
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from capsella.data.options import Duplicates
from capsella.data.splits import SourceSplits
from capsella.errors import CapsellaError, warn_once

# Bits of 256 by which the hashes of two copies may differ. Of 2,123 and 4,000 images of cells, 5,000 handwritten digits
# and 5,000 pieces of clothing, two of different classes never differ in fewer than 20. The same image saved as JPEG
# (quality 75), or at half the size, differs in at most 10 from 64 pixels on.
RADIUS = 10
LARGE_SET = 0.1  # fraction of the images above which a set of copies gets a remark
_HASH_SIDE = 16
_BLOCK = 2048  # images whose distances to all others are in memory at once
_EXAMPLES = 3

Fingerprint = Int64[np.ndarray, "5"]


def fingerprint(image: Image.Image) -> Fingerprint:
    """Return a hash of the pixels, and 256 bits of a perceptual hash (the signs of 16×16 low frequencies).

    Neither depends on the size that images are resized to for a network. The perceptual hash keeps nearly all its bits
    when an image is compressed anew, resized, or made brighter. An image of one colour equals only its exact copies.
    """
    if image.mode == "P":  # the numbers of a palette are no colours
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    pixels = np.asarray(image)
    digest = blake2b(f"{image.mode} {image.size}".encode() + pixels.tobytes(), digest_size=40).digest()
    numbers = np.frombuffer(digest, np.int64).copy()
    grey = _grey(image)
    if np.ptp(np.asarray(grey)) > 0:
        numbers[1:] = np.packbits(phash(grey, hash_size=_HASH_SIDE).hash).view(np.int64)
    return numbers


def similar_pairs(words: Int64[np.ndarray, "n 4"]) -> Int64[np.ndarray, "pairs 2"]:
    """Return the pairs of images, first < second, whose perceptual hashes differ in at most `RADIUS` bits.

    10,000 images take about a second: the distances are matrix products of bits as −1 and 1.
    """
    signs = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1).astype(np.float32) * 2 - 1
    least = signs.shape[1] - 2 * RADIUS
    found = [start + np.argwhere(_similar(signs, start, least)) for start in range(0, len(signs), _BLOCK)]
    pairs = np.concatenate(found) if found else np.empty((0, 2), np.int64)
    return pairs[pairs[:, 0] < pairs[:, 1]]


def _similar(signs: np.ndarray, start: int, least: int) -> Bool[np.ndarray, "block rest"]:
    similar: np.ndarray = signs[start : start + _BLOCK] @ signs[start:].T >= least
    return similar


class Fingerprints:
    """Fingerprints of a source's images, collected while they are read; none if they are not wanted."""

    def __init__(self, *, wanted: bool) -> None:
        self.wanted = wanted
        self._numbers: dict[int, Fingerprint] = {}

    def of(self, row: int) -> Callable[[Image.Image], None] | None:
        """Return the function to call with the image of a row, or None."""
        return partial(self._add, row) if self.wanted and row not in self._numbers else None

    def add_arrays(self, images: UInt8[np.ndarray, "n h w c"], rows: Int64[np.ndarray, " k"]) -> None:
        """Add the images of these rows, which are pixels."""
        for row in rows.tolist() if self.wanted else ():
            self._add(row, Image.fromarray(images[row].squeeze(-1) if images.shape[3] == 1 else images[row]))

    def array(self, rows: Sequence[int]) -> Int64[np.ndarray, "n 5"] | None:
        """Return those of some rows, or None if they are not wanted."""
        return np.array([self._numbers[row] for row in rows], np.int64).reshape(-1, 5) if self.wanted else None

    def _add(self, row: int, image: Image.Image) -> None:
        self._numbers[row] = fingerprint(image)


def _grey(image: Image.Image) -> Image.Image:
    """Convert to 8 bits of grey; deeper pixels from their darkest to their brightest, whatever their range is later."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.nan_to_num(np.asarray(image, np.float64))
        low, high = values.min(), values.max()
        return Image.fromarray((255 * (values - low) / ((high - low) or 1)).astype(np.uint8))
    return image.convert("L")


class Copies(NamedTuple):
    """Numbers of images that must stay together, which join copies and the source's groups; and notes on them."""

    groups: Int64[np.ndarray, " n"]
    notes: tuple[str, ...]


def find_copies(
    source: SourceSplits, splits: Mapping[str, Int64[Tensor, " k"]], duplicates: Duplicates
) -> Copies | None:
    """Find copies among a source's images by their fingerprints; None without fingerprints or copies.

    Warns of copies in two classes, or in two splits.

    Args:
        source: the images, with fingerprints.
        splits: indices of the images in each split that the source, or a split file, has; others do not count.
        duplicates: whether exact copies in two classes or splits are an error.

    Raises:
        CapsellaError: such copies have the same pixels, and `duplicates` is "error"; names the files.
    """
    if duplicates == "ignore" or source.fingerprints is None:
        return None
    found = _Found.of(source, source.fingerprints, splits)
    if found.alike.max(initial=-1) + 1 == len(found.alike):  # every image resembles only itself
        return None
    found.report(duplicates)
    groups = np.full(len(source.fingerprints), -1)
    used = torch.cat([*splits.values()]).numpy()
    groups[used] = _joined(found, source, used)
    return Copies(groups, (found.note(),))


@dataclass(frozen=True, eq=False)
class _Found:
    """All images of a source.

    same, alike: [n], equal numbers have the same pixels, or look the same. names: [n]. label, part: [n], number of the
    class and of the source's split. splits: names of the latter.
    """

    source: str
    names: list[str]
    same: Int64[np.ndarray, " n"]
    alike: Int64[np.ndarray, " n"]
    label: Int64[np.ndarray, " n"]
    part: Int64[np.ndarray, " n"]
    splits: tuple[str, ...]

    @classmethod
    def of(
        cls, source: SourceSplits, fingerprints: Int64[np.ndarray, "n 5"], splits: Mapping[str, Int64[Tensor, " k"]]
    ) -> "_Found":
        used = torch.cat([*splits.values()]).numpy()
        names = [name for split in source.named() for name in _names(source, split)]
        labels = np.concatenate([images.labels.numpy() for images in source.named().values()])
        fingerprints = fingerprints[used]
        _, first, same = np.unique(fingerprints[:, 0], return_index=True, return_inverse=True)
        return cls(
            source.name,
            [names[row] for row in used.tolist()],
            same,
            _connected(similar_pairs(fingerprints[first, 1:]), len(first))[same],
            labels[used],
            np.repeat(np.arange(len(splits)), [len(rows) for rows in splits.values()]),
            tuple(splits),
        )

    def report(self, duplicates: Duplicates) -> None:
        """Raise an error, or warn."""
        wrong = self._torn(self.same, "the same image is")
        if wrong and duplicates == "error":
            raise CapsellaError(f"{self.source}: {wrong}. Remove one of each, or go on with --duplicates keep")
        for text in (wrong, self._torn(self.alike, "images that look the same are", unlike=self.same)):
            if text:
                warn_once(f"copies: {self.source}: {text}", f"{self.source}: {text}")

    def _torn(self, numbers: Int64[np.ndarray, " n"], what: str, unlike: Int64[np.ndarray, " n"] | None = None) -> str:
        """Name copies in two classes, or else in two splits; "" if there are none. Copies by `unlike` do not count."""
        for sides, where in ((self.label, "two classes"), (self.part, f"two of {', '.join(self.splits)}")):
            pairs = [
                f"{self.names[first]} and {self.names[second]}"
                for first, second in sorted(_across(numbers, sides))
                if unlike is None or unlike[first] != unlike[second]
            ]
            if pairs:
                more = f", and {len(pairs) - _EXAMPLES} more" if len(pairs) > _EXAMPLES else ""
                return f"{what} in {where}: {'; '.join(pairs[:_EXAMPLES])}{more}"
        return ""

    def note(self) -> str:
        """Count the copies, with an example."""
        exact, near = _repeated(self.same), _repeated(self.alike) - _repeated(self.same)
        texts = [f"{_images(exact)} there more than once"] if exact else []
        texts += [f"{_images(near)} there resized or compressed anew"] if near > 0 else []
        sizes = np.bincount(self.alike)
        several = np.flatnonzero(sizes[self.alike] > 1)
        first = min(several, key=lambda row: self.names[row])
        one, other, *_ = sorted(self.names[row] for row in several if self.alike[row] == self.alike[first])
        largest = f"; the largest set of copies has {sizes.max()} images" if sizes.max() > 2 else ""
        if sizes.max() > LARGE_SET * len(self.alike):  # e.g. of a camera that stands still
            largest += ", which makes splits uneven: --duplicates ignore turns this off"
        return f"{', '.join(texts)}, e.g. {one} and {other}{largest}; copies stay in one split"


def _images(number: int) -> str:
    return "1 image is" if number == 1 else f"{number} images are"


def _repeated(numbers: Int64[np.ndarray, " n"]) -> int:
    return int((np.bincount(numbers) > 1).sum())


def _across(numbers: Int64[np.ndarray, " n"], sides: Int64[np.ndarray, " n"]) -> Iterator[tuple[int, int]]:
    """Yield two images for each number that is on more than one side."""
    order = np.lexsort((sides, numbers))
    for rows in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        if sides[rows[0]] != sides[rows[-1]]:
            yield int(rows[0]), int(rows[-1])


def _joined(found: _Found, source: SourceSplits, used: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Return the group of each image: the source's groups, joined by the copies within each split."""
    sets = source.named().values()
    rows = np.arange(len(found.alike))
    own = [images.metadata["group"].numpy() for images in sets if "group" in images.metadata]
    groups = np.concatenate(own)[used] if len(own) == len(sets) else rows
    edges = [np.stack([rows, _first(key)], 1) for key in (groups, found.alike * len(found.splits) + found.part)]
    return _connected(np.concatenate(edges), len(rows))


def _first(numbers: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Return for each element the index of the first one that equals it."""
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    return first[inverse]


def _connected(edges: Int64[np.ndarray, "edges 2"], nodes: int) -> Int64[np.ndarray, " nodes"]:
    """Return the number of each node's connected component, in the order of the nodes."""
    graph = coo_array((np.ones(len(edges), bool), (edges[:, 0], edges[:, 1])), shape=(nodes, nodes))
    return connected_components(graph, directed=False)[1].astype(np.int64)


def _names(source: SourceSplits, split: str) -> list[str]:
    images = source.named()[split]
    if images.files is not None:
        return list(images.files)
    return [f"{split} image {n} ({images.classes[k]})" for n, k in enumerate(images.labels.tolist())]

"""Copies of an image, exact or resized or compressed anew: found by fingerprints, and kept in one split.

In two classes a copy teaches a mistake; in training and test it makes a test look too good.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import scipy
import torch
from imagehash import phash
from jaxtyping import Int64
from PIL import Image
from torch import Tensor

from capsella.data.image_file import ImageData
from capsella.data.images import ImageSet
from capsella.data.options import Duplicates
from capsella.errors import CapsellaError, pluralize, warn_once

# Bits of 256 by which the hashes of two copies may differ. Of 2,123 and 4,000 images of cells, 5,000 handwritten digits
# and 5,000 pieces of clothing, two of different classes never differ in fewer than 20. The same image saved as JPEG
# (quality 75), or at half the size, differs in at most 10 from 64 pixels on.
RADIUS = 10
_HASH_SIDE = 16
_BLOCK = 2048  # images whose distances to as many others are in memory at once
_EXAMPLES = 3

Fingerprint = Int64[np.ndarray, "5"]


def fingerprint(image: ImageData) -> Fingerprint:
    """Return a hash of the pixels, and 256 bits of a perceptual hash (the signs of 16×16 low frequencies).

    Neither depends on the size that images are resized to for a network. The perceptual hash keeps nearly all its bits
    when an image is compressed anew, resized, or made brighter. An image of one colour matches only its exact copies.
    """
    if image.image is not None:
        pixels, grey = np.asarray(image.image), np.asarray(image.image.convert("L"))
    else:  # more than 8 bits: scaled from darkest to brightest, whatever range is set later
        assert image.values is not None
        pixels, values = image.values, image.values.astype(np.float32)
        values = values if values.ndim == 2 else values.mean(2)
        grey = (255 * (values - values.min()) / (np.ptp(values) or 1)).astype(np.uint8)
    digest = blake2b(f"{pixels.dtype} {pixels.shape}".encode() + pixels.tobytes(), digest_size=40).digest()
    numbers = np.frombuffer(digest, np.int64).copy()
    if np.ptp(grey) > 0:
        numbers[1:] = np.packbits(phash(Image.fromarray(grey), hash_size=_HASH_SIDE).hash).view(np.int64)
    return numbers


def similar_pairs(words: Int64[np.ndarray, "n 4"]) -> Iterator[Int64[np.ndarray, "pairs 2"]]:
    """Yield, block by block, the pairs (first < second) whose perceptual hashes differ in at most `RADIUS` bits.

    10,000 images take about a second: the distances are matrix products of bits as −1 and 1.
    """
    signs = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1).astype(np.float32) * 2 - 1
    least = signs.shape[1] - 2 * RADIUS
    for row in range(0, len(signs), _BLOCK):
        for column in range(row, len(signs), _BLOCK):
            similar = signs[row : row + _BLOCK] @ signs[column : column + _BLOCK].T >= least
            pairs = np.add(np.argwhere(similar), (row, column))
            yield pairs[pairs[:, 0] < pairs[:, 1]]


def similar_sets(words: Int64[np.ndarray, "n 4"]) -> Int64[np.ndarray, " n"]:
    """Return the number of each image's set, which `similar_pairs` connect, in the order of the images."""
    rows = sets = np.arange(len(words))
    for pairs in similar_pairs(words):
        if len(pairs):  # the sets so far stand for all earlier pairs, whose number may be the square of the images
            sets = _connected(np.concatenate([pairs, np.stack([rows, _first(sets)], 1)]), len(words))
    return sets


class Copies(NamedTuple):
    """Groups of images that must stay in one split, and a note on copies.

    groups: a number per image, equal for copies and for images of one group of the source; -1 for unused images.
    """

    groups: Int64[np.ndarray, " n"]
    note: str


def find_copies(
    source: str, images: ImageSet, splits: Mapping[str, Int64[Tensor, " k"]], duplicates: Duplicates
) -> Copies | None:
    """Find copies among images by their fingerprints; None if there are none, or no fingerprints.

    Warns of copies in two classes, or in two splits.

    Args:
        source: name of the source, for messages.
        images: the images, with fingerprints as metadata.
        splits: indices of the images in each split of the source or split file; other images are ignored.
        duplicates: whether exact copies in two classes or splits are an error.

    Raises:
        CapsellaError: exact copies are in two classes or splits, and `duplicates` is "error"; names the files.
    """
    if "fingerprint" not in images.metadata:
        return None
    fingerprints, used = images.metadata["fingerprint"].numpy(), torch.cat([*splits.values()]).numpy()
    part = np.repeat(np.arange(len(splits)), [len(rows) for rows in splits.values()])
    _, first, same = np.unique(fingerprints[used, 0], return_index=True, return_inverse=True)
    alike = similar_sets(fingerprints[used][first, 1:])[same]
    if alike.max(initial=-1) + 1 == len(alike):  # every image resembles only itself
        return None
    names = [_name(images, row) for row in used.tolist()]
    places = [(images.labels.numpy()[used], "two classes"), (part, f"two of {', '.join(splits)}")]
    for place, where in places:
        wrong = _across(same, place)
        if wrong and duplicates == "error":
            raise CapsellaError(
                f"{source}: the same image is in {where}: {_pairs(wrong, names)}. Remove one of each, or go on with "
                "--duplicates keep"
            )
        looks = [pair for pair in _across(alike, place) if same[pair[0]] != same[pair[1]]]
        for what, torn in (("the same image is", wrong), ("images that look the same are", looks)):
            if torn:
                text = f"{source}: {what} in {where}: {_pairs(torn, names)}"
                warn_once(f"copies: {text}", text)
    groups = np.full(len(images), -1)
    own = images.metadata["group"].numpy()[used] if "group" in images.metadata else np.arange(len(used))
    edges = [np.stack([np.arange(len(used)), _first(numbers)], 1) for numbers in (own, alike * len(splits) + part)]
    groups[used] = _connected(np.concatenate(edges), len(used))  # groups that share copies become one
    first_of_set = _first(alike)
    copy = int(np.flatnonzero(first_of_set != np.arange(len(alike)))[0])
    example = f"{names[first_of_set[copy]]} and {names[copy]}"
    number, largest = int((np.bincount(alike) > 1).sum()), int(np.bincount(alike).max())
    note = f"{pluralize(number, 'image')} with copies, up to {largest} of one, e.g. {example}; copies stay in one split"
    return Copies(groups, note)


def _name(images: ImageSet, row: int) -> str:
    return f"image {row} ({images.classes[images.labels[row]]})" if images.files is None else images.files[row]


def _pairs(pairs: list[tuple[int, int]], names: list[str]) -> str:
    more = f", and {len(pairs) - _EXAMPLES} more" if len(pairs) > _EXAMPLES else ""
    return "; ".join(f"{names[first]} and {names[second]}" for first, second in sorted(pairs)[:_EXAMPLES]) + more


def _across(numbers: Int64[np.ndarray, " n"], sides: Int64[np.ndarray, " n"]) -> list[tuple[int, int]]:
    """Return the indices of two images for each number that occurs on more than one side."""
    order = np.lexsort((sides, numbers))
    sets = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
    return [(int(rows[0]), int(rows[-1])) for rows in sets if sides[rows[0]] != sides[rows[-1]]]


def _first(numbers: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Return for each element the index of the first one that equals it."""
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    return first[inverse]


def _connected(edges: Int64[np.ndarray, "edges 2"], nodes: int) -> Int64[np.ndarray, " nodes"]:
    """Return the index of each node's connected component."""
    graph = scipy.sparse.coo_array((np.ones(len(edges), bool), (edges[:, 0], edges[:, 1])), shape=(nodes, nodes))
    return scipy.sparse.csgraph.connected_components(graph, directed=False)[1].astype(np.int64)

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
from jaxtyping import Float32, Int64
from PIL import Image
from torch import Tensor

from capsella.data.images import ImageSet
from capsella.data.options import Duplicates
from capsella.data.reading import ImageData
from capsella.errors import CapsellaError, pluralize, warn_once

# Bits of 256 by which the hashes of two copies may differ. Of 2,123 and 4,000 images of cells, 5,000 handwritten digits
# and 5,000 pieces of clothing, two of different classes never differ in fewer than 20. The same image saved as JPEG
# (quality 75), or at half the size, differs in at most 10 from 64 pixels on.
RADIUS = 10
LARGE_SET = 0.1  # a set of copies with more than this fraction of the images is pointed out
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


def similar_pairs(
    words: Int64[np.ndarray, "n 4"], others: Int64[np.ndarray, "m 4"] | None = None
) -> Iterator[Int64[np.ndarray, "pairs 2"]]:
    """Yield, block by block, the pairs of images whose perceptual hashes differ in at most `RADIUS` bits.

    10,000 images take about a second: the distances are matrix products of bits as −1 and 1.

    Args:
        words: perceptual hashes of the first image of a pair.
        others: of the second. None: pairs within `words`, first < second.
    """
    signs = _signs(words)
    columns = signs if others is None else _signs(others)
    least = signs.shape[1] - 2 * RADIUS
    for row in range(0, len(signs), _BLOCK):
        for column in range(row if others is None else 0, len(columns), _BLOCK):
            similar = signs[row : row + _BLOCK] @ columns[column : column + _BLOCK].T >= least
            pairs = np.add(np.argwhere(similar), (row, column))
            yield pairs if others is not None else pairs[pairs[:, 0] < pairs[:, 1]]


def _signs(words: Int64[np.ndarray, "n 4"]) -> Float32[np.ndarray, "n 256"]:
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1).astype(np.float32) * 2 - 1


def similar_sets(words: Int64[np.ndarray, "n 4"]) -> Int64[np.ndarray, " n"]:
    """Return the number of each image's set, which `similar_pairs` connect, in the order of the images."""
    rows = sets = np.arange(len(words))
    for pairs in similar_pairs(words):
        if len(pairs):  # the sets so far stand for all earlier pairs, whose number may be the square of the images
            sets = _connected(np.concatenate([pairs, np.stack([rows, _first(sets)], 1)]), len(words))
    return sets


class Copies(NamedTuple):
    """Groups of images that must stay in one split, and notes on copies.

    groups: a number per image, equal for copies and for images of one group of the source; -1 for unused images.
    """

    groups: Int64[np.ndarray, " n"]
    notes: tuple[str, ...]


def find_copies(
    source: str,
    images: ImageSet,
    fingerprints: Int64[np.ndarray, "n 5"],
    splits: Mapping[str, Int64[Tensor, " k"]],
    duplicates: Duplicates,
) -> Copies | None:
    """Find copies among images by their fingerprints; None if there are none.

    Warns of copies in two classes, or in two splits.

    Args:
        source: name of the source, for messages.
        images: the images.
        fingerprints: fingerprint of each image.
        splits: indices of the images in each split of the source or split file; other images are ignored.
        duplicates: whether exact copies in two classes or splits are an error.

    Raises:
        CapsellaError: exact copies are in two classes or splits, and `duplicates` is "error"; names the files.
    """
    used = torch.cat([*splits.values()]).numpy()
    part = np.repeat(np.arange(len(splits)), [len(rows) for rows in splits.values()])
    _, first, same = np.unique(fingerprints[used, 0], return_index=True, return_inverse=True)
    alike = similar_sets(fingerprints[used][first, 1:])[same]
    if alike.max(initial=-1) + 1 == len(alike):  # every image resembles only itself
        return None
    names = [_name(images, row) for row in used.tolist()]
    places = [(images.labels.numpy()[used], "two classes"), (part, f"two of {', '.join(splits)}")]
    wrong = _torn(names, same, None, places)
    if wrong and duplicates == "error":
        raise CapsellaError(f"{source}: the same image is {wrong}. Remove one of each, or go on with --duplicates keep")
    for what, torn in (
        ("the same image is", wrong),
        ("images that look the same are", _torn(names, alike, same, places)),
    ):
        if torn:
            warn_once(f"copies: {source}: {what} {torn}", f"{source}: {what} {torn}")
    groups = np.full(len(images), -1)
    groups[used] = _joined(images, used, alike * len(splits) + part)
    return Copies(groups, (_note(names, same, alike),))


def _name(images: ImageSet, row: int) -> str:
    return f"image {row} ({images.classes[images.labels[row]]})" if images.files is None else images.files[row]


def _torn(
    names: list[str],
    numbers: Int64[np.ndarray, " n"],
    unlike: Int64[np.ndarray, " n"] | None,
    places: list[tuple[Int64[np.ndarray, " n"], str]],
) -> str:
    """Name pairs with equal `numbers` in two classes, or else in two splits; skip pairs that are equal in `unlike`."""
    for sides, where in places:
        torn = [pair for pair in _across(numbers, sides) if unlike is None or unlike[pair[0]] != unlike[pair[1]]]
        if torn:
            pairs = "; ".join(f"{names[first]} and {names[second]}" for first, second in sorted(torn)[:_EXAMPLES])
            return f"in {where}: {pairs}" + (f", and {len(torn) - _EXAMPLES} more" if len(torn) > _EXAMPLES else "")
    return ""


def _across(numbers: Int64[np.ndarray, " n"], sides: Int64[np.ndarray, " n"]) -> Iterator[tuple[int, int]]:
    """Yield the indices of two images for each number that occurs on more than one side."""
    order = np.lexsort((sides, numbers))
    for rows in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        if sides[rows[0]] != sides[rows[-1]]:
            yield int(rows[0]), int(rows[-1])


def _note(names: list[str], same: Int64[np.ndarray, " n"], alike: Int64[np.ndarray, " n"]) -> str:
    """Return a note with the number of copies, and an example."""
    exact, near = (int((np.bincount(numbers) > 1).sum()) for numbers in (same, alike))
    texts = [f"{pluralize(exact, 'image')} more than once"] if exact else []
    texts += [f"{pluralize(near - exact, 'image')} also resized or compressed anew"] if near > exact else []
    sizes = np.bincount(alike)
    several = np.flatnonzero(sizes[alike] > 1).tolist()
    first = min(several, key=names.__getitem__)
    one, other, *_ = sorted(names[row] for row in several if alike[row] == alike[first])
    largest = f"; the largest set of copies has {sizes.max()} images" if sizes.max() > 2 else ""
    if sizes.max() > LARGE_SET * len(alike):  # e.g. of a camera that stands still
        largest += ", which makes splits uneven: --duplicates ignore turns this off"
    return f"{', '.join(texts)}, e.g. {one} and {other}{largest}; copies stay in one split"


def _joined(
    images: ImageSet, used: Int64[np.ndarray, " k"], copies: Int64[np.ndarray, " k"]
) -> Int64[np.ndarray, " k"]:
    """Return the group of each image; groups that share copies become one."""
    rows = np.arange(len(used))
    groups = images.metadata["group"].numpy()[used] if "group" in images.metadata else rows
    return _connected(np.concatenate([np.stack([rows, _first(key)], 1) for key in (groups, copies)]), len(rows))


def _first(numbers: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Return for each element the index of the first one that equals it."""
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    return first[inverse]


def _connected(edges: Int64[np.ndarray, "edges 2"], nodes: int) -> Int64[np.ndarray, " nodes"]:
    """Return the index of each node's connected component."""
    graph = scipy.sparse.coo_array((np.ones(len(edges), bool), (edges[:, 0], edges[:, 1])), shape=(nodes, nodes))
    return scipy.sparse.csgraph.connected_components(graph, directed=False)[1].astype(np.int64)

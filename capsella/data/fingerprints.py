"""Fingerprints of images, by which the same image is known again, as it is or saved anew."""

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

import numpy as np
import torch
from imagehash import phash
from jaxtyping import Bool, Int64, UInt8
from PIL import Image
from torch import Tensor

EXACT = "all pixels"
NEAR = tuple(f"look {word}" for word in range(4))  # with spaces, as no array of a file is called
NAMES = (EXACT, *NEAR)
"""What an `ImageSet` calls the five numbers of an image's fingerprint among its metadata."""

RADIUS = 10
"""Bits of 256 by which the hashes of two images may differ that look the same.

Of 2,123 and 4,000 images of cells, 5,000 handwritten digits and 5,000 pieces of clothing, two of different classes are
never nearer than 20. The same image saved as JPEG (quality 75), or at half the size, is within 10 from 64 pixels on.
"""

_SIDE = 16
_BLOCK = 2048  # images whose distances to all others are in memory at once


def fingerprint(image: Image.Image) -> Int64[np.ndarray, "5"]:
    """Five numbers: a hash of the pixels, and 256 bits of a perceptual hash (the signs of 16×16 low frequencies).

    Neither depends on the size that images are resized to for a network. The second keeps its bits, but for a few, when
    an image is saved anew, resized, or made brighter. An image of one colour has no look: it is like its copies alone.
    """
    if image.mode == "P":  # the numbers of a palette are no colours
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    pixels = np.asarray(image)
    digest = blake2b(f"{image.mode} {image.size}".encode() + pixels.tobytes(), digest_size=40).digest()
    numbers = np.frombuffer(digest, np.int64).copy()
    grey = _grey(image)
    if np.ptp(np.asarray(grey)) > 0:
        numbers[1:] = np.packbits(phash(grey, hash_size=_SIDE).hash).view(np.int64)
    return numbers


def same_look(words: Int64[np.ndarray, "n 4"]) -> Int64[np.ndarray, "pairs 2"]:
    """The pairs of images, first < second, whose perceptual hashes differ in at most `RADIUS` bits.

    10,000 images take about a second: the distances are matrix products of bits as −1 and 1.
    """
    signs = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1).astype(np.float32) * 2 - 1
    least = signs.shape[1] - 2 * RADIUS
    found = [start + np.argwhere(_near(signs, start, least)) for start in range(0, len(signs), _BLOCK)]
    pairs = np.concatenate(found) if found else np.empty((0, 2), np.int64)
    return pairs[pairs[:, 0] < pairs[:, 1]]


def _near(signs: np.ndarray, start: int, least: int) -> Bool[np.ndarray, "block rest"]:
    """Which of the images from `start` on agree with those of the block that begins there."""
    near: np.ndarray = signs[start : start + _BLOCK] @ signs[start:].T >= least
    return near


class Fingerprints:
    """Those of the images of a source, taken while they are read; nothing where they are not wanted."""

    def __init__(self, *, wanted: bool) -> None:
        self.wanted = wanted
        self._numbers: dict[int, Int64[np.ndarray, "5"]] = {}

    def of(self, row: int) -> Callable[[Image.Image], None] | None:
        """What is to be called with the image of a row."""
        return partial(self._add, row) if self.wanted else None

    def add_arrays(self, images: UInt8[np.ndarray, "n h w c"], rows: Int64[np.ndarray, " k"]) -> None:
        """The images of these rows, which come as pixels."""
        for row in rows.tolist() if self.wanted else ():
            self._add(row, Image.fromarray(images[row].squeeze(-1) if images.shape[3] == 1 else images[row]))

    def metadata(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """For an `ImageSet` of these rows."""
        if not self.wanted:
            return {}
        columns = np.array([self._numbers[row] for row in rows], np.int64).reshape(-1, len(NAMES)).T
        return {name: torch.from_numpy(column.copy()) for name, column in zip(NAMES, columns, strict=True)}

    def _add(self, row: int, image: Image.Image) -> None:
        self._numbers[row] = fingerprint(image)


def _grey(image: Image.Image) -> Image.Image:
    """8 bits of grey; deeper pixels from their darkest to their brightest, whatever range they are shown in later."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.nan_to_num(np.asarray(image, np.float64))
        low, high = values.min(), values.max()
        return Image.fromarray((255 * (values - low) / ((high - low) or 1)).astype(np.uint8))
    return image.convert("L")

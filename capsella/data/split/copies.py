"""The same image twice: in two classes it teaches a mistake, in training and test it makes a test look too good."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from capsella.data.fingerprints import EXACT, NAMES, NEAR, same_look
from capsella.data.options import Duplicates
from capsella.data.source import Parts
from capsella.data.split.holdout import TOGETHER
from capsella.errors import CapsellaError, warn_once

MANY_ALIKE = 0.1
"""Share of the images above which a set of images that look the same is named."""
_EXAMPLES = 3


def keep_together(parts: Parts, duplicates: Duplicates) -> Parts:
    """Number the copies of an image alike (`TOGETHER`), so that what is held out later has all of them or none.

    Copies have the same pixels, or look the same, as after resizing or saving anew (`fingerprint`). They join the
    groups that the images have already. A note says in one line what was found, and warnings what is wrong with it.

    Args:
        parts: with fingerprints among the metadata, or else nothing is looked for.
        duplicates: whether to go on ("keep") where the same pixels are in two classes, or in two parts.

    Raises:
        CapsellaError: they are, and `duplicates` is "error"; names the files.
    """
    sets = parts.named().values()
    if duplicates == "ignore" or not all(EXACT in images.metadata for images in sets):
        return parts
    found = _Found.of(parts)
    if found.alike.max(initial=-1) + 1 == len(found.alike):  # every image is like itself alone
        return parts
    found.report(duplicates)
    joined = _joined(found, parts)
    ends = np.cumsum([len(images) for images in sets])[:-1]
    units = dict(zip(parts.named(), np.split(joined, ends), strict=True))
    kept = {
        split: replace(images, metadata={**images.metadata, TOGETHER: torch.from_numpy(units[split])})
        for split, images in parts.named().items()
    }
    return replace(parts, notes=(*parts.notes, found.counted()), **kept)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class _Found:
    """All images of a source. same, alike: [n], equal numbers have the same pixels, or look the same.

    names: [n]. label, part: [n], number of the class and of the part. classes, splits: what those are called.
    """

    source: str
    names: list[str]
    same: Int64[np.ndarray, " n"]
    alike: Int64[np.ndarray, " n"]
    label: Int64[np.ndarray, " n"]
    part: Int64[np.ndarray, " n"]
    splits: tuple[str, ...]

    @classmethod
    def of(cls, parts: Parts) -> "_Found":
        named = parts.named()
        numbers = {name: torch.cat([one.metadata[name] for one in named.values()]).numpy() for name in NAMES}
        _, first, same = np.unique(numbers[EXACT], return_index=True, return_inverse=True)
        words = np.stack([numbers[name][first] for name in NEAR], 1)
        return cls(
            parts.name,
            [name for split in named for name in _names(parts, split)],
            same,
            _connected(same_look(words), len(first))[same],
            torch.cat([one.labels for one in named.values()]).numpy(),
            np.repeat(np.arange(len(named)), [len(one) for one in named.values()]),
            tuple(named),
        )

    def report(self, duplicates: Duplicates) -> None:
        """Stop, or warn."""
        wrong = [text for text in (self._torn(self.same, "the same image is"),) if text]
        if wrong and duplicates == "error":
            raise CapsellaError(
                f"{self.source}: {wrong[0]}. Remove what is wrong; --duplicates keep goes on with a warning"
            )
        near = self._torn(self.alike, "images that look the same are", unlike=self.same)
        for text in (*wrong, near):
            if text:
                warn_once(f"copies: {self.source}: {text}", f"{self.source}: {text}")

    def _torn(self, numbers: Int64[np.ndarray, " n"], what: str, unlike: Int64[np.ndarray, " n"] | None = None) -> str:
        """What is in two classes, or else in two parts, with examples; "" where nothing is.

        `unlike`: copies by these numbers were named before.
        """
        for sides, where in ((self.label, "two classes"), (self.part, f"two of {', '.join(self.splits)}")):
            pairs = [
                f"{self.names[one]} and {self.names[other]}"
                for one, other in sorted(_across(numbers, sides))
                if unlike is None or unlike[one] != unlike[other]
            ]
            if pairs:
                more = f", and {len(pairs) - _EXAMPLES} more" if len(pairs) > _EXAMPLES else ""
                return f"{what} in {where}: {'; '.join(pairs[:_EXAMPLES])}{more}"
        return ""

    def counted(self) -> str:
        """How many images have copies, with an example."""
        exact, near = _several(self.same), _several(self.alike) - _several(self.same)
        texts = [f"{_images(exact)} there more than once"] if exact else []
        texts += [f"{_images(near)} there resized or saved anew"] if near > 0 else []
        sizes = np.bincount(self.alike)
        several = np.flatnonzero(sizes[self.alike] > 1)
        first = min(several, key=lambda number: self.names[number])
        one, other, *_ = sorted(self.names[number] for number in several if self.alike[number] == self.alike[first])
        largest = f"; the largest set of such images has {sizes.max()}" if sizes.max() > 2 else ""
        if sizes.max() > MANY_ALIKE * len(self.alike):  # as those of a camera that stands still
            largest += ", which makes splits uneven: --duplicates ignore takes each image for itself"
        stay = "copies stay on one side of every split that is drawn"
        return f"{', '.join(texts)}, as {one} and {other}{largest}; {stay}"


def _images(number: int) -> str:
    return "1 image is" if number == 1 else f"{number} images are"


def _several(numbers: Int64[np.ndarray, " n"]) -> int:
    """How many numbers occur more than once."""
    return int((np.bincount(numbers) > 1).sum())


def _across(numbers: Int64[np.ndarray, " n"], sides: Int64[np.ndarray, " n"]) -> Iterator[tuple[int, int]]:
    """Two images for each number that stands on more than one side."""
    order = np.lexsort((sides, numbers))
    for cut in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        if sides[cut[0]] != sides[cut[-1]]:
            yield int(cut[0]), int(cut[-1])


def _joined(found: _Found, parts: Parts) -> Int64[np.ndarray, " n"]:
    """The group of each image: those that it had, joined by the copies within each part."""
    sets = parts.named().values()
    images = np.arange(len(found.alike))
    own = [one.metadata["group"].numpy() for one in sets if "group" in one.metadata]
    groups = np.concatenate(own) if len(own) == len(sets) else images
    edges = [np.stack([images, _first(numbers)], 1) for numbers in (groups, found.alike * len(sets) + found.part)]
    return _connected(np.concatenate(edges), len(images))


def _first(numbers: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Where each number occurs first."""
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    return first[inverse]


def _connected(edges: Int64[np.ndarray, "edges 2"], nodes: int) -> Int64[np.ndarray, " nodes"]:
    """A number for each connected component, counted in the order of the nodes."""
    graph = coo_array((np.ones(len(edges), bool), (edges[:, 0], edges[:, 1])), shape=(nodes, nodes))
    return connected_components(graph, directed=False)[1].astype(np.int64)


def _names(parts: Parts, split: str) -> list[str]:
    """What each image of a part is called."""
    images = parts.named()[split]
    if images.files is not None:
        return list(images.files)
    return [f"{split} image {n} ({images.classes[k]})" for n, k in enumerate(images.labels.tolist())]

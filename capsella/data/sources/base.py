"""A public data set: how to read it, and what `capsella list data` shows."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from capsella.data.images import ImageSet
from capsella.data.options import NamedData
from capsella.data.reading import resize_array
from capsella.data.splits import SourceSplits


@dataclass(frozen=True)
class Source:
    """A public data set.

    name: its name. read: its reader. images: numbers of images in train / validation / test, as the set is split. size:
    height × width × channels as stored. classes: their number. files: the files it reads, relative to the data root;
    none if the images come with a library. get: how to get them. citation: of the set. largest: pixels per side of the
    largest version of a set that is stored at several sizes.
    """

    name: str
    read: Callable[[NamedData], SourceSplits]
    images: str
    size: str
    classes: int
    files: tuple[str, ...]
    get: str
    citation: str
    largest: int | None = None


def resized(images: ImageSet, options: NamedData) -> ImageSet:
    """Return the images with the size and channels of `options`."""
    pixels = resize_array(images.images.permute(0, 2, 3, 1).numpy(), options.preprocessing)
    return replace(images, images=pixels)

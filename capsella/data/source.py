"""What a source of images is: a reader, and what `capsella data list` says about it."""

from collections.abc import Callable
from dataclasses import dataclass

from capsella.data.images import ImageSet
from capsella.data.options import DataOptions


@dataclass(frozen=True, eq=False)
class Parts:
    """What a source reads: its images, and the splits it brings along; `load_data` holds out what is missing."""

    name: str
    train: ImageSet
    validation: ImageSet | None = None
    test: ImageSet | None = None
    broken: tuple[str, ...] = ()

    def named(self) -> dict[str, ImageSet]:
        """Those of the three sets that the source has, by name, in the order train, validation, test."""
        sets = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: images for split, images in sets.items() if images is not None}


@dataclass(frozen=True)
class Source:
    """A named source."""

    name: str
    read: Callable[[DataOptions], Parts]
    images: str
    """Images in train / validation / test, as the source parts them."""
    size: str
    """Height × width × channels as stored."""
    classes: int
    files: tuple[str, ...]
    """The files it reads, relative to the data root; none where the images come with a library."""
    get: str
    """How to come by them."""
    citation: str

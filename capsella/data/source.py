"""What a source of images is: a reader, and what `capsella list data` says about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from capsella.data.images import ImageSet
from capsella.data.options import NamedData
from capsella.data.reading import resize_array
from capsella.errors import CapsellaError


@dataclass(frozen=True, eq=False)
class Parts:
    """What a source reads: its images, and the splits it brings along; `load_data` holds out what is missing."""

    name: str
    train: ImageSet
    validation: ImageSet | None = None
    test: ImageSet | None = None
    broken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was noticed while reading, a line each."""
    cell_radius: float | None = None
    """Of a usual nucleus, where stained cells were cut out by it; in pixels of the files."""

    @classmethod
    def of_own(
        cls, name: str, sets: Mapping[str, ImageSet], broken: tuple[str, ...], notes: tuple[str, ...] = ()
    ) -> "Parts":
        """The three sets of a split of one's own; only validation may be empty, and is held out later.

        Raises:
            CapsellaError: there are no images to train on, or none to test on.
        """
        for split in ("train", "test"):
            if len(sets[split]) == 0:
                raise CapsellaError(
                    f"{name}: the {split} split is empty; a split of one's own must have train and test images"
                )
        validation = sets["validation"] if len(sets["validation"]) else None
        return cls(name, sets["train"], validation, sets["test"], broken, notes)

    def named(self) -> dict[str, ImageSet]:
        """Those of the three sets that the source has, by name, in the order train, validation, test."""
        sets = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: images for split, images in sets.items() if images is not None}


def resized(images: ImageSet, options: NamedData) -> ImageSet:
    """The images at the size and with the channels that `options` ask for."""
    pixels = resize_array(images.images.permute(0, 2, 3, 1).numpy(), options.height_width, options.channels)
    return replace(images, images=pixels)


@dataclass(frozen=True)
class Source:
    """A named source."""

    name: str
    read: Callable[[NamedData], Parts]
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

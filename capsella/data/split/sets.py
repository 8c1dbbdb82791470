"""`Splits`: the images to train on, to choose a model by, and to test it on."""

import copy
from dataclasses import dataclass
from hashlib import blake2b

from capsella.data.images import ImageSet
from capsella.data.pairs import PairSet
from capsella.errors import CapsellaError
from capsella.image_options import ValueRange

LabelledImages = ImageSet | PairSet
"""What a split holds: images of one class each, or pairs of images of two."""
SPLIT_NAMES = ("train", "validation", "test")


@dataclass(frozen=True)
class HeldBack:
    """Test images that are held back: only the names of their files are left."""

    files: tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class Splits:
    """Train, validation and test images of the same classes, channels and size.

    Raises:
        CapsellaError: there is one class only, a split is empty, the splits are not alike, a class has no image to
            train on, or images of one group are in two splits.
    """

    name: str
    """What the images are called: the source's name, or that of the folder or file."""
    train: LabelledImages
    validation: LabelledImages
    test: LabelledImages
    broken: tuple[str, ...] = ()
    """The files that were left out because they cannot be read, each with the reason."""
    notes: tuple[str, ...] = ()
    """What was noticed while reading, a line each, as which files were passed over."""
    value_range: ValueRange | None = None
    """The values that became 0 and 255 in files of more than 8 bits a channel; None where there are none."""
    cell_radius: float | None = None
    """Of a usual nucleus, where stained cells were cut out by it; in pixels of the files."""

    def __post_init__(self) -> None:
        if len(self.train.classes) < 2:
            raise CapsellaError(f"{self.name}: must have at least 2 classes, got {list(self.train.classes)}")
        for split, images in self.named().items():
            if len(images) == 0:
                raise CapsellaError(f"{self.name}: every split must hold images, but {split} is empty")
            self._check_alike(split, images)
        for name, count in self.train.counts().items():
            if count == 0:
                raise CapsellaError(f"{self.name}: the class {name!r} has no image in train")
        self._check_groups()

    def without_test(self) -> "Splits":
        """Return the same splits without test images: any use of them other than their file names raises an error."""
        held_back = copy.copy(self)
        object.__setattr__(held_back, "test", HeldBack(self.test.files))
        return held_back

    def digests(self) -> dict[str, str]:
        """Of train and validation: the number of images, and a digest of their file names, if any, and classes.

        Equal ones were parted alike: no test image was among them.
        """
        seen = {"train": self.train, "validation": self.validation}
        return {split: f"{len(images)} {_digest(images)}" for split, images in seen.items()}

    def _check_alike(self, split: str, images: LabelledImages) -> None:
        for what in ("classes", "channels", "image_size"):
            here, there = getattr(images, what), getattr(self.train, what)
            if here != there:
                raise CapsellaError(
                    f"{self.name}: {what} must be the same in every split, got {there} in train and {here} in {split}"
                )

    def _check_groups(self) -> None:
        """A patient seen in training makes a test look better than it is."""
        split_of: dict[int, str] = {}
        for split, images in self.named().items():
            if "group" not in images.metadata:
                continue
            for group in images.metadata["group"].unique().tolist():
                other = split_of.setdefault(group, split)
                if other != split:
                    first = int((images.metadata["group"] == group).nonzero()[0])
                    example = f"image {first}" if images.files is None else images.files[first]
                    raise CapsellaError(
                        f"{self.name}: images of one group must be in one split, "
                        f"but the group of {example} is in {other} and in {split}"
                    )

    def named(self) -> dict[str, LabelledImages]:
        """The three sets by name, in the order train, validation, test."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, the same in every split."""
        return self.train.classes

    @property
    def channels(self) -> int:
        """Number of channels, the same in every split."""
        return self.train.channels

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width), the same in every split."""
        return self.train.image_size


def single_images(images: LabelledImages, purpose: str) -> ImageSet:
    """The same images, for what is defined for one class an image only, which `purpose` names in the plural.

    Raises:
        CapsellaError: they are pairs.
    """
    if not isinstance(images, ImageSet):
        raise CapsellaError(f"{purpose} are for images of one class each, and those of the run are pairs")
    return images


def _digest(images: LabelledImages) -> str:
    single = images.source if isinstance(images, PairSet) else images
    seen = blake2b(repr(single.files).encode(errors="surrogateescape"), digest_size=16)
    seen.update(repr(single.classes).encode(errors="surrogateescape"))
    seen.update(single.labels.numpy().tobytes())
    return seen.hexdigest()

"""What a folder of images is like, from the names and headers of its files."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from PIL import Image

from capsella.data.folder import list_files
from capsella.data.listing import PassedOver, spread
from capsella.data.reading import FORMATS
from capsella.errors import CapsellaError

SAMPLED = 200
"""Files whose headers are read, spread evenly over the folder; and one of each class."""


@dataclass(frozen=True)
class Outline:
    """A folder of images, before any pixel of it is read."""

    path: Path
    images: int
    """How many files; some may turn out to be broken."""
    train: int | None
    """Those in the folder `train`, where the folder is split already."""
    validation: bool
    """Whether it has validation images of its own."""
    classes: tuple[str, ...]
    height: int
    """Pixels, the median of the files that were looked at."""
    width: int
    channels: int
    """1 where every file that was looked at is grey, or else 3."""

    def __str__(self) -> str:
        """In words.

        >>> print(Outline(Path("cells"), 351, None, False, ("a", "b"), 224, 224, 3))
        351 images in 2 classes, mostly 224×224 pixels, colour
        """
        kind = "grey" if self.channels == 1 else "colour"
        size = f"mostly {self.width}×{self.height} pixels"
        return f"{self.images:,} images in {len(self.classes)} classes, {size}, {kind}"


def outline(path: Path) -> Outline:
    """Look at a folder with one sub-folder a class.

    Raises:
        CapsellaError: no such folder, no classes, or no image among those looked at whose header can be read.
    """
    files = list_files(path, PassedOver())
    first = {file.label: file for file in reversed(files)}  # a class of few files may have colours that no other has
    some = [*(files[row] for row in spread(len(files), SAMPLED)), *first.values()]
    headers = [header for file in some if (header := _header(path / file.path)) is not None]
    if not headers:
        raise CapsellaError(f"{path}: must hold images that can be read, got none among its {len(files)} files")
    sizes = [image.size for image in headers]
    return Outline(
        path=path,
        images=len(files),
        train=sum(file.split == "train" for file in files) or None,
        validation=any(file.split == "validation" for file in files),
        classes=tuple(sorted({file.label for file in files})),
        height=median_low(height for _, height in sizes),
        width=median_low(width for width, _ in sizes),
        channels=1 if all(_is_grey(image.mode) for image in headers) else 3,
    )


def _header(path: Path) -> Image.Image | None:
    """None where there is none: what is wrong with a file is said when it is read."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _is_grey(mode: str) -> bool:
    return mode in ("1", "L", "LA", "La") or mode.startswith("I") or mode == "F"

"""Image files to tensors: one way to decode, convert and resize, for training, prediction and .npz files alike."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError
from torch import Tensor

from capsella.data.cell_crop import cut_cell
from capsella.data.deep_values import FORMATS, depth_of, raw_mode, read_values, stated_range, to_8_bits
from capsella.data.framing import cropped_share, fit_image
from capsella.environment import free_memory
from capsella.errors import CapsellaError, check_argument, pluralize
from capsella.image_options import CellCut, Fit, Preprocessing, ValueRange
from capsella.progress import tracked

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp")
MAX_PIXELS = 80_000_000  # a small file can unpack to enough pixels to exhaust the memory
MAX_BYTES = 400_000_000  # MAX_PIXELS of four bytes are 320,000,000
MOST_OUTSIDE = 0.5  # proportion of values outside the learned range above which a file is not predicted
LEAST_LOSS = 0.01  # proportion of an image, or of its values, that is worth a note
_SHOW_PROGRESS_FROM = 2_000
_MAX_NAMED = 10  # broken files in an error

Facts = TypeVar("Facts")
Pixels = TypeVar("Pixels", bound=Tensor | None)


@dataclass(frozen=True, eq=False)
class ImageData:
    """An image file's pixels, upright and at their own size.

    Attributes:
        image: pixels of 8 bits per channel, grey ("L") or in sRGB colours ("RGB"), black where they are transparent.
        values: pixels of more than 8 bits per channel, [h w] or [h w 3]; then `image` is None.
        depth: depth of a file of more than 8 bits, e.g. "16 bits".
        stated: range that a file of more than 8 bits states.
        transparent: True if the file has transparent pixels.
    """

    image: Image.Image | None
    values: Shaped[np.ndarray, "h w *c"] | None = None
    depth: str | None = None
    stated: ValueRange | None = None
    transparent: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)."""
        return self.image.size if self.image is not None else self._values.shape[1::-1]

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return len(self.image.getbands()) if self.image is not None else 1 if self._values.ndim == 2 else 3

    @property
    def _values(self) -> Shaped[np.ndarray, "h w *c"]:
        assert self.values is not None
        return self.values

    def decode(self, preprocessing: Preprocessing) -> "Decoded":
        """Return the image in a network's format, and how much of it the network does not see.

        Raises:
            CapsellaError: the file has more than 8 bits, and no range is set; or there is no stained cell to crop.
        """
        value_range, outside = preprocessing.value_range, 0.0
        if self.image is not None:
            image = self.image
        elif value_range is None:
            raise CapsellaError(
                f"it has {self.depth} per channel, and no range says which values are black and white; set one, "
                "e.g. --range 0 4095, or save it with 8 bits"
            )
        else:
            outside = float(((self._values < value_range[0]) | (self._values > value_range[1])).mean())
            image = Image.fromarray(to_8_bits(self._values, value_range))
        return Decoded(to_tensor(image, preprocessing), UnseenPart(cropped_by(preprocessing, self.size), outside))


class UnseenPart(NamedTuple):
    """The part of a file that a network does not see: fractions cropped away, and of values outside the range."""

    cropped: float = 0.0
    outside: float = 0.0

    def check(self, value_range: ValueRange | None, most_outside: float = MOST_OUTSIDE) -> None:
        """Raise `CapsellaError` if more than `most_outside` of the values lie outside the range."""
        if value_range is not None and self.outside > most_outside:
            low, high = value_range
            text = f"{self.outside:.0%} of its values lie outside the learned range {low:g} to {high:g}"
            raise CapsellaError(f"{text}; --range LOW HIGH sets another")


NOTHING_UNSEEN = UnseenPart()


class Decoded(NamedTuple):
    """An image in a network's format, [c h w], 0..255, and how much of the file it lacks."""

    pixels: UInt8[Tensor, "c h w"]
    loss: UnseenPart


@dataclass
class UnseenCount:
    """A count of files that the network sees only in part.

    cropped, most_cropped: number of files of which at least 1 % is cropped away, and the largest such fraction.
    outside, most_outside: number of files with at least 1 % of values outside the range, and the largest fraction.
    """

    cropped: int = 0
    most_cropped: float = 0.0
    outside: int = 0
    most_outside: float = 0.0

    @classmethod
    def of(cls, losses: Iterable[UnseenPart]) -> "UnseenCount":
        """Return the count of several files."""
        count = cls()
        for loss in losses:
            count.add(loss)
        return count

    def add(self, loss: UnseenPart) -> None:
        """Count a file if at least 1 % of it is not seen, and update the largest fractions."""
        self.cropped += loss.cropped >= LEAST_LOSS
        self.outside += loss.outside >= LEAST_LOSS
        self.most_cropped = max(self.most_cropped, loss.cropped)
        self.most_outside = max(self.most_outside, loss.outside)

    def lines(self) -> tuple[str, ...]:
        """Return a line on cropped files and one on values outside the range, if there are such files."""
        lines = []
        if self.cropped:
            images, most = pluralize(self.cropped, "image"), f"up to {self.most_cropped:.0%} of an image"
            lines.append(f"the sides of {images} are cropped to the network's shape, {most}; --fit pad keeps them")
        if self.outside:
            files, most = pluralize(self.outside, "file"), f"up to {self.most_outside:.1%} of a file"
            lines.append(f"values of {files} lie outside the range that becomes black to white, {most}")
        return tuple(lines)


def read_image(
    path: Path,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    value_range: ValueRange | None = None,
    cut: CellCut | None = None,
    fit: Fit = "crop",
) -> UInt8[Tensor, "c h w"]:
    """Read a PNG, JPEG, BMP, TIFF, GIF or WebP image, turned upright by its EXIF data, in sRGB colours.

    Grey stays one channel, everything else, and every GIF, becomes RGB; transparent pixels become black.

    Args:
        path: the file.
        size: (height, width) to resize to, with Pillow's antialiased bicubic filter; None keeps the size.
        channels: 1 for grey (Rec. 601 luma), 3 for RGB, or None to keep the channels.
        value_range: (low, high), the values that become 0 and 255 in a file of more than 8 bits per channel. Files of
            8 bits are used unchanged.
        cut: crop the stained cell, see `cut_cell`; needs a size.
        fit: how an image of another aspect ratio is fitted into `size`, see `fit_image`.

    Returns:
        [c h w], 0..255.

    Raises:
        CapsellaError: the file is missing, unreadable, truncated, of an unsupported format, of several pages, larger
            than `MAX_PIXELS` or `MAX_BYTES`, or a folder, a pipe or a device; or it has more than 8 bits per channel
            and `value_range` is None; or it shows no stained cell to crop.
        ArgumentError: an invalid size, number of channels, range or crop.
    """
    check_argument(channels in (1, 3, None), "be 1, 3 or None", channels=channels)
    return decode(Path(path), str(path), Preprocessing(size, channels, value_range, cut, fit)).pixels


def decode(file: Path | BytesIO, name: str, preprocessing: Preprocessing) -> Decoded:
    """Decode an image file, or the bytes of one, like `read_image`; `name` is the file's name in errors."""
    with readable(file, name):
        return open_image(file).decode(preprocessing)


def cropped_by(preprocessing: Preprocessing, image_size: tuple[int, int]) -> float:
    """Return the fraction of an image of (width, height) that `fit` crops away; 0 if a stained cell is cropped."""
    crops = preprocessing.fit == "crop" and preprocessing.cut is None and preprocessing.size is not None
    return cropped_share(image_size, preprocessing.size or (1, 1)) if crops else 0.0


@contextmanager
def readable(file: Path | BytesIO, name: str) -> Iterator[None]:
    """Turn every error of reading an image file into a `CapsellaError` that begins with `name`."""
    try:
        yield
    except FileNotFoundError:
        raise CapsellaError(f"{name}: no such file") from None
    except MemoryError:
        raise
    except Exception as error:  # decoders raise errors of every kind on damaged bytes
        reason = str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            start = file.getvalue()[:12] if isinstance(file, BytesIO) else file.open("rb").read(12)
            is_phone = start[4:8] == b"ftyp"
            reason = "it is a HEIC or AVIF file; save it as PNG" if is_phone else "no image of a format that is read"
        raise CapsellaError(f"{name}: cannot be read as an image ({reason})") from error


def open_image(file: Path | BytesIO) -> ImageData:
    """Check an image file's header, and decode it once.

    Raises:
        CapsellaError: it is no single picture of a supported size. Exception: any error of Pillow's decoders.
    """
    if isinstance(file, Path):
        _check_file(file)
    with Image.open(file, formats=FORMATS) as image:
        _check_header(image)
        if (depth := depth_of(image)) is not None:
            return ImageData(None, read_values(file), depth, stated_range(image))
        image.filename = ""  # no memory map, as in `read_values`
        level = image.info.get("transparency")  # Pillow scales grey levels of 2 and 4 bits to 8 bits, but not this one
        if image.format == "PNG" and isinstance(level, int) and image.tile:
            image.info["transparency"] = level * 255 // {"L;2": 3, "L;4": 15}.get(raw_mode(image.tile[0]), 255)
        image.load()
        upright = to_grey_or_rgb(_in_srgb(ImageOps.exif_transpose(image)))
        if image.format == "GIF":  # some programs write grey GIFs with a palette of colours
            upright = upright.convert("RGB")
        return ImageData(upright, transparent=image.has_transparency_data)


def _check_file(file: Path) -> None:
    # Before anything is read: a pipe would block without end, a device never ends.
    status = file.stat()
    if stat.S_ISDIR(status.st_mode):
        os.scandir(file).close()  # a folder that cannot be listed raises the reason
        raise CapsellaError("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise CapsellaError("it is a pipe or a device, not a file")
    if status.st_size == 0:
        raise CapsellaError("the file is empty")
    if status.st_size > MAX_BYTES:
        raise CapsellaError(f"{status.st_size:,} bytes; at most {MAX_BYTES:,} are read")


def _check_header(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise CapsellaError(f"{width}×{height} pixels; at most {MAX_PIXELS:,} are read")
    pages = getattr(image, "n_frames", 1) if image.format in ("TIFF", "PNG", "GIF", "WEBP") else 1
    if pages > 1:
        raise CapsellaError(f"it has {pages} pages or pictures; save each as a file of its own")


def _in_srgb(image: Image.Image) -> Image.Image:
    """Convert colours by the image's colour profile, as viewers and browsers do."""
    profile = image.info.get("icc_profile")
    if not profile or image.mode not in ("RGB", "RGBA", "P"):
        return image
    transform = _srgb_transform(profile)
    if transform is None:
        return image
    image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    converted = ImageCms.applyTransform(image.convert("RGB"), transform)
    assert converted is not None  # None is for transforms in place
    if image.mode == "RGBA":
        converted.putalpha(image.getchannel("A"))
    return converted


@lru_cache(maxsize=32)
def _srgb_transform(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    """Return the transform from a profile to sRGB; None for sRGB itself, and for a profile that cannot be used."""
    try:
        source, srgb = ImageCms.ImageCmsProfile(BytesIO(profile)), ImageCms.createProfile("sRGB")
        transform = ImageCms.buildTransform(source, srgb, "RGB", "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None
    levels = np.arange(0, 256, 51)
    colours = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(36, 6, 3).astype(np.uint8)
    converted = np.asarray(ImageCms.applyTransform(Image.fromarray(colours), transform))
    return transform if np.abs(converted.astype(int) - colours).max() > 2 else None


def to_tensor(image: Image.Image, preprocessing: Preprocessing) -> UInt8[Tensor, "c h w"]:
    """Convert, crop and resize an image of mode L or RGB; channels and size that fit are left unchanged."""
    size, channels, cut = preprocessing.size, preprocessing.channels, preprocessing.cut
    if cut is not None and size is not None:
        if image.mode == "L":
            raise CapsellaError("it is grey: stained cells are found by their colour")
        image = cut_cell(image, size, cut)
    if channels is not None and channels != len(image.getbands()):
        image = image.convert("L" if channels == 1 else "RGB")
    if size is not None and image.size != (size[1], size[0]):
        image = fit_image(image, size, preprocessing.fit)
    pixels = torch.from_numpy(np.array(image))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def to_grey_or_rgb(image: Image.Image) -> Image.Image:
    """Convert to mode L if an image is grey, else to RGB; transparent pixels become black."""
    mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    return image.convert(mode)


def picture_of(pixels: UInt8[np.ndarray, "h w c"]) -> Image.Image:
    """Return an array of 1 or 3 channels as an image."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def resize_array(images: UInt8[np.ndarray, "n h w c"], preprocessing: Preprocessing) -> UInt8[Tensor, "n c2 h2 w2"]:
    """Convert and resize arrays of pixels like `read_image`."""
    height_width, own_channels = images.shape[1:3], images.shape[3]
    size, channels = preprocessing.size, preprocessing.channels
    same = size in (None, height_width) and channels in (None, own_channels) and preprocessing.cut is None
    if same or not len(images):
        return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    check_memory(len(images), size or height_width, channels or own_channels)
    return torch.stack([to_tensor(picture_of(image), preprocessing) for image in images])


def rgb_images(files: Iterable[Path | BytesIO]) -> Iterator[Image.Image]:
    """Yield the readable 8-bit colour images, upright; skip all other files."""
    for file in files:
        try:
            with readable(file, ""):
                decoded = open_image(file)
        except CapsellaError:  # the error is reported when all images are read
            continue
        if decoded.image is not None and decoded.channels == 3:
            yield decoded.image


def read_all(
    readers: Mapping[str, Callable[[], tuple[Pixels, Facts]]], skip_broken: bool
) -> tuple[list[tuple[Pixels, Facts]], list[int], tuple[str, ...]]:
    """Call readers in threads; return results in order. Pillow releases Python's lock while it decodes.

    Args:
        readers: by the name of the image; each returns pixels [c h w], or None, and facts about the image.
        skip_broken: leave out what cannot be read.

    Returns:
        The results, their positions among `readers`, and the errors of the others.

    Raises:
        CapsellaError: an image cannot be read, unless `skip_broken`; none can; or all do not fit in memory.
    """
    results, positions, errors = list[tuple[Pixels, Facts]](), list[int](), list[str]()
    pool = ThreadPoolExecutor()
    try:
        outcomes = pool.map(_attempt, readers.values())
        shown = tracked(outcomes, "reading images", len(readers), is_shown=len(readers) >= _SHOW_PROGRESS_FROM)
        for position, outcome in enumerate(shown):
            if isinstance(outcome, CapsellaError):
                errors.append(str(outcome))
                continue
            pixels = outcome[0]
            if not results and pixels is not None:
                check_memory(len(readers), (pixels.shape[1], pixels.shape[2]), pixels.shape[0])
            results.append(outcome)
            positions.append(position)
    finally:
        pool.shutdown(cancel_futures=True)
    if errors and not skip_broken:
        number = "" if len(errors) == 1 else f"{len(errors)} files cannot be read: "
        more = f"; and {len(errors) - _MAX_NAMED} more" if len(errors) > _MAX_NAMED else ""
        remedy = "Repair or remove such files, or leave them out with --skip-broken"
        raise CapsellaError(f"{number}{'; '.join(errors[:_MAX_NAMED])}{more}. {remedy}")
    if not results:
        raise CapsellaError("there is no image that can be read")
    return results, positions, tuple(errors)


def _attempt(reader: Callable[[], tuple[Pixels, Facts]]) -> tuple[Pixels, Facts] | CapsellaError:
    try:
        return reader()
    except CapsellaError as error:
        return error


def check_memory(number: int, size: tuple[int, int], channels: int) -> None:
    """Check that this many images of (height, width) fit into the free memory.

    Raises:
        CapsellaError: they do not.
    """
    height, width = size
    needed = 2 * number * height * width * channels  # the images that were read, and a copy in splits
    free = free_memory()
    if free is not None and needed > free:
        raise CapsellaError(
            f"{pluralize(number, 'image')} of {height}×{width}×{channels} need {needed / 2**30:,.1f} GiB of memory to "
            f"load, and {free / 2**30:,.1f} GiB are free; make them smaller, e.g. with --size 64"
        )


def stack(images: Sequence[UInt8[Tensor, "c h w"]], names: Sequence[str]) -> UInt8[Tensor, "n c h w"]:
    """Stack images.

    Raises:
        CapsellaError: they differ in channels or size; names examples.
    """
    for what, remedy, of in (
        ("numbers of channels", "--channels 1 or 3", lambda shape: str(shape[0])),
        ("sizes (height×width)", "e.g. --size 64", lambda shape: f"{shape[1]}×{shape[2]}"),
    ):
        values = [of(image.shape) for image in images]
        if len(set(values)) > 1:
            examples = [
                f"{value} ({pluralize(values.count(value), 'image')}, e.g. {names[values.index(value)]})"
                for value in sorted(set(values))
            ]
            raise CapsellaError(f"images have different {what}; set {remedy}. Got {', '.join(examples[:4])}")
    return torch.stack([*images])

"""Image files to tensors: one way to decode, convert and resize for training, prediction and packed sets alike."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageCms, ImageFile, ImageOps, UnidentifiedImageError
from torch import Tensor

from capsella.data.cell_crop import cut_cell
from capsella.data.deep_values import FORMATS, depth_of, raw_mode, read_values, to_8_bits
from capsella.data.framing import cropped_share, fit_image
from capsella.environment import free_memory
from capsella.errors import CapsellaError, check_argument, pluralize, warn_once
from capsella.image_options import CellCut, Fit, Preprocessing, ValueRange
from capsella.progress import tracked

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp")
MAX_PIXELS = 80_000_000  # a small file can unpack to enough pixels to exhaust the memory
MAX_BYTES = 400_000_000  # MAX_PIXELS of four bytes are 320,000,000

MOST_OUTSIDE = 0.5  # proportion of values outside the learned range above which a file is not predicted
LEAST_LOSS = 0.01  # proportion of an image, or of its values, that is worth a note

ImageCallback = Callable[[Image.Image], object]
_SHOW_PROGRESS_FROM = 2_000
_MAX_NAMED = 10  # broken files in an error
_GREY_BITS = {"L;2": 2, "L;4": 4}
_OTHER_FORMATS = {  # position and bytes in a file, and what it then is
    "an AVIF file": ((4, b"ftypavif"), (4, b"ftypavis")),
    "a HEIC file": ((4, b"ftyphei"), (4, b"ftyphev"), (4, b"ftypmif1"), (4, b"ftypmsf1")),
    "a JPEG XL file": ((0, b"\xff\x0a"), (4, b"JXL ")),
    "a JPEG 2000 file": ((4, b"jP  "),),
    "a TIFF file of numbers that are not read, e.g. floating-point numbers of 64 bits": ((0, b"II*\0"), (0, b"MM\0*")),
}


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
        fit: how an image of other proportions fits into `size`, see `fit_image`.

    Returns:
        [c h w], 0..255.

    Raises:
        CapsellaError: the file is missing, unreadable, truncated, of another format, of several pages, larger than
            `MAX_PIXELS` or `MAX_BYTES`, or a folder, a pipe or a device; or it has more than 8 bits per channel and
            `value_range` is None; or it shows no stained cell to crop.
        ArgumentError: an invalid size, number of channels, range or crop.
    """
    check_argument(channels in (1, 3, None), "be 1, 3 or None", channels=channels)
    return decode(Path(path), str(path), Preprocessing(size, channels, value_range, cut, fit)).pixels


class Loss(NamedTuple):
    """The proportions of a file that a network does not see: cropped away, and values outside its range."""

    cropped: float = 0.0
    outside: float = 0.0

    def check(self, value_range: ValueRange | None, most_outside: float = MOST_OUTSIDE) -> None:
        """Raise `CapsellaError` if more than `most_outside` of the values lie outside the range."""
        if value_range is not None and self.outside > most_outside:
            low, high = value_range
            text = f"{self.outside:.0%} of its values lie outside the learned range {low:g} to {high:g}"
            raise CapsellaError(f"{text}; --range LOW HIGH sets another")


NOTHING_LOST = Loss()


class Decoded(NamedTuple):
    """An image as a network takes it, [c h w], 0..255, and what that lacks of the file."""

    pixels: UInt8[Tensor, "c h w"]
    loss: Loss


@dataclass
class LossCount:
    """The parts of several files that the network does not see.

    cropped, most_cropped: files of which at least 1 % is cropped away, and the largest proportion. outside,
    most_outside: files with at least 1 % of the values outside the range, likewise.
    """

    cropped: int = 0
    most_cropped: float = 0.0
    outside: int = 0
    most_outside: float = 0.0

    @classmethod
    def of(cls, losses: Iterable[Loss]) -> "LossCount":
        """Count what is not seen of files."""
        count = cls()
        for loss in losses:
            count.add(loss)
        return count

    def add(self, loss: Loss) -> None:
        """Count what is not seen of a file."""
        self.cropped += loss.cropped >= LEAST_LOSS
        self.outside += loss.outside >= LEAST_LOSS
        self.most_cropped = max(self.most_cropped, loss.cropped)
        self.most_outside = max(self.most_outside, loss.outside)

    def lines(self) -> tuple[str, ...]:
        """Return a line for each of the two, if there are such files."""
        if not self.cropped:
            return self.outside_lines()
        images, most = pluralize(self.cropped, "image"), f"up to {self.most_cropped:.0%} of an image"
        return (f"the sides of {images} are cropped to the network's shape, {most}", *self.outside_lines())

    def outside_lines(self) -> tuple[str, ...]:
        """Return at most one line."""
        if not self.outside:
            return ()
        files, most = pluralize(self.outside, "file"), f"up to {self.most_outside:.1%} of a file"
        return (f"values of {files} lie outside the range that becomes black to white, {most}",)


def decode(
    file: Path | BytesIO, name: str, preprocessing: Preprocessing, callback: ImageCallback | None = None
) -> Decoded:
    """Decode an image file, or the bytes of one, like `read_image`.

    Args:
        file: the file.
        name: the file's name in errors.
        preprocessing: what to make of it.
        callback: called with the upright image, before it is converted and resized.
    """
    with opened(file, name) as image:
        depth = depth_of(image)
        if callback is not None:
            callback(ImageOps.exif_transpose(image))
        if depth is None:
            if image.format == "GIF":  # whether greys are stored as colours of a palette is the writer's choice
                preprocessing = replace(preprocessing, channels=preprocessing.channels or 3)
            image.load()
            _warn_if_invisible(image, name)
            upright, outside = _in_srgb(ImageOps.exif_transpose(image)), 0.0
        elif (value_range := preprocessing.value_range) is None:
            raise CapsellaError(
                f"it has {depth} per channel, and no range says which values are black and white; set one, "
                "e.g. --range 0 4095, or save it with 8 bits"
            )
        else:
            values = read_values(file)
            outside = float(((values < value_range[0]) | (values > value_range[1])).mean())
            upright = Image.fromarray(to_8_bits(values, value_range))
        loss = Loss(cropped_by(preprocessing, upright.size), outside)
        return Decoded(to_tensor(upright, preprocessing), loss)


def cropped_by(preprocessing: Preprocessing, image_size: tuple[int, int]) -> float:
    """Return the share of an image of (width, height) that is cropped away; stained cells are searched for in all."""
    crops = preprocessing.fit == "crop" and preprocessing.cut is None and preprocessing.size is not None
    return cropped_share(image_size, preprocessing.size or (1, 1)) if crops else 0.0


@contextmanager
def opened(file: Path | BytesIO, name: str) -> Iterator[ImageFile.ImageFile]:
    """Open an image file and check its header; `name` is the file's name in errors.

    Raises:
        CapsellaError: as `read_image`, here and while the image is used.
    """
    try:
        if isinstance(file, Path):
            _check_file(file)
        with Image.open(file, formats=FORMATS) as image:
            image.filename = ""  # no memory map: Pillow maps a TIFF that lies on its side with the wrong row length
            _check_header(image)
            _scale_transparent_level(image)
            yield image
    except FileNotFoundError:
        raise CapsellaError(f"{name}: no such file") from None
    except MemoryError:
        raise
    except Exception as error:  # decoders raise errors of every kind on damaged bytes
        reason = _other_format(file) if isinstance(error, UnidentifiedImageError) else ""
        reason = reason or str(error) or type(error).__name__
        raise CapsellaError(f"{name}: cannot be read as an image ({reason})") from error


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


def _scale_transparent_level(image: ImageFile.ImageFile) -> None:
    # Pillow scales the levels of a grey PNG of 2 or 4 bits to 8 bits, but not the level that is transparent.
    level = image.info.get("transparency")
    if image.format == "PNG" and isinstance(level, int) and image.tile:
        bits = _GREY_BITS.get(raw_mode(image.tile[0]), 8)
        image.info["transparency"] = level * 255 // (2**bits - 1)


def _other_format(file: Path | BytesIO) -> str:
    """Return what a file is that is named like an image, with a remedy; "" if it is unknown."""
    start = file.getvalue()[:32] if isinstance(file, BytesIO) else file.open("rb").read(32)
    for what, marks in _OTHER_FORMATS.items():
        if any(start[position:].startswith(mark) for position, mark in marks):
            return f"it is {what}; save it as PNG, or as TIFF with 8, 16 or 32 bits"
    return ""


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
    """Convert to grey or RGB, crop and resize like `read_image`; channels and size that fit are left unchanged."""
    image = to_grey_or_rgb(image)
    own_channels = 1 if image.mode == "L" else 3
    size, channels, cut = preprocessing.size, preprocessing.channels, preprocessing.cut
    if cut is not None and size is not None:
        if own_channels == 1:
            raise CapsellaError("it is grey: stained cells are found by their colour")
        image = cut_cell(image, size, cut)
    if channels is not None and channels != own_channels:
        image = image.convert("L" if channels == 1 else "RGB")
    if size is not None and image.size != (size[1], size[0]):
        image = fit_image(image, size, preprocessing.fit)
    pixels = torch.from_numpy(np.array(image))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def to_grey_or_rgb(image: Image.Image) -> Image.Image:
    """Convert to mode L if an image is grey, else to RGB; transparent pixels become black."""
    mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
    return (_on_black(image) if image.has_transparency_data else image).convert(mode)


def _on_black(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)


def _warn_if_invisible(image: Image.Image, name: str) -> None:
    """Warn once of an image that has a single colour without transparency, e.g. black ink on nothing."""
    if not image.has_transparency_data or (np.asarray(image.convert("RGBA").getchannel("A")) == 255).all():
        return
    if ((seen := np.asarray(_on_black(image))) == seen[0, 0]).all():
        text = f"{name}: has a single colour once transparent pixels are black, and there may be more such files. "
        warn_once("invisible", f"{text}Save them on a background of another colour")


def resize_array(images: UInt8[np.ndarray, "n h w c"], preprocessing: Preprocessing) -> UInt8[Tensor, "n c2 h2 w2"]:
    """Convert and resize arrays of pixels like `read_image`."""
    height_width, own_channels = images.shape[1:3], images.shape[3]
    size, channels, cut = preprocessing.size, preprocessing.channels, preprocessing.cut
    if (size in (None, height_width) and channels in (None, own_channels) and cut is None) or not len(images):
        return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    check_memory(len(images), size or height_width, channels or own_channels)
    pictures = (Image.fromarray(image.squeeze(-1) if own_channels == 1 else image) for image in images)
    return torch.stack([to_tensor(picture, preprocessing) for picture in pictures])


def rgb_images(files: Iterable[Path | BytesIO]) -> Iterator[Image.Image]:
    """Yield the readable images in colour of 8 bits, upright."""
    for file in files:
        try:
            with opened(file, str(file)) as image:
                if depth_of(image) is None:
                    converted = to_grey_or_rgb(_in_srgb(ImageOps.exif_transpose(image)))
                    if converted.mode == "RGB":
                        yield converted
        except CapsellaError:  # its error shows when all images are read
            continue


def read_all(
    readers: Mapping[str, Callable[[], Tensor]], skip_broken: bool
) -> tuple[UInt8[Tensor, "n c h w"], list[int], list[CapsellaError]]:
    """Call every reader, several at a time, in order. Pillow decodes without Python's lock.

    Args:
        readers: by the names of their images.
        skip_broken: leave out what cannot be read.

    Returns:
        The images, their positions among `readers`, and the errors of the others.

    Raises:
        CapsellaError: an image cannot be read, unless `skip_broken`; none can; they differ in channels or size; or all
            together do not fit in memory.
    """
    images = torch.empty(0)
    shapes: dict[int, torch.Size] = {}  # by position
    errors: list[CapsellaError] = []
    pool = ThreadPoolExecutor()
    try:
        results = pool.map(_attempt, readers.values())
        shown = tracked(results, "reading images", len(readers), is_shown=len(readers) >= _SHOW_PROGRESS_FROM)
        for position, result in enumerate(shown):
            if isinstance(result, CapsellaError):
                errors.append(result)
                continue
            if not shapes:
                check_memory(len(readers), (result.shape[1], result.shape[2]), result.shape[0])
                images = result.new_empty(len(readers), *result.shape)  # each is written to its place, and released
            if result.shape == images.shape[1:]:
                images[len(shapes)] = result
            shapes[position] = result.shape
    finally:
        pool.shutdown(cancel_futures=True)
    if errors and not skip_broken:
        raise _joined_error(errors)
    names = list(readers)
    _check_shapes([*shapes.values()], [names[position] for position in shapes])
    return images[: len(shapes)], [*shapes], errors


def _attempt(reader: Callable[[], Tensor]) -> Tensor | CapsellaError:
    try:
        return reader()
    except CapsellaError as error:
        return error


def _joined_error(errors: Sequence[CapsellaError]) -> CapsellaError:
    number = "" if len(errors) == 1 else f"{len(errors)} files cannot be read: "
    more = f"; and {len(errors) - _MAX_NAMED} more" if len(errors) > _MAX_NAMED else ""
    named = "; ".join(map(str, errors[:_MAX_NAMED]))
    return CapsellaError(f"{number}{named}{more}. Repair or remove such files, or leave them out with --skip-broken")


def check_memory(number: int, size: tuple[int, int], channels: int) -> None:
    """Check that this many images of (height, width) fit into the free memory.

    Raises:
        CapsellaError: they do not.
    """
    height, width = size
    needed = 2 * number * height * width * channels  # the images as they are read, and once more as they are split
    free = free_memory()
    if free is not None and needed > free:
        raise CapsellaError(
            f"{pluralize(number, 'image')} of {height}×{width}×{channels} need {needed / 2**30:,.1f} GiB of memory to "
            f"load, and {free / 2**30:,.1f} GiB are free; make them smaller, e.g. with --size 64"
        )


def _check_shapes(shapes: Sequence[torch.Size], names: Sequence[str]) -> None:
    if not shapes:
        raise CapsellaError("there is no image that can be read")
    channels = [str(shape[0]) for shape in shapes]
    _check_alike("numbers of channels", "--channels 1 or 3", channels, names)
    sides = [side for shape in shapes for side in shape[1:]]
    remedy = f"e.g. --size 64 (sides have {min(sides)} to {max(sides)} pixels)"
    _check_alike("sizes (height×width)", remedy, [f"{shape[1]}×{shape[2]}" for shape in shapes], names)


def _check_alike(what: str, remedy: str, values: Sequence[str], names: Sequence[str]) -> None:
    if len(set(values)) > 1:
        examples = [
            f"{value} ({pluralize(values.count(value), 'image')}, e.g. {names[values.index(value)]})"
            for value in sorted(set(values))
        ]
        raise CapsellaError(f"images have different {what}; set {remedy}. Got {', '.join(examples[:4])}")

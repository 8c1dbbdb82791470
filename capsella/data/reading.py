"""Image files to tensors: one way to decode, convert and resize for training, prediction and packed sets alike."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import ExifTags, Image, ImageFile, ImageOps
from torch import Tensor

from capsella.data.cell_crop import cut_cell
from capsella.data.deep_values import FORMATS, depth_of, read_values, to_8_bits
from capsella.environment import free_memory
from capsella.errors import CapsellaError, check_argument, pluralize, warn_once
from capsella.image_options import CellCut, ValueRange, check_range
from capsella.progress import tracked

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp")
MOST_PIXELS = 80_000_000
"""A file that unpacks to more pixels is refused: a small file can hold enough of them to exhaust the memory."""
MOST_BYTES = 400_000_000
"""A larger file is refused: `MOST_PIXELS` of four bytes are 320,000,000, and what else a file holds is read as well."""

ImageCallback = Callable[[Image.Image], object]
_RESIZE = Image.Resampling.BICUBIC  # Pillow widens the kernel when shrinking, so small images are free of aliasing
_SHOW_PROGRESS_FROM = 2_000
_MOST_NAMED = 10  # broken files in an error


def read_image(
    path: Path,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    value_range: ValueRange | None = None,
    cut: CellCut | None = None,
) -> UInt8[Tensor, "c h w"]:
    """Read one PNG, JPEG, BMP, TIFF, GIF or WebP image, turned upright as its EXIF data say.

    Grey stays one channel, everything else, and every GIF, becomes RGB; transparent pixels become black.

    Args:
        path: the file.
        size: (height, width) to resize to, or None to keep the image's own: the centre of the image is cropped to
            that aspect ratio and resized with Pillow's antialiased bicubic filter.
        channels: 1 for grey (Rec. 601 luma), 3 for RGB, or None to keep the image's own.
        value_range: (low, high), the values that become 0 and 255 in a file of more than 8 bits a channel; a file of
            8 bits is taken as it is.
        cut: cuts out the stained cell in place of the centre, see `cut_cell`; with a `size`.

    Returns:
        [c h w], 0..255.

    Raises:
        CapsellaError: the file is missing, unreadable, truncated, of another format, of several pages, larger than
            `MOST_PIXELS` or `MOST_BYTES`, or no file but a folder, a pipe, a device; or it has more than 8 bits a
            channel, and there is no `value_range`; or it shows no stained cell to be cut out.
        ValueError: `size`, `channels`, `value_range` or `cut` cannot be.
    """
    check_argument(channels in (1, 3, None), "be 1, 3 or None, as no file holds a stereo pair", channels=channels)
    check_argument(size is None or min(size) >= 1, "be (height, width) of at least 1 pixel each", size=size)
    check_range(value_range)
    check_argument(size is not None or cut is None, "be None without a size", cut=cut)
    return decode(Path(path), str(path), size, channels, value_range, cut)


def decode(
    file: Path | BytesIO,
    name: str,
    size: tuple[int, int] | None,
    channels: int | None,
    value_range: ValueRange | None = None,
    cut: CellCut | None = None,
    callback: ImageCallback | None = None,
) -> UInt8[Tensor, "c h w"]:
    """Decode an image file, or the bytes of one, as `read_image` does; `name` is what errors call it.

    `callback` is called with the upright image, before it is converted and resized.
    """
    with opened(file, name) as image:
        depth = depth_of(image)
        if callback is not None:
            callback(ImageOps.exif_transpose(image))
        if depth is None:
            if image.format == "GIF":  # whose greys are colours of a palette, too, or not, as the writer chose
                channels = channels or 3
            image.load()
            _warn_of_the_unseen(image, name)
            return to_tensor(ImageOps.exif_transpose(image), size, channels, cut)
        if value_range is None:
            raise CapsellaError(
                f"it has {depth} a channel, and no range says which values are black and white; give one, "
                "as --range 0 4095, or save it with 8 bits"
            )
        return to_tensor(Image.fromarray(to_8_bits(read_values(file), value_range)), size, channels, cut)


class Loss(NamedTuple):
    """What a network does not see of a file: the proportion that is cropped away, and of values outside its range."""

    cropped: float
    outside: float


def measure_loss(
    file: Path | BytesIO, size: tuple[int, int], value_range: ValueRange | None = None, cut: CellCut | None = None
) -> Loss:
    """Measure what `read_image` loses of a file that it can read."""
    with opened(file, str(file)) as image:
        width, height = image.size
        if image.getexif().get(ExifTags.Base.Orientation, 1) >= 5:  # it lies on its side
            width, height = height, width
        is_deep = depth_of(image) is not None
    ratio = (width / height) / (size[1] / size[0])
    outside = 0.0
    if is_deep and value_range is not None:
        values = read_values(file)
        outside = float(((values < value_range[0]) | (values > value_range[1])).mean())
    return Loss(0.0 if cut is not None else 1 - min(ratio, 1 / ratio), outside)


@contextmanager
def opened(file: Path | BytesIO, name: str) -> Iterator[ImageFile.ImageFile]:
    """An image file of which the header is read and checked; `name` is what errors call it.

    Raises:
        CapsellaError: as `read_image` does, here and where the image is used.
    """
    try:
        if isinstance(file, Path):
            _check_file(file)
        with Image.open(file, formats=FORMATS) as image:
            image.filename = ""  # no memory map: Pillow maps a TIFF that lies on its side with the wrong row length
            _check_header(image)
            yield image
    except FileNotFoundError:
        raise CapsellaError(f"{name}: no such file") from None
    except MemoryError:
        raise
    except Exception as error:  # decoders raise errors of every kind on damaged bytes
        raise CapsellaError(f"{name}: cannot be read as an image ({error or type(error).__name__})") from error


def _check_file(file: Path) -> None:
    """Before anything is read: a pipe would be waited for without end, a device never ends."""
    status = file.stat()
    if stat.S_ISDIR(status.st_mode):
        os.scandir(file).close()  # a walk names a folder as a file where it cannot list it; the reason is this error
        raise CapsellaError("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise CapsellaError("it is a pipe or a device, no file")
    if status.st_size == 0:
        raise CapsellaError("the file is empty")
    if status.st_size > MOST_BYTES:
        raise CapsellaError(f"{status.st_size:,} bytes; at most {MOST_BYTES:,} are read")


def _check_header(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise CapsellaError(f"{width}×{height} pixels; at most {MOST_PIXELS:,} are read")
    pages = getattr(image, "n_frames", 1) if image.format in ("TIFF", "PNG", "GIF", "WEBP") else 1
    if pages > 1:
        raise CapsellaError(f"it holds {pages} pages or pictures; save each as a file of its own")


def to_tensor(
    image: Image.Image, size: tuple[int, int] | None, channels: int | None, cut: CellCut | None = None
) -> UInt8[Tensor, "c h w"]:
    """Convert to grey or RGB, crop and resize as `read_image` says; channels and size that fit are left untouched."""
    image = _to_grey_or_rgb(image)
    own_channels = 1 if image.mode == "L" else 3
    if cut is not None and size is not None:
        if own_channels == 1:
            raise CapsellaError("it is grey: stained cells are found by their colour")
        image = cut_cell(image, size, cut)
    if channels is not None and channels != own_channels:
        image = image.convert("L" if channels == 1 else "RGB")
    if size is not None and image.size != (size[1], size[0]):
        image = ImageOps.fit(image, (size[1], size[0]), method=_RESIZE)
    pixels = torch.from_numpy(np.array(image))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def _to_grey_or_rgb(image: Image.Image) -> Image.Image:
    """Any mode of Pillow's that the formats use for 8 bits and fewer, to L or RGB."""
    mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
    return (_on_black(image) if image.has_transparency_data else image).convert(mode)


def _on_black(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)


def _warn_of_the_unseen(image: Image.Image, name: str) -> None:
    """Once, of an image whose transparency leaves a single colour: as what is drawn in black on nothing."""
    if not image.has_transparency_data or (np.asarray(image.convert("RGBA").getchannel("A")) == 255).all():
        return
    if ((seen := np.asarray(_on_black(image))) == seen[0, 0]).all():
        why = "as what is transparent becomes black; there may be more such files"
        warn_once("unseen", f"{name}: nothing is left of it, {why}. Save them on a ground of another colour")


def resize_array(
    images: UInt8[np.ndarray, "n h w c"], size: tuple[int, int] | None, channels: int | None, cut: CellCut | None = None
) -> UInt8[Tensor, "n c2 h2 w2"]:
    """Images that come as pixels, not as files: converted and resized as `read_image` does."""
    height_width, own_channels = images.shape[1:3], images.shape[3]
    if (size in (None, height_width) and channels in (None, own_channels) and cut is None) or not len(images):
        return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    check_memory(len(images), size or height_width, channels or own_channels)
    pictures = (Image.fromarray(image.squeeze(-1) if own_channels == 1 else image) for image in images)
    return torch.stack([to_tensor(picture, size, channels, cut) for picture in pictures])


def rgb_images(files: Iterable[Path | BytesIO]) -> Iterator[Image.Image]:
    """The images of 8 bits and in colour that can be read, upright."""
    for file in files:
        try:
            with opened(file, str(file)) as image:
                if depth_of(image) is None:
                    found = _to_grey_or_rgb(ImageOps.exif_transpose(image))
                    if found.mode == "RGB":
                        yield found
        except CapsellaError:  # it is named where all images are read
            continue


def read_all(
    readers: Mapping[str, Callable[[], Tensor]], skip_broken: bool
) -> tuple[UInt8[Tensor, "n c h w"], list[int], list[CapsellaError]]:
    """Call every reader, several at a time (Pillow decodes outside Python's lock), in order.

    Args:
        readers: by what errors call their images.
        skip_broken: leave out what cannot be read.

    Returns:
        The images that could be read, their positions among `readers`, and the errors of the others.

    Raises:
        CapsellaError: some cannot be read, unless `skip_broken`; none can; they differ in channels or size; or all
            together will not fit in memory.
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
                images = result.new_empty(len(readers), *result.shape)  # each is written to its place, and let go
            if result.shape == images.shape[1:]:
                images[len(shapes)] = result
            shapes[position] = result.shape
    finally:
        pool.shutdown(cancel_futures=True)
    if errors and not skip_broken:
        raise _all_together(errors)
    names = list(readers)
    _check_shapes([*shapes.values()], [names[position] for position in shapes])
    return images[: len(shapes)], [*shapes], errors


def _attempt(reader: Callable[[], Tensor]) -> Tensor | CapsellaError:
    try:
        return reader()
    except CapsellaError as error:
        return error


def _all_together(errors: Sequence[CapsellaError]) -> CapsellaError:
    """One error that names what cannot be read."""
    if len(errors) == 1:
        return CapsellaError(f"{errors[0]}. Mend or remove it; --skip-broken leaves such files out")
    more = f"; and {len(errors) - _MOST_NAMED} more" if len(errors) > _MOST_NAMED else ""
    named = "; ".join(map(str, errors[:_MOST_NAMED]))
    return CapsellaError(
        f"{len(errors)} files cannot be read: {named}{more}. Mend or remove them; --skip-broken leaves such files out"
    )


def check_memory(number: int, size: tuple[int, int], channels: int) -> None:
    """Raise `CapsellaError` where so many images of (height, width) do not fit into the memory that is free."""
    height, width = size
    needed = 2 * number * height * width * channels  # the images as they are read, and once more as they are parted
    free = free_memory()
    if free is not None and needed > free:
        raise CapsellaError(
            f"{pluralize(number, 'image')} of {height}×{width}×{channels} need {needed / 2**30:,.1f} GiB of memory to "
            f"load, and {free / 2**30:,.1f} GiB are free; make them smaller, as with --size 64"
        )


def _check_shapes(shapes: Sequence[torch.Size], names: Sequence[str]) -> None:
    """All images [c h w] have one size and one number of channels; names the first of each kind."""
    if not shapes:
        raise CapsellaError("there is no image that can be read")
    channels = [str(shape[0]) for shape in shapes]
    _check_alike("numbers of channels", "all to grey or to colour, with --channels 1 or 3", channels, names)
    sides = [side for shape in shapes for side in shape[1:]]
    remedy = f"one for all, as with --size 64 (their sides have from {min(sides)} to {max(sides)} pixels)"
    _check_alike("sizes (height×width)", remedy, [f"{shape[1]}×{shape[2]}" for shape in shapes], names)


def _check_alike(what: str, remedy: str, values: Sequence[str], names: Sequence[str]) -> None:
    if len(set(values)) > 1:
        examples = [
            f"{value} ({pluralize(values.count(value), 'image')}, as {names[values.index(value)]})"
            for value in sorted(set(values))
        ]
        raise CapsellaError(f"images must not have different {what}; set {remedy}. Got {', '.join(examples[:4])}")

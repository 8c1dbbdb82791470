"""Decode many images: in threads, with a bounded number in memory, and checked against the free memory."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from capsella.data.reading import UnseenPart, decode, open_file, readable, to_tensor
from capsella.environment import free_memory
from capsella.errors import CapsellaError, check_minimum, pluralize
from capsella.image_options import Preprocessing
from capsella.progress import tracked

_AHEAD = 3  # items that a thread may be ahead of the consumer: enough to smooth out slow files
_SHOW_PROGRESS_FROM = 2_000
_MAX_NAMED = 10  # broken files in an error

Item = TypeVar("Item")
Result = TypeVar("Result")
Facts = TypeVar("Facts")


@dataclass(frozen=True, eq=False)
class Chunk:
    """The results of decoding some files.

    files: names of the files. results: how much of each a network does not see, or why it could not be read. pixels:
    the images that were read, in order, [k c h w], 0..255.
    """

    files: tuple[str, ...]
    results: tuple[UnseenPart | str, ...]
    pixels: UInt8[np.ndarray, "k c h w"]


def decode_files(
    files: Iterable[str], preprocessing: Preprocessing, *, chunk: int = 64, workers: int = 0
) -> Iterator[Chunk]:
    """Read image files like `read_image`, in chunks and in order; a broken file yields a reason.

    Args:
        files: names, consumed as they are needed, so that any number of them costs no memory.
        preprocessing: of each file; must set a size and a number of channels.
        chunk: number of files per chunk.
        workers: number of threads; 0 decodes in this one. Pillow releases Python's lock while it decodes.
    """
    check_minimum(1, chunk=chunk)
    names = iter(files)
    chunks = iter(lambda: tuple(islice(names, chunk)), ())
    read = partial(decode_chunk, preprocessing)
    return _in_threads(read, chunks, workers) if workers else map(read, chunks)


def _in_threads(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Yield function(item) for each item, in order. Pillow releases Python's lock while it decodes."""
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > _AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def decode_chunk(preprocessing: Preprocessing, files: Sequence[str], contents: Iterable[bytes] | None = None) -> Chunk:
    """Decode files by name, or their contents."""
    assert preprocessing.size is not None
    assert preprocessing.channels is not None
    pixels = np.empty((len(files), preprocessing.channels, *preprocessing.size), np.uint8)
    results, read = list[UnseenPart | str](), 0
    sources: Iterable[Path | BytesIO] = map(Path, files) if contents is None else map(BytesIO, contents)
    for file, source in zip(files, sources, strict=True):
        try:
            image, loss = decode(source, file, preprocessing)
            pixels[read] = image.numpy()
            read += 1
            results.append(loss)
        except CapsellaError as error:
            results.append(str(error).removeprefix(f"{file}: "))
        except MemoryError:
            results.append("decoding it needs more memory than there is")
    return Chunk(tuple(files), tuple(results), pixels[:read])


def read_all(
    readers: Sequence[Callable[[], tuple[Tensor, Facts]]], skip_broken: bool
) -> tuple[list[tuple[Tensor, Facts]], list[int], tuple[str, ...]]:
    """Call readers in threads; return the results in order, their positions, and the errors of the others.

    Args:
        readers: each returns pixels [c h w] and facts about an image.
        skip_broken: leave out what cannot be read.

    Raises:
        CapsellaError: an image cannot be read, unless `skip_broken`; none can; or all do not fit in memory.
    """
    results, positions, errors = list[tuple[Tensor, Facts]](), list[int](), list[str]()
    outcomes = _in_threads(_attempt, readers, (os.cpu_count() or 1) + 4)
    shown = tracked(outcomes, "reading images", len(readers), is_shown=len(readers) >= _SHOW_PROGRESS_FROM)
    for position, outcome in enumerate(shown):
        if isinstance(outcome, CapsellaError):
            errors.append(str(outcome))
            continue
        if not results:
            channels, height, width = outcome[0].shape
            check_memory(len(readers), (height, width), channels)
        results.append(outcome)
        positions.append(position)
    if errors and not skip_broken:
        number = "" if len(errors) == 1 else f"{len(errors)} files cannot be read: "
        more = f"; and {len(errors) - _MAX_NAMED} more" if len(errors) > _MAX_NAMED else ""
        remedy = "Repair or remove such files, or leave them out with --skip-broken"
        raise CapsellaError(f"{number}{'; '.join(errors[:_MAX_NAMED])}{more}. {remedy}")
    if not results:
        raise CapsellaError("there is no image that can be read")
    return results, positions, tuple(errors)


def _attempt(reader: Callable[[], tuple[Tensor, Facts]]) -> tuple[Tensor, Facts] | CapsellaError:
    try:
        return reader()
    except CapsellaError as error:
        return error


def resize_array(images: UInt8[np.ndarray, "n h w c"], preprocessing: Preprocessing) -> UInt8[Tensor, "n c2 h2 w2"]:
    """Convert and resize arrays of pixels like `read_image`."""
    height_width, own_channels = images.shape[1:3], images.shape[3]
    size, channels = preprocessing.size, preprocessing.channels
    same = size in (None, height_width) and channels in (None, own_channels) and preprocessing.cut is None
    if same or not len(images):
        return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    check_memory(len(images), size or height_width, channels or own_channels)
    return torch.stack([to_tensor(picture_of(image), preprocessing) for image in images])


def picture_of(pixels: UInt8[np.ndarray, "h w c"]) -> Image.Image:
    """Return an array of 1 or 3 channels as an image."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def rgb_images(files: Iterable[Path | BytesIO]) -> Iterator[Image.Image]:
    """Yield the readable 8-bit colour images, upright; skip all other files."""
    for file in files:
        try:
            with readable(file, ""):
                image = open_file(file).image
        except CapsellaError:  # the error is reported when all images are read
            continue
        if image is not None and image.mode == "RGB":
            yield image


def check_memory(
    number: int, size: tuple[int, int], channels: int, remedy: str = "make them smaller, e.g. with --size 64"
) -> None:
    """Raise `CapsellaError` unless this many images of (height, width) fit into the free memory."""
    height, width = size
    needed = 2 * number * height * width * channels  # the images that were read, and a copy in splits
    free = free_memory()
    if free is not None and needed > free:
        raise CapsellaError(
            f"{pluralize(number, 'image')} of {height}×{width}×{channels} need {needed / 2**30:,.1f} GiB of memory to "
            f"load, and {free / 2**30:,.1f} GiB are free; {remedy}"
        )


def stack(images: Sequence[UInt8[Tensor, "c h w"]], names: Sequence[str]) -> UInt8[Tensor, "n c h w"]:
    """Stack images; raise `CapsellaError` with examples if they differ in channels or size."""
    for what, remedy, part in (
        ("numbers of channels", "--channels 1 or 3", slice(0, 1)),
        ("sizes (height×width)", "e.g. --size 64", slice(1, 3)),
    ):
        example = {"×".join(map(str, image.shape[part])): name for image, name in zip(images, names, strict=True)}
        if len(example) > 1:
            each = ", ".join(f"{value} (e.g. {name})" for value, name in sorted(example.items())[:4])
            raise CapsellaError(f"images have different {what}; set {remedy}. Got {each}")
    return torch.stack([*images])

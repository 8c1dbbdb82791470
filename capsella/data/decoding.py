"""Decode many image files in threads, with a bounded number of images in memory."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from capsella.data.reading import UnseenPart, decode
from capsella.errors import CapsellaError, check_minimum
from capsella.image_options import Preprocessing

_AHEAD = 3  # chunks that a thread may be ahead of the consumer: enough to smooth out slow files


@dataclass(frozen=True, eq=False)
class Chunk:
    """The results of decoding some files.

    files: names of the files. reasons: why each file could not be read; None if it was read. pixels: the images that
    were read, in order, [k c h w], 0..255. losses: for each of these, how much of it a network does not see.
    """

    files: tuple[str, ...]
    reasons: tuple[str | None, ...]
    pixels: UInt8[np.ndarray, "k c h w"]
    losses: tuple[UnseenPart, ...] = ()


def decode_files(
    files: Iterable[str], preprocessing: Preprocessing, *, chunk: int = 64, workers: int = 0
) -> Iterator[Chunk]:
    """Read image files like `read_image`, in chunks and in order; a broken file yields a reason.

    Args:
        files: names, consumed as they are needed, so that any number of them costs no memory.
        preprocessing: of each file; must set a size and a number of channels.
        chunk: number of files per chunk.
        workers: number of threads; 0 decodes in this one. Pillow releases Python's lock while it decodes.

    Raises:
        ArgumentError: `chunk` below 1, `workers` below 0.
    """
    check_minimum(1, chunk=chunk)
    check_minimum(0, workers=workers)
    names = iter(files)
    chunks = iter(lambda: tuple(islice(names, chunk)), ())
    if not workers:
        return (_read(names, preprocessing) for names in chunks)
    return _in_threads(chunks, preprocessing, workers)


def _in_threads(chunks: Iterable[tuple[str, ...]], preprocessing: Preprocessing, workers: int) -> Iterator[Chunk]:
    waiting: deque[Future[Chunk]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for files in chunks:
            waiting.append(pool.submit(_read, files, preprocessing))
            if len(waiting) > _AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _read(files: Sequence[str], preprocessing: Preprocessing) -> Chunk:
    assert preprocessing.size is not None
    assert preprocessing.channels is not None
    pixels = np.empty((len(files), preprocessing.channels, *preprocessing.size), np.uint8)
    losses = list[UnseenPart]()
    reasons: list[str | None] = []
    for file in files:
        try:
            image, loss = decode(Path(file), file, preprocessing)
            pixels[len(losses)] = image.numpy()
            losses.append(loss)
            reasons.append(None)
        except CapsellaError as error:
            reasons.append(str(error).removeprefix(f"{file}: "))
        except MemoryError:
            reasons.append("decoding it needs more memory than there is")
    return Chunk(tuple(files), tuple(reasons), pixels[: len(losses)], tuple(losses))

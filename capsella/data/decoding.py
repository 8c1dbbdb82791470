"""Decode many image files in worker processes, with a bounded number of images in memory."""

import multiprocessing
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from capsella.data.reading import Loss, decode
from capsella.errors import CapsellaError, check_minimum
from capsella.image_options import Preprocessing

_AHEAD = 3  # chunks that a worker may be ahead of the consumer: enough to smooth out slow files
_DIED = "the process that decoded it died: the decoder crashed, or memory ran out"


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some files and what became of them.

    files: their names. reasons: what is wrong with each, None if it was read. pixels: of those that were read, in
    order, [k c h w], 0..255; NumPy's, because PyTorch passes tensors on in shared memory, which containers lack.
    losses: what is not seen of those that were read.
    """

    files: tuple[str, ...]
    reasons: tuple[str | None, ...]
    pixels: UInt8[np.ndarray, "k c h w"]
    losses: tuple[Loss, ...] = ()


def decode_files(
    files: Iterable[str], preprocessing: Preprocessing, *, chunk: int = 64, workers: int = 0
) -> Iterator[Chunk]:
    """Read image files like `read_image`, in chunks and in order; a broken file becomes a reason.

    Workers are started by a server process that has never computed, because forks of this one would inherit locks of
    OpenMP's threads. A worker that dies is replaced, and its file gets that as its reason.

    Args:
        files: names, consumed as they are needed, so that any number of them costs no memory.
        preprocessing: what to make of each file; with a size and a number of channels.
        chunk: number of files per chunk.
        workers: number of processes; 0 decodes in this one. With workers, a script must guard its main part with
            `if __name__ == "__main__":`, as for every use of `multiprocessing`.

    Raises:
        ArgumentError: `chunk` below 1, `workers` below 0. CapsellaError: worker processes do not start.
    """
    check_minimum(1, chunk=chunk)
    check_minimum(0, workers=workers)
    read = partial(_read, preprocessing=preprocessing)
    chunks = _chunks(files, chunk)
    return _in_processes(chunks, read, workers) if workers else map(read, chunks)


def _chunks(files: Iterable[str], size: int) -> Iterator[tuple[str, ...]]:
    waiting = iter(files)
    while chunk := tuple(islice(waiting, size)):
        yield chunk


def _read(files: Sequence[str], preprocessing: Preprocessing) -> Chunk:
    assert preprocessing.size is not None
    assert preprocessing.channels is not None
    pixels = np.empty((len(files), preprocessing.channels, *preprocessing.size), np.uint8)
    losses = list[Loss]()
    reasons: list[str | None] = []
    for file in files:
        try:
            decoded = decode(Path(file), file, preprocessing)
            pixels[len(losses)] = decoded.pixels.numpy()
            losses.append(decoded.loss)
            reasons.append(None)
        except CapsellaError as error:
            reasons.append(str(error).removeprefix(f"{file}: "))
        except MemoryError:
            reasons.append("decoding it needs more memory than there is")
    return Chunk(tuple(files), tuple(reasons), pixels[: len(losses)], tuple(losses))


def _in_processes(
    chunks: Iterable[tuple[str, ...]], read: Callable[[Sequence[str]], Chunk], workers: int
) -> Iterator[Chunk]:
    waiting: deque[tuple[tuple[str, ...], Future[Chunk]]] = deque()
    pool = _start(workers)
    try:
        for files in chunks:
            try:
                waiting.append((files, pool.submit(read, files)))
            except BrokenProcessPool:
                pool.shutdown()
                pool = _start(workers)
                waiting.append((files, pool.submit(read, files)))
            if len(waiting) > _AHEAD * workers:
                yield _result(read, *waiting.popleft())
        while waiting:
            yield _result(read, *waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _result(read: Callable[[Sequence[str]], Chunk], files: tuple[str, ...], future: Future[Chunk]) -> Chunk:
    try:
        return future.result()
    except BrokenProcessPool:  # over this or another chunk
        parts = list(_singly(read, files))
    reasons = tuple(reason for part in parts for reason in part.reasons)
    losses = tuple(loss for part in parts for loss in part.losses)
    return Chunk(files, reasons, np.concatenate([part.pixels for part in parts]), losses)


def _singly(read: Callable[[Sequence[str]], Chunk], files: Sequence[str]) -> Iterator[Chunk]:
    """Read files one at a time in a process that nothing else can end, to find the one that kills it."""
    pool = _start(1)
    try:
        for file in files:
            try:
                yield pool.submit(read, [file]).result()
            except BrokenProcessPool:
                yield Chunk((file,), (_DIED,), read([]).pixels)
                pool.shutdown()
                pool = _start(1)
    finally:
        pool.shutdown()


def _start(workers: int) -> ProcessPoolExecutor:
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])  # imported once, its memory shared by all
    pool = ProcessPoolExecutor(workers, context, initializer=_prepare)
    try:
        pool.submit(os.getpid).result()
    except BrokenProcessPool as error:
        pool.shutdown()
        raise CapsellaError(
            "worker processes for decoding do not start; decode in this process with workers=0"
        ) from error
    return pool


def _prepare() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first process ends the others
    warnings.simplefilter("ignore")  # Pillow's remarks on metadata
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    # A killed process cannot end its workers, which would wait for work for ever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)

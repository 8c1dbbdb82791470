"""Many image files to pixels, in worker processes, with a bounded number of images in memory."""

import multiprocessing
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from capsella.data.reading import Loss, measure_loss, read_image
from capsella.errors import CapsellaError, check_minimum
from capsella.image_options import CellCut, ValueRange

_AHEAD = 3  # chunks a worker may be ahead of whoever takes them: enough to smooth out slow files
_DIED = "the process that decoded it died: the decoder crashed, or the system ended it for want of memory"


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some files and what became of them.

    files: their names. reasons: what is wrong with each, None where it was read. pixels: those that were read, in
    order, [k c h w], 0..255; NumPy's, because PyTorch passes tensors on in shared memory, of which containers have
    little. losses: of those that were read, what is not seen of them.
    """

    files: tuple[str, ...]
    reasons: tuple[str | None, ...]
    pixels: UInt8[np.ndarray, "k c h w"]
    losses: tuple[Loss, ...] = ()


def decode_files(
    files: Iterable[str],
    size: tuple[int, int],
    channels: int,
    value_range: ValueRange | None = None,
    cut: CellCut | None = None,
    *,
    chunk: int = 64,
    workers: int = 0,
) -> Iterator[Chunk]:
    """Read image files as `read_image` does, `chunk` at a time, in their order; broken ones end up as a reason.

    Workers are started by a server process that has never computed: forked from here, they would inherit the locks
    of OpenMP's threads. One that dies over a file is replaced, and the file has that as its reason.

    Args:
        files: names; taken as they are needed, so that any number of them costs no memory.
        size: (height, width) to resize to.
        channels: 1 for grey, 3 for RGB.
        value_range, cut: of files of more than 8 bits a channel; of stained cells: see `read_image`.
        chunk: files a chunk.
        workers: processes; 0 decodes in this one. With more, a script of one's own must guard its main part with
            `if __name__ == "__main__":`, as for every use of `multiprocessing`.

    Raises:
        ValueError: `chunk` below 1, `workers` below 0.
        CapsellaError: worker processes do not start.
    """
    check_minimum(1, chunk=chunk)
    check_minimum(0, workers=workers)
    read = partial(_read, size=size, channels=channels, value_range=value_range, cut=cut)
    chunks = _chunks(files, chunk)
    return _in_processes(chunks, read, workers) if workers else map(read, chunks)


def _chunks(files: Iterable[str], size: int) -> Iterator[tuple[str, ...]]:
    waiting = iter(files)
    while chunk := tuple(islice(waiting, size)):
        yield chunk


def _read(
    files: Sequence[str], size: tuple[int, int], channels: int, value_range: ValueRange | None, cut: CellCut | None
) -> Chunk:
    pixels, losses = np.empty((len(files), channels, *size), np.uint8), list[Loss]()
    reasons: list[str | None] = []
    for file in files:
        try:
            pixels[len(losses)] = read_image(Path(file), size, channels, value_range, cut).numpy()
            losses.append(measure_loss(Path(file), size, value_range, cut))
            reasons.append(None)
        except CapsellaError as error:
            reasons.append(str(error).removeprefix(f"{file}: "))
        except MemoryError:
            reasons.append("decoding it takes more memory than there is")
    return Chunk(tuple(files), tuple(reasons), pixels[: len(losses)], tuple(losses))


def _in_processes(
    chunks: Iterable[tuple[str, ...]], read: Callable[[Sequence[str]], Chunk], workers: int
) -> Iterator[Chunk]:
    waiting: deque[tuple[tuple[str, ...], Future[Chunk]]] = deque()
    with _ended_in_order() as told, _Workers(read, workers) as pool:
        for files in chunks:
            _end_where(told)
            waiting.append((files, pool.submit(files)))
            if len(waiting) > _AHEAD * workers:
                yield pool.result(*waiting.popleft())
        while waiting:
            yield pool.result(*waiting.popleft())


@contextmanager
def _ended_in_order() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM unwind. By itself SIGTERM ends Python where it stands, and the pool's semaphores stay.

    Yields: empty until a signal comes, then its number. Python drops an exception that a handler raises inside a
    finalizer; so whoever works on for long looks here, and the process ends here at the latest.
    """
    told: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield told
        return

    def end(number: int, _: object) -> None:
        told.append(number)
        _end_where(told)

    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ours = {number: handler for number, handler in usual.items() if signal.getsignal(number) == handler}
    for number in ours:
        signal.signal(number, end)
    try:
        yield told
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
    _end_where(told)


def _end_where(told: Sequence[int]) -> None:
    """Raises what the signal stands for, where one came."""
    if told:
        raise KeyboardInterrupt if told[0] == signal.SIGINT else SystemExit(128 + told[0])


class _Workers:
    """Processes that read chunks; replaced when one dies."""

    def __init__(self, read: Callable[[Sequence[str]], Chunk], workers: int) -> None:
        self.read, self.workers = read, workers
        self.pool = _start(workers)

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def submit(self, files: Sequence[str]) -> Future[Chunk]:
        try:
            return self.pool.submit(self.read, files)
        except BrokenProcessPool:
            self.pool.shutdown()
            self.pool = _start(self.workers)
            return self.pool.submit(self.read, files)

    def result(self, files: Sequence[str], future: Future[Chunk]) -> Chunk:
        """The chunk; where a process died, over this or another chunk, its files one by one, to see which it was."""
        try:
            return future.result()
        except BrokenProcessPool:
            parts = list(self._one_by_one(files))
        reasons = tuple(reason for part in parts for reason in part.reasons)
        losses = tuple(loss for part in parts for loss in part.losses)
        return Chunk(tuple(files), reasons, np.concatenate([part.pixels for part in parts]), losses)

    def _one_by_one(self, files: Sequence[str]) -> Iterator[Chunk]:
        single = _start(1)  # of its own: nothing but the file it reads can end it
        try:
            for file in files:
                try:
                    yield single.submit(self.read, [file]).result()
                except BrokenProcessPool:
                    yield Chunk((file,), (_DIED,), self.read([]).pixels)
                    single.shutdown()
                    single = _start(1)
        finally:
            single.shutdown()


def _start(workers: int) -> ProcessPoolExecutor:
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])  # imported once, and its memory shared by all
    pool = ProcessPoolExecutor(workers, context, initializer=_prepare)
    try:
        pool.submit(os.getpid).result()
    except BrokenProcessPool as error:
        pool.shutdown()
        raise CapsellaError("worker processes to decode images do not start; workers=0 does without") from error
    return pool


def _prepare() -> None:
    """In a worker, before its first file."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first process ends the others
    warnings.simplefilter("ignore")  # Pillow's remarks on metadata, for 100,000 files
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed process cannot end its workers, and they would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)

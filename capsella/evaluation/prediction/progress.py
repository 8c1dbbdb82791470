"""How far a long prediction is: a bar in a terminal, a line now and then in a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from capsella.training.logs import progress_bar

_LINE_EVERY = 30.0  # seconds, in a log


@contextmanager
def image_progress(console: Console, total: int, done: int) -> Iterator[Callable[[int], None]]:
    """Show how many images of `total` are done, how many a second, and the time left; yields `advance(images)`."""
    if not console.is_terminal:
        yield _Lines(console, total, done)
        return
    with progress_bar(console, "predicting", total, done) as bar:

        def advance(images: int) -> None:
            bar.advance("", images)
            bar.advance(f"{bar.speed:.0f} images/s" if bar.speed else "", 0)

        yield advance


class _Lines:
    def __init__(self, console: Console, total: int, done: int) -> None:
        self.console, self.total, self.first, self.done = console, total, done, done
        self.began = self.told = time.monotonic()

    def __call__(self, images: int) -> None:
        self.done += images
        now = time.monotonic()
        if now - self.told >= _LINE_EVERY:
            self.told = now
            speed = (self.done - self.first) / (now - self.began)
            left = max(0, self.total - self.done) / speed / 60
            self.console.print(f"{self.done:,} of {self.total:,} images, {speed:.0f}/s, {left:.1f} minutes left")

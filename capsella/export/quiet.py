"""Packages that write and run exported files say much that is for their developers."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet(logger: str | None = None) -> Iterator[None]:
    """Only errors of a logger, or of the root one: what else it says is for developers of the package behind it."""
    chosen = logging.getLogger(logger)
    level = chosen.level
    chosen.setLevel(logging.ERROR)
    try:
        yield
    finally:
        chosen.setLevel(level)

"""Packages that only exporting needs, and their advice."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from capsella.errors import CapsellaError


def check_installed(*packages: str) -> None:
    """The packages of the extra `export` that a task needs are there.

    Raises:
        CapsellaError: one is not; says how to get it.
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise CapsellaError(f"this needs {', '.join(missing)}: pip install 'capsella[export]'")


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

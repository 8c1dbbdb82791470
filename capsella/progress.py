"""Progress with the time left, on a terminal alone: in a file or a pipe, bars are blank lines."""

from collections.abc import Iterable
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")


def tracked(items: Iterable[T], what: str, total: int | None = None, is_shown: bool = True) -> Iterable[T]:
    """The items one by one, with a bar on standard error that goes when they are over.

    Args:
        items: to work at.
        what: that is done with them.
        total: their number, where the items do not know it.
        is_shown: False leaves the bar out.
    """
    console = Console(stderr=True)
    hidden = not (is_shown and console.is_terminal)
    return track(items, what, total, console=console, transient=True, disable=hidden)

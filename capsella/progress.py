"""Progress bars with the time left, on terminals only: in files and pipes they would be blank lines."""

from collections.abc import Iterable
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")


def tracked(items: Iterable[T], what: str, total: int | None = None, is_shown: bool = True) -> Iterable[T]:
    """Iterate over items with a bar on standard error, which disappears at the end.

    Args:
        items: what to iterate over.
        what: the text beside the bar.
        total: number of items, if they have no length.
        is_shown: False leaves the bar out.
    """
    console = Console(stderr=True)
    hidden = not (is_shown and console.is_terminal)
    return track(items, what, total, console=console, transient=True, disable=hidden)

"""Errors that a user can act on."""

import difflib
from collections.abc import Iterable


class CapsellaError(Exception):
    """Something outside the program is not as it must be: a file, a download, a run folder, a disk."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that is not registered: says which names are near, or lists all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return ValueError(f"{what}: must be a registered name, got {name!r}; {hint}")

"""What all events of the page share."""

from typing import Any

from capsella.explorer.pictures import message

# No spinner over what is about to change, and no public API: the page's functions take its own state.
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


def said(text: str, problem: bool = False) -> str:
    """A line for the page's status, which screen readers read out."""
    return message(text, "problem" if problem else "note")

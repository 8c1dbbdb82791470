"""Markdown that several pages are made of."""


def markdown_row(*cells: str) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |\n"

"""Committed results as Markdown; not part of the package."""

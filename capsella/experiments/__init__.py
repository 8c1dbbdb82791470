"""Measured results: how a run becomes a committed JSON, and the committed JSON become tables."""

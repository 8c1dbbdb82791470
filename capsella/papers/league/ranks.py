"""Ranks that say no more than was measured."""

from collections.abc import Mapping

from capsella.evaluation import difference_interval
from capsella.grid import Hits

FEWEST_SEEDS = 2
"""With one, an interval covers the test images alone, and rows that differ by their seed would part."""


def ranks(rows: Mapping[str, Hits]) -> dict[str, str]:
    """The places that each row may have, by its name, where the 95 % intervals of differences part rows.

    Two rows part where the interval of the difference of their accuracies, image by image and over seeds, does not hold
    0. A row stands behind all that are better beyond that interval, and before all that are worse; between them it may
    have any place. A row that parts from no other has no rank.

    rows: which test images each row's seeds have right; all of the same images.

    >>> import numpy as np
    >>> all_right, half, none = (Hits(np.tile(np.arange(100) < right, (2, 1))) for right in (100, 50, 0))
    >>> ranks({"a": half, "b": all_right, "c": half, "d": none})
    {'a': '2–3', 'b': '1', 'c': '2–3', 'd': '4'}
    >>> ranks({"a": half, "b": half})
    {'a': '–', 'b': '–'}
    """
    rows = {name: own for name, own in rows.items() if len(own.right) >= FEWEST_SEEDS}
    found = {}
    for name, own in rows.items():
        apart = [difference_interval(own.right, one.right, own.groups) for row, one in rows.items() if row != name]
        best = 1 + sum(one.high < 0 for one in apart)
        worst = len(rows) - sum(one.low > 0 for one in apart)
        parts = any(one.high < 0 or one.low > 0 for one in apart)
        found[name] = "–" if not parts else str(best) if best == worst else f"{best}–{worst}"
    return found

"""Ranks that say no more than was measured."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool

from capsella.evaluation import difference_interval

FEWEST_SEEDS = 2
"""With one, an interval covers the test images alone, and rows that differ by their seed would part."""
Hits = Mapping[str, Bool[np.ndarray, "seeds images"]]


def ranks(hits: Hits) -> dict[str, str]:
    """The places that each row may have, by its name, where the 95 % intervals of differences part rows.

    Two rows part where the interval of the difference of their accuracies, image by image and over seeds, does not hold
    0. A row stands behind all that are better beyond that interval, and before all that are worse; between them it may
    have any place. A row that parts from no other has no rank.

    hits: which test images each seed's network of a row has right; all of the same images.

    >>> all_right, half, none = (np.tile(np.arange(100) < right, (2, 1)) for right in (100, 50, 0))
    >>> ranks({"a": half, "b": all_right, "c": half, "d": none})
    {'a': '2–3', 'b': '1', 'c': '2–3', 'd': '4'}
    >>> ranks({"a": half, "b": half})
    {'a': '–', 'b': '–'}
    """
    hits = {name: own for name, own in hits.items() if len(own) >= FEWEST_SEEDS}
    found = {}
    for name, own in hits.items():
        apart = [difference_interval(own, other) for row, other in hits.items() if row != name]
        best = 1 + sum(one.high < 0 for one in apart)
        worst = len(hits) - sum(one.low > 0 for one in apart)
        parts = any(one.high < 0 or one.low > 0 for one in apart)
        found[name] = "–" if not parts else str(best) if best == worst else f"{best}–{worst}"
    return found

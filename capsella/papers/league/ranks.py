"""Ranks that say no more than was measured."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from scipy.stats import t

from capsella.grid import Hits

FEWEST_SEEDS = 2
"""With one, an interval covers the test images alone, and rows that differ by their seed would part."""


def ranks(rows: Mapping[str, Hits]) -> dict[str, str]:
    """The places that each row may have, by its name, where differences part rows.

    Two rows part where the difference of their accuracies, image by image and over seeds, is not by chance: by a t-test
    at 5 %, for all pairs of rows together (Holm 1979). A row stands behind all that are better, and before all that are
    worse; between them it may have any place. A row that parts from no other has no rank.

    rows: which test images each row's seeds have right; all of the same images.

    >>> import numpy as np
    >>> all_right, half, none = (Hits(np.tile(np.arange(100) < right, (2, 1))) for right in (100, 50, 0))
    >>> ranks({"a": half, "b": all_right, "c": half, "d": none})
    {'a': '2–3', 'b': '1', 'c': '2–3', 'd': '4'}
    >>> ranks({"a": half, "b": half})
    {'a': '–', 'b': '–'}
    """
    rows = {name: own for name, own in rows.items() if len(own.right) >= FEWEST_SEEDS}
    pairs = list(combinations(rows, 2))
    differences = [rows[a].gain_over(rows[b]) for a, b in pairs]
    tests = [2 * float(t.sf(abs(one.estimate) / one.standard_error, one.degrees)) for one in differences]
    ahead = dict.fromkeys(rows, 0)
    behind = dict(ahead)
    for (a, b), one, parts in zip(pairs, differences, holm(tests), strict=True):
        if parts:
            better, worse = (a, b) if one.estimate > 0 else (b, a)
            behind[better] += 1
            ahead[worse] += 1
    return {name: _places(1 + ahead[name], len(rows) - behind[name], len(rows)) for name in rows}


def holm(tests: Sequence[float], level: float = 0.05) -> list[bool]:
    """Which of several tests are significant where all together err with a probability of `level` (Holm 1979).

    >>> holm([0.04, 0.001, 0.02])
    [True, True, True]
    >>> holm([0.04, 0.001, 0.03])
    [False, True, False]
    """
    found = [False] * len(tests)
    for done, at in enumerate(sorted(range(len(tests)), key=tests.__getitem__)):
        if tests[at] > level / (len(tests) - done):
            break
        found[at] = True
    return found


def _places(best: int, worst: int, rows: int) -> str:
    if (best, worst) == (1, rows):
        return "–"
    return str(best) if best == worst else f"{best}–{worst}"

"""The spread of a number over seeds."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple, Self

from capsella.errors import ArgumentError


class Spread(NamedTuple):
    """Mean and standard deviation (of the sample, n − 1) of one number over seeds.

    >>> print(Spread.of([0.2, 0.3, 0.4]))
    0.30 ± 0.10
    """

    mean: float
    sd: float

    @classmethod
    def of(cls, values: list[float]) -> Self:
        """At least two values: one alone has no spread."""
        if len(values) < 2:
            raise ArgumentError("values", "be at least 2 for a standard deviation", len(values))
        return cls(statistics.mean(values), statistics.stdev(values))

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.sd:.2f}"


def over_seeds(values: Sequence[float]) -> str:
    """One number over seeds, for people; of one seed without a spread.

    >>> over_seeds([0.2, 0.3, 0.4]), over_seeds([0.25])
    ('0.30 ± 0.10', '0.25')
    """
    return str(Spread.of(list(values))) if len(values) > 1 else f"{values[0]:.2f}"

"""What Heinsen routing lets one choose, in one value that every backend takes."""

from dataclasses import dataclass

from capsella.errors import at_least, require


@dataclass(frozen=True)
class HeinsenSettings:
    """Options of the procedure.

    Raises:
        ValueError: a number outside its range.
    """

    iterations: int = 3
    """Routing iterations; 1 leaves every coupling even."""
    epsilon: float = 1e-5
    """ε, added to the data that a parent's mean and variance are divided by, and to the variance (authors' code)."""

    def __post_init__(self) -> None:
        at_least(1, iterations=self.iterations)
        require(self.epsilon > 0, "be above 0", epsilon=self.epsilon)

"""What Heinsen routing lets one choose, in one value that every backend takes."""

from dataclasses import dataclass

from capsella.errors import check_argument
from capsella.routing.checks import check_iterations


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
        check_iterations(self.iterations)
        check_argument(self.epsilon > 0, "be above 0", epsilon=self.epsilon)

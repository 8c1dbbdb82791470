"""What variational Bayes routing lets one choose, in one value that every backend takes."""

from dataclasses import dataclass

from capsella.errors import check_argument
from capsella.routing.checks import check_iterations


@dataclass(frozen=True)
class VariationalSettings:
    """Options of the procedure: its iterations, and what is believed of the parents before any vote is seen.

    Raises:
        ValueError: a number outside its range.
    """

    iterations: int = 3
    """Routing iterations; 1 leaves every coupling even."""
    proportions: bool = True
    """R_ij = π_j p_ij / Σ_j π_j p_ij, the update of the paper, whose couplings sum to 1. False: p_ij / Σ_j π_j p_ij, as
    in the authors' code, whose couplings sum to about the number of parents from the second iteration on."""
    concentration: float = 1.0
    """α₀ of the Dirichlet prior of the parents' proportions π; 1: none is likelier than another."""
    mean_weight: float = 1.0
    """κ₀: the prior of a parent's mean, which is at zero, counts as that many votes."""
    precision: float = 1.0
    """Ψ₀ of the Wishart prior of a parent's precision, for each pose element."""
    degrees: float = 2.0
    """ν₀ − (D − 1), with the degrees of freedom ν₀ of that prior and D pose elements; ν₀ = D + 1 in the paper."""

    def __post_init__(self) -> None:
        check_iterations(self.iterations)
        for name in ("concentration", "mean_weight", "precision", "degrees"):
            check_argument(getattr(self, name) > 0, "be above 0", **{name: getattr(self, name)})

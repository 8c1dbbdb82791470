"""What EM routing lets one choose, in one value that every backend takes."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import check_argument, not_negative
from capsella.routing.checks import check_iterations
from capsella.routing.random import random_couplings

STANDARDISED_COST_EPSILON = 1e-8
"""ε of the thesis's line 18, inside the square root: equal costs then have a zero value and a zero gradient."""


@dataclass(frozen=True)
class EMSettings:
    """Options of the EM procedure.

    Raises:
        ValueError: a number outside its range.
    """

    iterations: int = 3
    """Routing iterations; Hinton et al. 2018 find 2 and 3 best, and 1 leaves every coupling as it starts."""
    inverse_temperature: float = 0.01
    """λ_final of the schedule λ_t = λ_final · (1 − decay^(t+1)), t = 0, 1, … The authors' code has this form, and 0.01;
    its costs are twice the paper's, so that this is 0.02 here (0.005 in its class capsules)."""
    inverse_temperature_decay: float = 0.95
    """Decay of that schedule; 0 keeps λ at λ_final in every iteration."""
    variance_floor: float = 1e-4
    """σ² is never smaller; above it nothing changes. (Authors' code adds 5e-4 to every σ², the thesis ε.)"""
    cost_scale: float | None = None
    """None charges a parent for the data it receives, as published. A number scales these data so that an even share of
    fully active children counts as that many, whatever the numbers of both (public code: 100)."""
    standardise_costs: bool = False
    """Standardise the costs over the types at a position before the logistic (Forslöv 2018, Algorithm 2, lines 15–18).
    Line 16 as printed divides where it must take the mean, and line 18 as printed raises the activation with the cost;
    here a higher cost lowers it. Costs are then of order 1: an `inverse_temperature` of 20, for λ = 1.0, 1.95, 2.85,
    suits them. Costs of two types standardise to ±1 whatever they are: layers of fewer than three refuse it."""
    early_sharpness: float = 1.0
    """τ of every E-step but the last: R_ij = softmax over the parents of ln a_j + τ ln N(V_ij; μ_j, σ²_j); the paper's
    is 1. From even couplings, an E-step and the M-step after it multiply what tells the parents' means apart by up to τ
    times the largest eigenvalue of the correlation matrix of the votes' D elements, 1 to D. With τ = 1 couplings grow
    that much sharper each time, and gradients with them; with 1/D they do not. (Annealed EM, Ueda and Nakano 1998,
    warms all steps.) The last E-step keeps τ = 1, and so two iterations are the same with any."""
    start: Literal["even", "random"] = "even"
    """The couplings of the first iteration: even (the paper), or `random`, drawn once. With one iteration they stay:
    the ablations that ask whether iterations earn their keep. See `start_couplings`."""
    start_seed: int = 0
    """Seed of random couplings."""

    def __post_init__(self) -> None:
        check_iterations(self.iterations)
        decay, scale = self.inverse_temperature_decay, self.cost_scale
        check_argument(self.inverse_temperature > 0, "be above 0", inverse_temperature=self.inverse_temperature)
        check_argument(0 <= decay < 1, "be in [0, 1)", inverse_temperature_decay=decay)
        check_argument(self.variance_floor > 0, "be above 0", variance_floor=self.variance_floor)
        check_argument(scale is None or scale > 0, "be above 0 or None", cost_scale=scale)
        check_argument(0 < self.early_sharpness <= 1, "be above 0 and at most 1", early_sharpness=self.early_sharpness)
        check_argument(self.start in ("even", "random"), "be 'even' or 'random'", start=self.start)
        not_negative(start_seed=self.start_seed)

    def sharpness_at(self, iteration: int) -> float:
        """τ_t of the E-step after iteration t = 0, 1, …; the last one follows iteration `iterations` − 2."""
        return self.early_sharpness if iteration < self.iterations - 2 else 1.0

    def inverse_temperature_at(self, iteration: int) -> float:
        """λ_t of iteration t = 0, 1, …"""
        return self.inverse_temperature * (1 - self.inverse_temperature_decay ** (iteration + 1))


def start_couplings(children: int, parents: int, settings: EMSettings) -> Float[Tensor, "i j"]:
    """How each of i children, or slots of a window, shares itself among the j parents there before any M-step.

    In float64 on the CPU; rows sum to 1. Where the parents of several windows compete for a child
    (`competition="all"`), its R_ij in each is this divided by the number of windows that hold it.
    """
    if settings.start == "random":
        return random_couplings(children, parents, settings.start_seed)
    return torch.full((children, parents), 1 / parents, dtype=torch.float64)

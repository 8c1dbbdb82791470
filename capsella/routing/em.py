"""EM routing of matrix capsules (Hinton, Sabour, Frosst 2018, OpenReview HJWLfGWRb, Procedure 1).

The eager backend keeps couplings as logarithms, divides only by variances that are at least the floor, and takes no
mean by dividing two sums that may both vanish (see `shares_of`). Gradients flow through every iteration. The C++
kernels of csrc/em.h store no votes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import check_argument, not_negative
from capsella.routing.backends import FUSED, Backend, MixtureKernel, choose_backend, choose_layer_backend
from capsella.routing.base import LogisticRouting, Routed, RoutedLogits, register_routing, stack_images
from capsella.routing.convolution import RoutingInputs, bfloat16_factors, capsule_votes, slot_positions
from capsella.routing.fixed import random_couplings
from capsella.routing.functional import check_iterations, check_shape, check_votes, widened
from capsella.routing.recording import is_recording, new_trace
from capsella.routing.reference.gaussians import STANDARDISED_COST_EPSILON, em_layer_reference, em_routing_reference
from capsella.routing.votes import DenseVotes, GaussianVotes, distances_to, shares_of
from capsella.types import CapsuleLogits

LogNormaliser = Callable[[Tensor], Tensor]


def em_routing(
    votes: Float[Tensor, "b i j d"],
    activations: Float[Tensor, "b i"],
    beta_u: Float[Tensor, " j"],
    beta_a: Float[Tensor, " j"],
    iterations: int = 3,
    *,
    backend: Backend = "auto",
    **options: Any,
) -> Routed:
    """Fit a Gaussian per parent to the votes of active children, by expectation and maximisation ([H], Procedure 1).

    M-step: r_ij = R_ij a_i; μ_j = Σ r V / Σ r; σ²_j = Σ r (V − μ)² / Σ r; cost_j^h = (β_u + ln σ_j^h) Σ r;
    a_j = logistic(λ_t (β_a − Σ_h cost_j^h)). E-step: R_ij = softmax over parents of ln a_j + τ_t ln N(V_ij; μ_j, σ²_j).

    Args:
        votes, activations: [b i j d], child i's prediction V_ij of parent j's pose, and [b i], a_i in [0, 1].
        beta_u: [j], cost of describing a parent's data, per datum and pose element.
        beta_a: [j], gain from the parent's being active.
        iterations, options: fields of `EMRouting`; `competition` and `votes` affect layers only.
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        Poses μ [b j d], activations [b j], couplings R [b i j] of the last M-step, without a_i; float32 at least.

    Raises:
        ArgumentError: shapes that disagree, a number out of its range, an unknown backend.

    >>> em_routing(torch.randn(2, 5, 3, 16), torch.rand(2, 5), torch.zeros(3), torch.zeros(3)).poses.shape
    torch.Size([2, 3, 16])
    """
    routing = EMRouting(iterations, backend=backend, **options)
    return routing.route(votes, activations, beta_u=beta_u, beta_a=beta_a)


def em_procedure(
    votes: GaussianVotes,
    activations: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    settings: "EMRouting",
    log_normaliser: LogNormaliser,
) -> RoutedLogits:
    """Run Procedure 1 for the votes of i children with activations [n i].

    `log_normaliser` maps logits [n j i] to ln Σ exp(logit) over all parents that compete for child i, broadcastable to
    [n j i].
    """
    trace = new_trace("em")
    a = activations.unsqueeze(1)  # [n 1 i]
    parents, (windows, children) = len(beta_u), activations.shape
    logits = activations.new_zeros(windows, parents, children)
    uniform = logits - log_normaliser(logits)  # ln 1/|parents of i|
    uniform_share = uniform.exp().sum(2)  # [n j], the data of a parent if every child were active and undecided
    # R_ij ← 1/|parents of i|, or a random start; both divide a child evenly between the windows that hold it
    log_R = uniform + (settings.start_couplings(children, parents).to(uniform).T * parents).log()
    for t in range(settings.iterations):
        # M-step
        R = log_R.exp()
        data = (R * a).sum(2)  # Σ_i r_ij
        mu, variance = votes.moments(shares_of(log_R, a))
        variance = variance.clamp(min=settings.variance_floor)
        log_odds = _log_odds(data, uniform_share, variance, beta_u, beta_a, settings, t)
        trace.add(R.transpose(1, 2), mu, log_odds.sigmoid(), distances_to(mu, votes) if is_recording() else None)
        # E-step; after the last M-step its result would not be used
        if t < settings.iterations - 1:
            log_p = -0.5 * (votes.distances(mu, 1 / variance) + _log_2pi_variance(variance))
            log_a = torch.nn.functional.logsigmoid(log_odds)
            logits = log_a.unsqueeze(2) + settings.likelihood_weight_at(t) * log_p
            log_R = logits - log_normaliser(logits)
    return RoutedLogits(mu, log_odds, R.transpose(1, 2))


def _log_2pi_variance(variance: Tensor) -> Tensor:
    """Return Σ_d ln(2πσ²_d) [n j 1]."""
    return variance.log().sum(2, keepdim=True) + variance.shape[2] * math.log(2 * math.pi)


def _log_odds(
    data: Tensor,
    uniform_share: Tensor,
    variance: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    settings: "EMRouting",
    iteration: int,
) -> Tensor:
    """Return λ_t (β_a − Σ_d (β_u + ln σ_d) Σ_i r_ij) [n j], the log-odds of a_j, with the options of `EMRouting`."""
    if settings.cost_scale is not None:
        data = data * settings.cost_scale / uniform_share
    cost = (variance.shape[2] * beta_u + 0.5 * variance.log().sum(2)) * data
    if settings.standardise_costs:
        centred = cost - cost.mean(1, keepdim=True)
        cost = centred / (centred.square().mean(1, keepdim=True) + STANDARDISED_COST_EPSILON).sqrt()
    return settings.inverse_temperature_at(iteration) * (beta_a - cost)


def compete_here(logits: Tensor) -> Tensor:
    """Compute the `log_normaliser` for windows whose parents compete for their children among themselves."""
    return logits.logsumexp(1, keepdim=True)


def compete_everywhere(inputs: RoutingInputs) -> LogNormaliser:
    """Return the `log_normaliser` of [H]: every type at every site whose window holds the child competes for it."""
    shape, here = inputs.shape, slot_positions(inputs).flatten()

    def log_normaliser(logits: Tensor) -> Tensor:
        types = logits.logsumexp(1).reshape(shape.batch, len(here), shape.c_in)  # over the types at one site
        grid = types.new_zeros(shape.batch, shape.height * shape.width, shape.c_in)
        index = here[None, :, None].expand_as(types)
        largest = grid.scatter_reduce(1, index, types.detach(), "amax", include_self=False)[:, here]
        total = grid.index_add(1, here, (types - largest).exp())[:, here]
        return (largest + total.log()).reshape(logits.shape[0], 1, logits.shape[2])

    return log_normaliser


KERNEL = MixtureKernel(
    "em",
    "EMOptions",
    inverse_temperatures="float[]",
    sharpness="float[]",
    variance_floor="float",
    cost_scale="float",
    standardise="bool",
    compete_everywhere="bool",
    bfloat16_votes="bool",
)


@register_routing
@dataclass(frozen=True)
class EMRouting(LogisticRouting):
    """Options of `em_routing` for a capsule layer.

    Raises:
        ArgumentError: a number outside its range.
    """

    name: ClassVar[str] = "em"
    fused: ClassVar[tuple[str, ...]] = FUSED
    compares_poses: ClassVar[bool] = True

    iterations: int = 3
    """Routing iterations; Hinton et al. 2018 find 2 and 3 best. With 1, couplings stay as they start."""
    inverse_temperature: float = 0.01
    """λ_final of the schedule λ_t = λ_final · (1 − decay^(t+1)), t = 0, 1, … The authors' code has this schedule with
    0.01, but its costs are twice the paper's, so 0.02 is the same here (0.005 in its class capsules)."""
    inverse_temperature_decay: float = 0.95
    """Decay of that schedule; 0 keeps λ at λ_final in every iteration."""
    variance_floor: float = 1e-4
    """Smaller variances σ² are raised to this value. (The authors' code adds 5e-4 to every σ², the thesis ε.)"""
    cost_scale: float | None = None
    """None charges a parent for the data Σ_i r_ij that it receives, as published. A number scales these data so that a
    uniform share of fully active children counts as this many, whatever the numbers of children and parents (public
    code: 100)."""
    standardise_costs: bool = False
    """Standardise the costs over the types at a position before the logistic function (Forslöv 2018, Algorithm 2, lines
    15–18). Line 16 as printed divides where it must take the mean, and line 18 as printed raises the activation with
    the cost; here a higher cost lowers it. Costs are then of order 1: an `inverse_temperature` of 20, for λ = 1.0,
    1.95, 2.85, suits them. Layers of fewer than three types raise an error: two costs always standardise to ±1."""
    early_likelihood_weight: float = 1.0
    """τ of every E-step except the last: R_ij = softmax over the parents of ln a_j + τ ln N(V_ij; μ_j, σ²_j); the paper
    has 1. Starting from uniform couplings, an E-step and the following M-step multiply the differences between the
    parents' means by up to τ times the largest eigenvalue (1 to D) of the correlation matrix of the votes' D elements.
    With τ = 1, couplings become more peaked by this factor each time, and gradients grow with them; with 1/D they do
    not. (Annealed EM, Ueda and Nakano 1998, tempers all steps.) The last E-step keeps τ = 1, so τ does not matter with
    two iterations."""
    start: Literal["uniform", "random"] = "uniform"
    """Couplings of the first iteration: `uniform` (the paper), or `random`, drawn once from `start_seed`. With one
    iteration they stay so: ablations that test whether iterations contribute anything."""
    start_seed: int = 0
    """Seed of random couplings."""

    competition: Literal["all", "types"] = "all"
    """Which parents compete for a child in a convolution. all: every type at every site whose window holds the child
    (the paper). types: the types at one site, so that the child counts once per window that holds it (Forslöv 2018;
    many ports)."""
    beta_a_scale: float | None = None
    """None learns β_a itself, initially 0. A number s learns b in β_a = s·b, initially −1 (authors' code: 5,000, for
    costs twice the paper's, so 2,500 here; initially −½, in the class capsules −1). Costs are in the hundreds, and Adam
    moves a parameter by about the learning rate per step. Without a scale, β_a therefore stays near 0: a parent without
    data is half active, and if votes agree from the start, as over a black background, every parent is fully active,
    where the logistic function is flat."""
    votes: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the factors of votes: `bfloat16` rounds poses and weights to it, while sums, gradients and everything
    else are float32. It gives the same numbers on every machine and backend, and is faster on processors that multiply
    bfloat16 (AVX512-BF16). `auto` is float32, except when training in bf16-mixed on such a processor: capsella then
    takes bfloat16, prints a note, and stores the choice in the recipe."""
    backend: Backend = "auto"
    """The implementation that runs."""

    def __post_init__(self) -> None:
        check_iterations(self.iterations)
        decay, scale = self.inverse_temperature_decay, self.cost_scale
        check_argument(self.inverse_temperature > 0, "be above 0", inverse_temperature=self.inverse_temperature)
        check_argument(0 <= decay < 1, "be in [0, 1)", inverse_temperature_decay=decay)
        check_argument(self.variance_floor > 0, "be above 0", variance_floor=self.variance_floor)
        check_argument(scale is None or scale > 0, "be above 0 or None", cost_scale=scale)
        check_argument(
            0 < self.early_likelihood_weight <= 1,
            "be above 0 and at most 1",
            early_likelihood_weight=self.early_likelihood_weight,
        )
        check_argument(self.start in ("uniform", "random"), "be 'uniform' or 'random'", start=self.start)
        not_negative(start_seed=self.start_seed)
        scale, kinds = self.beta_a_scale, ("auto", "float32", "bfloat16")
        check_argument(scale is None or scale > 0, "be above 0 or None", beta_a_scale=scale)
        check_argument(self.competition in ("all", "types"), "be 'all' or 'types'", competition=self.competition)
        check_argument(self.votes in kinds, "be 'auto', 'float32' or 'bfloat16'", votes=self.votes)

    def likelihood_weight_at(self, iteration: int) -> float:
        """Return τ_t of the E-step after iteration t = 0, 1, …; the last E-step follows iteration `iterations` − 2."""
        return self.early_likelihood_weight if iteration < self.iterations - 2 else 1.0

    def inverse_temperature_at(self, iteration: int) -> float:
        """Return λ_t of iteration t = 0, 1, …"""
        return self.inverse_temperature * (1 - self.inverse_temperature_decay ** (iteration + 1))

    def start_couplings(self, children: int, parents: int) -> Float[Tensor, "i j"]:
        """Return the initial couplings of the children in a window with the parents at its site.

        They are float64, on the CPU, and sum to 1 over the parents. If the parents of several windows compete for a
        child (`competition="all"`), its R_ij in each window is this value divided by the number of these windows.
        """
        if self.start == "random":
            return random_couplings(children, parents, self.start_seed)
        return torch.full((children, parents), 1 / parents, dtype=torch.float64)

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Return β_u and β_a (or b, see `beta_a_scale`), one of each per parent type.

        Raises:
            ArgumentError: `standardise_costs` with fewer than three types, whose standardised costs have no gradient.
        """
        rule = "be off for a layer of fewer than three capsule types or classes (with an inverse_temperature of 0.01)"
        check_argument(not self.standardise_costs or types >= 3, rule, standardise_costs=types)
        return {"beta_u": (types,), "beta_a": (types,)}

    def init_parameters(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, Tensor]:
        """Return zeros, but −1 for b if there is a `beta_a_scale`."""
        first = super().init_parameters(types, pose, children, child_pose)
        return first if self.beta_a_scale is None else {**first, "beta_a": -torch.ones(types)}

    def _betas(self, parameters: dict[str, Tensor], types: int) -> tuple[Tensor, Tensor]:
        """Return β_u and β_a from the parameters that a layer has learned for its parent types."""
        for argument in ("beta_u", "beta_a"):
            check_shape(argument, parameters[argument], (types,), "[j]")
        scale = 1.0 if self.beta_a_scale is None else self.beta_a_scale
        return parameters["beta_u"], scale * parameters["beta_a"]

    def with_uniform_couplings(self) -> LogisticRouting:
        """See `LogisticRouting`: one iteration of Procedure 1."""
        return replace(self, iterations=1, start="uniform")

    def route_logits(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> RoutedLogits:
        """See `LogisticRouting`; all parents of these votes compete."""
        check_votes(votes)
        V, a, beta_u, beta_a = widened(votes, activations, *self._betas(parameters, votes.shape[2]))
        with torch.autocast(votes.device.type, enabled=False):
            if choose_backend(self.backend) == "reference":
                return stack_images(em_routing_reference(V, a, beta_u, beta_a, self), V)
            return em_procedure(DenseVotes(V), a, beta_u, beta_a, self, compete_here)

    def route_window_logits(self, inputs: RoutingInputs, **parameters: Tensor) -> CapsuleLogits:
        """See `LogisticRouting`; with `competition="all"`, windows compete for the children they share."""
        betas, everywhere = self._betas(parameters, inputs.shape.c_out), self.competition == "all"
        if self.votes == "bfloat16":
            inputs = bfloat16_factors(inputs)
        backend = choose_layer_backend(self, inputs)
        if backend == "native":
            return self._route_native(inputs, betas)
        if backend == "triton":
            from capsella.routing.triton import triton_votes

            fused, children = triton_votes(inputs)
            compete = compete_everywhere(inputs) if everywhere else compete_here
            beta_u, beta_a = (beta.to(children.dtype) for beta in betas)
            with torch.autocast(inputs.poses.device.type, enabled=False):
                routed = em_procedure(fused, children, beta_u, beta_a, self, compete)
            return inputs.parent_logits(routed.poses, routed.log_odds)
        if not everywhere:
            return LogisticRouting.route_window_logits(replace(self, backend=backend), inputs, **parameters)
        if backend == "reference":
            return inputs.parent_logits(*em_layer_reference(inputs, *betas, self))
        votes, children = capsule_votes(inputs)
        routed = em_procedure(DenseVotes(votes), children, *betas, self, compete_everywhere(inputs))
        return inputs.parent_logits(routed.poses, routed.log_odds)

    def _route_native(self, inputs: RoutingInputs, betas: tuple[Tensor, Tensor]) -> CapsuleLogits:
        shape, steps = inputs.shape, range(self.iterations)
        start = None if self.start == "uniform" else self.start_couplings(shape.i, shape.c_out).to(inputs.poses)
        return KERNEL.route(
            inputs,
            torch.stack(betas),
            start=start,
            inverse_temperatures=[self.inverse_temperature_at(t) for t in steps],
            sharpness=[self.likelihood_weight_at(t) for t in steps],
            variance_floor=self.variance_floor,
            cost_scale=self.cost_scale or 0.0,
            standardise=self.standardise_costs,
            compete_everywhere=self.competition == "all",
            bfloat16_votes=self.votes == "bfloat16",
        )

"""Variational Bayes routing (Ribeiro, Leontidis, Kollias 2020, "Capsule Routing via Variational Bayes", 1905.11455).

Couplings are kept as logarithms, no mean is taken by dividing two sums that may both vanish (see `shares_of`), and the
priors keep variances above zero. Gradients flow through every iteration. The C++ kernels of csrc/variational.h store no
votes.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import check_argument
from capsella.routing.backends import Backend, MixtureKernel, choose_backend, choose_layer_backend
from capsella.routing.base import LogisticRouting, Routed, RoutedLogits, register_routing, stack_images
from capsella.routing.convolution import RoutingInputs
from capsella.routing.functional import check_iterations, check_shape, check_votes, widened
from capsella.routing.recording import is_recording, new_trace
from capsella.routing.reference.gaussians import variational_routing_reference
from capsella.routing.votes import DenseVotes, distances_to, shares_of
from capsella.types import CapsuleLogits

SHIFT = 6  # added to the argument of ψ, whose series then has an error of 1e-11


def variational_routing(
    votes: Float[Tensor, "b i j d"],
    activations: Float[Tensor, "b i"],
    bias: Float[Tensor, " j"] | None = None,
    iterations: int = 3,
    *,
    backend: Backend = "auto",
    **options: Any,
) -> Routed:
    """Fit a mixture of Gaussians with priors to the votes of active children: EM whose parents cannot collapse.

    With r = R_ij a_i and R_j = Σ_i r: α_j = α₀ + R_j, κ_j = κ₀ + R_j, ν_j = ν₀ + R_j, μ_j = Σ_i r V / R_j,
    m_j = R_j μ_j / κ_j, Ψ_j⁻¹ = Ψ₀⁻¹ + Σ_i r (V − μ_j)² + (κ₀ R_j / κ_j) μ_j², element by element.
    E ln π_j = ψ(α_j) − ψ(Σ_j α_j); E ln|Λ_j| = Σ_{d<D} ψ((ν_j − d)/2) + D ln 2 + ln|Ψ_j|;
    ln p_ij = ½ E ln|Λ_j| − ½ D ln 2π − ½ (D/κ_j + ν_j Σ_h Ψ_jh (V − m_j)²_h); R_ij = π_j p_ij / Σ_j π_j p_ij.
    a_j = logistic(β_j − π_j H_j), with π_j = exp(E ln π_j) and H_j = ½ D ln 2πe − ½ E ln|Λ_j|, the entropy; weighed
    by π_j, not R_j, and diagonal, as in the authors' code. Batch normalisation is an option of layers, `norm="batch"`.

    Args:
        votes, activations: [b i j d], child i's prediction V_ij of parent j's pose, and [b i], a_i in [0, 1].
        bias: [j], β = β_a − β_u; the paper's β_a and β_u matter only by their difference. None is zero.
        iterations, options: fields of `VariationalRouting`.
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        Poses m [b j d], activations [b j], couplings R [b i j] that gave these poses, without a_i; float32 at least.

    Raises:
        ArgumentError: shapes that disagree, a number out of its range, an unknown backend.

    >>> variational_routing(torch.randn(2, 5, 3, 16), torch.rand(2, 5)).poses.shape
    torch.Size([2, 3, 16])
    """
    routing = VariationalRouting(iterations, backend=backend, **options)
    return routing.route(votes, activations, **({} if bias is None else {"bias": bias}))


class Posterior(NamedTuple):
    """The posterior of the parents: Gaussian-Wishart and Dirichlet."""

    m: Float[Tensor, "n j d"]
    kappa: Float[Tensor, "n j"]
    psi: Float[Tensor, "n j d"]
    nu: Float[Tensor, "n j"]
    log_pi: Float[Tensor, "n j"]  # E ln π
    log_lambda: Float[Tensor, "n j"]  # E ln|Λ|


def _procedure(votes: DenseVotes, activations: Tensor, bias: Tensor, settings: "VariationalRouting") -> RoutedLogits:
    """Run the procedure for the votes of i children with activations [n i] for parents of bias [j]."""
    trace = new_trace("variational")
    a = activations.unsqueeze(1)  # [n 1 i]
    log_R = a.new_full((a.shape[0], len(bias), a.shape[2]), -math.log(len(bias)))
    for t in range(settings.iterations):
        R = log_R.exp()
        q = _posterior(votes, shares_of(log_R, a), (R * a).sum(2), settings)
        log_odds = bias - q.log_pi.exp() * _entropy(q)
        distances = distances_to(q.m, votes) if is_recording() else None
        trace.add(R.transpose(1, 2), q.m, log_odds.sigmoid(), distances)
        if t < settings.iterations - 1:  # after the last posterior, new couplings would not be used
            log_pi = q.log_pi.unsqueeze(2)
            # ln π is subtracted after normalising: ln p of far votes, in the millions, would swallow it
            log_R = (log_pi + _log_density(votes, q)).log_softmax(1)
            log_R = log_R if settings.proportions else log_R - log_pi
    return RoutedLogits(q.m, log_odds, R.transpose(1, 2))


def _posterior(votes: DenseVotes, shares: Tensor, data: Tensor, settings: "VariationalRouting") -> Posterior:
    """Return the posterior for each child's share of the parents' data [n j i] and the total data R_j [n j]."""
    mu, variance = votes.moments(shares)
    D = mu.shape[2]
    kappa, nu = settings.mean_weight + data, D - 1 + settings.degrees + data
    pulled = (settings.mean_weight * data / kappa).unsqueeze(2)
    inverse_psi = 1 / settings.precision + data.unsqueeze(2) * variance + pulled * mu.square()
    alpha = settings.concentration + data
    halves = torch.arange(D, dtype=nu.dtype, device=nu.device)
    digammas = digamma((nu.unsqueeze(2) - halves) / 2).sum(2)
    return Posterior(
        m=(data / kappa).unsqueeze(2) * mu,
        kappa=kappa,
        psi=1 / inverse_psi,
        nu=nu,
        log_pi=digamma(alpha) - digamma(alpha.sum(1, keepdim=True)),
        log_lambda=digammas + D * math.log(2) - inverse_psi.log().sum(2),
    )


def _entropy(q: Posterior) -> Tensor:
    """Return H_j = ½ D ln 2πe − ½ E ln|Λ_j| [n j]."""
    return 0.5 * (q.m.shape[2] * math.log(2 * math.pi * math.e) - q.log_lambda)


def _log_density(votes: DenseVotes, q: Posterior) -> Tensor:
    """Return E ln N(V_ij; μ_j, Λ_j) [n j i] without −½ D ln 2π, which all parents have in common."""
    distance = votes.distances(q.m, q.nu.unsqueeze(2) * q.psi)
    return 0.5 * ((q.log_lambda - q.m.shape[2] / q.kappa).unsqueeze(2) - distance)


def digamma(x: Tensor) -> Tensor:
    """Return ψ(x) for x > 0 by operators that every exported graph has; ONNX has none for `torch.digamma`.

    ψ(x) = ψ(x + n) − Σ_{k<n} 1/(x + k), and its asymptotic series (Abramowitz and Stegun 1964, 6.3.6 and 6.3.18).
    """
    below = 1 / x
    for k in range(1, SHIFT):
        below = below + 1 / (x + k)
    y = 1 / (x + SHIFT)
    z = y * y
    series = z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z / 132))))
    return (x + SHIFT).log() - 0.5 * y - series - below


KERNEL = MixtureKernel(
    "variational",
    "VariationalOptions",
    iterations="int",
    proportions="bool",
    concentration="float",
    mean_weight="float",
    precision="float",
    degrees="float",
)


@register_routing
@dataclass(frozen=True)
class VariationalRouting(LogisticRouting):
    """Options of `variational_routing` for a capsule layer.

    In a convolution the types at one site compete for the children of its window, as in the authors' code: each window
    is a mixture of its own.

    Raises:
        ArgumentError: a number outside its range.
    """

    name: ClassVar[str] = "variational"
    fused: ClassVar[tuple[str, ...]] = ("native",)
    compares_poses: ClassVar[bool] = True

    iterations: int = 3
    """Routing iterations; 1 leaves every coupling uniform."""
    proportions: bool = True
    """True: R_ij = π_j p_ij / Σ_j π_j p_ij, as in the paper; couplings sum to 1. False: R_ij = p_ij / Σ_j π_j p_ij, as
    in the authors' code; from the second iteration on, couplings sum to about the number of parents."""
    concentration: float = 1.0
    """α₀ of the Dirichlet prior of the parents' proportions π; with 1, all proportions are equally likely."""
    mean_weight: float = 1.0
    """κ₀: the number of votes that the prior of a parent's mean counts as; it is centred at zero."""
    precision: float = 1.0
    """Ψ₀ of the Wishart prior of a parent's precision, for each pose element."""
    degrees: float = 2.0
    """ν₀ − (D − 1), for the Wishart prior's degrees of freedom ν₀ and D pose elements; ν₀ = D + 1 in the paper."""
    bias: bool = True
    """Learn β, one number per parent type, initially zero. Batch normalisation cancels β, so a layer with
    `norm="batch"` needs none."""
    backend: Backend = "auto"
    """The implementation that runs: reference, eager or native."""

    def __post_init__(self) -> None:
        check_iterations(self.iterations)
        for name in ("concentration", "mean_weight", "precision", "degrees"):
            check_argument(getattr(self, name) > 0, "be above 0", **{name: getattr(self, name)})

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Return the shape [j] of the bias, if there is one."""
        return {"bias": (types,)} if self.bias else {}

    def _bias(self, parameters: dict[str, Tensor], like: Tensor, types: int) -> Tensor:
        """Return β [j] of the parent types; zeros if it is not learned."""
        bias = parameters.get("bias", like.new_zeros(types))
        check_shape("bias", bias, (types,), "[j]")
        return bias

    def with_uniform_couplings(self) -> LogisticRouting:
        """See `LogisticRouting`."""
        return replace(self, iterations=1)

    def route_logits(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> RoutedLogits:
        """See `LogisticRouting`."""
        check_votes(votes)
        V, a, bias = widened(votes, activations, self._bias(parameters, votes, votes.shape[2]))
        with torch.autocast(votes.device.type, enabled=False):
            if choose_backend(self.backend) == "reference":
                return stack_images(variational_routing_reference(V, a, bias, self), V)
            return _procedure(DenseVotes(V), a, bias, self)

    def route_window_logits(self, inputs: RoutingInputs, **parameters: Tensor) -> CapsuleLogits:
        """See `LogisticRouting`."""
        backend = choose_layer_backend(self, inputs)
        if backend != "native":
            return LogisticRouting.route_window_logits(replace(self, backend=backend), inputs, **parameters)
        options = {name: getattr(self, name) for name in KERNEL.options}
        return KERNEL.route(inputs, self._bias(parameters, inputs.weight, inputs.shape.c_out).unsqueeze(0), **options)

"""EM routing of matrix capsules (Hinton, Sabour, Frosst 2018, OpenReview HJWLfGWRb, Procedure 1)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import check_argument
from capsella.routing.backends import FUSED, Backend, choose_backend, choose_conv_backend
from capsella.routing.base import LogisticRouting, Routed, Scored, register_routing
from capsella.routing.checks import check_shape, check_votes
from capsella.routing.convolution import CapsuleConv, bfloat16_factors, capsule_votes
from capsella.routing.em.eager import compete_everywhere, em_procedure, em_routing_eager
from capsella.routing.em.reference import em_capsule_conv_reference, em_routing_reference
from capsella.routing.em.settings import EMSettings
from capsella.routing.moments import WrittenVotes
from capsella.types import Capsules, ScoredCapsules

BACKENDS = {"eager": em_routing_eager, "reference": em_routing_reference}
SLOWER = "EM routing runs in PyTorch, 10 to 20 times slower"
"""What a layer without kernels is told; the times are in docs/reference/speed.md."""


def em_routing(
    votes: Float[Tensor, "b i j d"],
    activations: Float[Tensor, "b i"],
    beta_u: Float[Tensor, " j"],
    beta_a: Float[Tensor, " j"],
    iterations: int = 3,
    *,
    inverse_temperature: float = 0.01,
    inverse_temperature_decay: float = 0.95,
    variance_floor: float = 1e-4,
    cost_scale: float | None = None,
    standardise_costs: bool = False,
    early_sharpness: float = 1.0,
    start: Literal["even", "random"] = "even",
    start_seed: int = 0,
    backend: str = "auto",
) -> Routed:
    """Fit a Gaussian per parent to the votes of active children, by expectation and maximisation ([H], Procedure 1).

    M-step: r_ij = R_ij a_i; μ_j = Σ r V / Σ r; σ²_j = Σ r (V − μ)² / Σ r; cost_j^h = (β_u + ln σ_j^h) Σ r;
    a_j = logistic(λ_t (β_a − Σ_h cost_j^h)). E-step: R_ij = softmax over parents of ln a_j + τ_t ln N(V_ij; μ_j, σ²_j).

    Args:
        votes, activations: [b i j d], child i's prediction V_ij of parent j's pose, and [b i], a_i in [0, 1].
        beta_u, beta_a: [j], cost of describing a parent's data, per datum and pose element; its gain from being active.
        iterations, inverse_temperature, …, start_seed: see the fields of `EMSettings`.
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        poses μ [b j d], activations [b j], couplings R [b i j] of the last M-step, without a_i; float32 at least.

    Raises:
        ValueError: shapes that disagree, a number out of its range, an unknown backend.

    >>> em_routing(torch.randn(2, 5, 3, 16), torch.rand(2, 5), torch.zeros(3), torch.zeros(3)).poses.shape
    torch.Size([2, 3, 16])
    """
    schedule = iterations, inverse_temperature, inverse_temperature_decay
    settings = EMSettings(*schedule, variance_floor, cost_scale, standardise_costs, early_sharpness, start, start_seed)
    return _score(votes, activations, beta_u, beta_a, settings, backend).routed()


@register_routing
@dataclass(frozen=True)
class EMRouting(EMSettings, LogisticRouting):
    """Options of `em_routing` for a capsule layer."""

    name: ClassVar[str] = "em"
    fused: ClassVar[tuple[str, ...]] = FUSED
    compares_poses: ClassVar[bool] = True

    competition: Literal["all", "types"] = "all"
    """Who competes for a child of a convolution: every type at every site whose window holds it (the paper), or the
    types at one site, so that the child counts once for each window it is in (Forslöv 2018; many ports)."""
    beta_a_scale: float | None = None
    """None learns β_a itself, from 0. A number s learns b in β_a = s·b, from −1 (authors' code: 5,000, for costs twice
    the paper's, so 2,500 here; from −½ and, in the class capsules, −1). Costs are hundreds, and Adam moves a parameter
    by a learning rate a step: without a scale β_a stays 0, a parent without data is half active, and where votes agree
    from the start, as over a black background, every parent is fully active and the logistic flat."""
    votes: Literal["auto", "float32", "bfloat16"] = "auto"
    """What numbers the votes of a capsule layer are products of. `bfloat16`: poses and weights are rounded to it, sums
    and gradients are float32, and all else is; the same numbers on every machine and backend, and faster where the
    processor multiplies bfloat16 (AVX512-BF16). `auto`: float32, but for a training in bf16-mixed on such a processor,
    which takes bfloat16, says so, and keeps it in its recipe."""
    backend: Backend = "auto"
    """Which implementation runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        scale = self.beta_a_scale
        check_argument(scale is None or scale > 0, "be above 0 or None", beta_a_scale=scale)
        check_argument(self.competition in ("all", "types"), "be 'all' or 'types'", competition=self.competition)
        check_argument(
            self.votes in ("auto", "float32", "bfloat16"), "be 'auto', 'float32' or 'bfloat16'", votes=self.votes
        )

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """β_u and β_a (or b, see `beta_a_scale`), one of each per parent type.

        Raises:
            ValueError: standardised costs of two types, or one: only their order would be left, without a gradient.
        """
        if self.standardise_costs and types < 3:
            raise ValueError(
                "standardise_costs: must be off for a layer of fewer than three capsule types or classes (with an "
                f"inverse_temperature of about 0.01), got {types}"
            )
        return {"beta_u": (types,), "beta_a": (types,)}

    def first_parameters(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, Tensor]:
        """Zeros; −1 for a β_a with a scale."""
        first = super().first_parameters(types, pose, children, child_pose)
        return first if self.beta_a_scale is None else {**first, "beta_a": -torch.ones(types)}

    def _betas(self, parameters: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """β_u and β_a, from what a layer has learned."""
        scale = 1.0 if self.beta_a_scale is None else self.beta_a_scale
        return parameters["beta_u"], scale * parameters["beta_a"]

    def once(self) -> LogisticRouting:
        """The fixed start of Procedure 1: see `LogisticRouting`."""
        return replace(self, iterations=1, start="even")

    def score(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Scored:
        """`em_routing`, with log-odds: all parents of these votes compete."""
        beta_u, beta_a = self._betas(parameters)
        return _score(votes, activations, beta_u, beta_a, self, self.backend)

    def capsule_conv(self, conv: CapsuleConv, **parameters: Tensor) -> Capsules:
        """Route every window of the grid; `competition` says whether windows compete for the children they share."""
        return self.score_conv(conv, **parameters).capsules()

    def score_conv(self, conv: CapsuleConv, **parameters: Tensor) -> ScoredCapsules:
        """As `capsule_conv`, with log-odds."""
        conv, betas = self._checked(conv, parameters)
        backend = choose_conv_backend(self.backend, (*BACKENDS, *self.fused), conv, SLOWER)
        if backend == "native":
            from capsella.routing.em.native import em_capsule_conv_native

            everywhere, rounded = self.competition == "all", self.votes == "bfloat16"
            return em_capsule_conv_native(conv, *betas, self, everywhere, rounded)
        return self._score_conv(conv, betas, backend)

    def _checked(self, conv: CapsuleConv, parameters: dict[str, Tensor]) -> tuple[CapsuleConv, tuple[Tensor, Tensor]]:
        """The convolution, rounded where votes are, and β_u and β_a."""
        betas = self._betas(parameters)
        for argument, beta in zip(("beta_u", "beta_a"), betas, strict=True):
            check_shape(argument, beta, (conv.sizes.c_out,), "[j]")
        return bfloat16_factors(conv) if self.votes == "bfloat16" else conv, betas

    def _score_conv(self, conv: CapsuleConv, betas: tuple[Tensor, Tensor], backend: Backend) -> ScoredCapsules:
        everywhere = self.competition == "all"
        if backend == "triton":
            from capsella.routing.em.triton import em_capsule_conv_triton

            return em_capsule_conv_triton(conv, *betas, self, everywhere)
        if everywhere and backend == "reference":
            return em_capsule_conv_reference(conv, *betas, self)
        votes, children = capsule_votes(conv)
        if everywhere:
            V = WrittenVotes(votes.transpose(1, 2))
            scored = em_procedure(V, children, *betas, self, compete_everywhere(conv))
        else:
            scored = _score(votes, children, *betas, self, backend)
        return conv.scored_parents(scored.poses, scored.log_odds)


def _score(
    votes: Tensor, activations: Tensor, beta_u: Tensor, beta_a: Tensor, settings: EMSettings, backend: str
) -> Scored:
    """`em_routing` with its options in one value, and log-odds."""
    check_votes(votes)
    parents = (votes.shape[2],)
    check_shape("activations", activations, tuple(votes.shape[:2]), "[b i]")
    check_shape("beta_u", beta_u, parents, "[j]")
    check_shape("beta_a", beta_a, parents, "[j]")
    run = BACKENDS[choose_backend(backend, BACKENDS, auto="eager")]
    dtype = torch.promote_types(votes.dtype, torch.float32)
    with torch.autocast(votes.device.type, enabled=False):
        return run(votes.to(dtype), activations.to(dtype), beta_u.to(dtype), beta_a.to(dtype), settings)

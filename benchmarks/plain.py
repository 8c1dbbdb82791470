"""Routings as a reader of the papers writes them in PyTorch: the votes in memory, sums by broadcasting.

The yardstick of the benchmarks, and the port that the stability study trains. Autograd keeps what it will. Nothing is
guarded: a sum of zero is divided by, and the logarithm of zero is taken. `epsilon` adds what many ports add.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from benchmarks.plain_products import PlainInvertedAttentionRouting, PlainSelfAttentionRouting, PlainSelfRouting
from benchmarks.plain_votes import Windows, plain_votes
from capsella.routing import (
    CapsuleConv,
    DynamicRouting,
    EMRouting,
    HeinsenRouting,
    InvertedAttentionRouting,
    Routed,
    Routing,
    SelfAttentionRouting,
    SelfRouting,
    VariationalRouting,
)
from capsella.routing.convolution import slot_positions
from capsella.types import Capsules


@dataclass(frozen=True)
class PlainEMRouting(Routing):
    """Hinton et al. 2018, Procedure 1, with the formulas of `capsule_conv`; no `cost_scale`, no standardised costs."""

    name: ClassVar[str] = "plain-em"

    iterations: int = 3
    inverse_temperature: float = 0.01
    inverse_temperature_decay: float = 0.95
    competition: Literal["all", "types"] = "all"
    epsilon: float = 0.0
    """Added to Σ r, to σ² and to a before its logarithm; public ports have 1e-9 to 1e-4."""

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """β_u and β_a, one of each per parent type."""
        return {"beta_u": (types,), "beta_a": (types,)}

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """Votes [b i j d] as those of one window."""
        mu, a, R = self._procedure(votes[:, None, None], activations[:, None, None], None, **parameters)
        return Routed(mu[:, 0], a[:, 0], R[:, 0, 0])

    def capsule_conv(self, conv: CapsuleConv, **parameters: Tensor) -> Capsules:
        """M-step: r = R a; μ = Σ r V / Σ r; σ² = Σ r (V − μ)² / Σ r; cost = (β_u + ln σ) Σ r.

        a = logistic(λ (β_a − Σ_h cost)).
        E-step: ln p = −Σ_h (V − μ)² / 2σ² − Σ_h (ln σ + ½ ln 2π); R = softmax over the parents of ln a + ln p.
        """
        V, children = plain_votes(conv)
        slots = slot_positions(conv) if self.competition == "all" else None
        mu, a, _ = self._procedure(V, children, slots, **parameters)
        return conv.parents(mu, a)

    def _procedure(
        self, V: Tensor, a_in: Tensor, slots: Tensor | None, beta_u: Tensor, beta_a: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Votes [b s k m j d] → μ [b s j d], a [b s j], R [b s k m j]; slots [s k], where all positions compete."""
        parents = torch.ones_like(V[..., 0]) * V.shape[4]
        if slots is not None:
            parents = parents * slots.flatten().bincount()[slots][:, :, None, None]
        R = 1 / parents
        for t in range(self.iterations):
            r = (R * a_in[..., None])[..., None]  # [b s k m j 1]
            data = r.sum((2, 3)) + self.epsilon  # [b s j 1]
            mu = (r * V).sum((2, 3)) / data
            deviation = (V - mu[:, :, None, None]) ** 2
            variance = (r * deviation).sum((2, 3)) / data + self.epsilon
            cost = (beta_u[:, None] + variance.sqrt().log()) * data
            a = torch.sigmoid(self._inverse_temperature_at(t) * (beta_a - cost.sum(3)))
            if t < self.iterations - 1:
                per_parent = (a + self.epsilon).log() - (variance.sqrt().log() + 0.5 * math.log(2 * math.pi)).sum(3)
                log_ap = per_parent[:, :, None, None] - (deviation / (2 * variance[:, :, None, None])).sum(5)
                R = log_ap.softmax(4) if slots is None else _softmax_everywhere(log_ap, slots)
        return mu, a, R

    def _inverse_temperature_at(self, iteration: int) -> float:
        return self.inverse_temperature * (1 - self.inverse_temperature_decay ** (iteration + 1))


def _softmax_everywhere(log_ap: Tensor, slots: Tensor) -> Tensor:
    """Over all types at all positions whose window holds the child: a table of every child and every parent's position.

    The table is that of Gritzman 2019 (arXiv 1907.00652), where the others leave this competition out.
    """
    batch, sites, _, types, parents = log_ap.shape
    table = log_ap.new_full((batch, sites, int(slots.max()) + 1, types, parents), -math.inf)
    site = torch.arange(sites, device=slots.device)[:, None]
    table[:, site, slots] = log_ap
    log_sum = table.logsumexp((1, 4))  # [b children m]
    return (log_ap - log_sum[:, slots][..., None]).exp()


@dataclass(frozen=True)
class PlainDynamicRouting(Routing):
    """Sabour et al. 2017, Procedure 1, with the formulas of `capsule_conv`; neither bias nor leak."""

    name: ClassVar[str] = "plain-dynamic"

    iterations: int = 3

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """Votes [b i j d] as those of one window."""
        v, c = self._procedure(votes[:, None, None])
        return Routed(v[:, 0], v[:, 0].norm(dim=2), c[:, 0, 0])

    def capsule_conv(self, conv: CapsuleConv, **parameters: Tensor) -> Capsules:
        """Each iteration: c = softmax of b over the parents; s = Σ c V; v = ‖s‖²/(1 + ‖s‖²) · s/‖s‖; b = b + V·v."""
        v, _ = self._procedure(plain_votes(conv)[0])
        return conv.parents(v, v.norm(dim=3))

    def _procedure(self, V: Tensor) -> tuple[Tensor, Tensor]:
        """Votes [b s k m j d] → v [b s j d], c [b s k m j]."""
        b = torch.zeros_like(V[..., 0])
        for t in range(self.iterations):
            c = b.softmax(4)
            s = (c[..., None] * V).sum((2, 3))
            norm = s.norm(dim=3, keepdim=True)
            v = norm**2 / (1 + norm**2) * s / norm
            if t < self.iterations - 1:
                b = b + (V * v[:, :, None, None]).sum(5)
        return v, c


@dataclass(frozen=True)
class PlainVariationalRouting(Windows):
    """Ribeiro et al. 2020 with the formulas of `variational_routing`; the types at one site compete."""

    name: ClassVar[str] = "plain-variational"

    iterations: int = 3
    concentration: float = 1.0
    mean_weight: float = 1.0
    precision: float = 1.0
    degrees: float = 2.0

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """β of each parent type."""
        return {"bias": (types,)}

    def _procedure(  # type: ignore[override]
        self, V: Tensor, a_in: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Votes [b s k m j d] → m [b s j d], a [b s j], R [b s k m j]."""
        D = V.shape[5]
        R = torch.ones_like(V[..., 0]) / V.shape[4]
        for t in range(self.iterations):
            r = (R * a_in[..., None])[..., None]  # [b s k m j 1]
            data = r.sum((2, 3))  # [b s j 1]
            mu = (r * V).sum((2, 3)) / data
            scatter = (r * (V - mu[:, :, None, None]) ** 2).sum((2, 3))
            alpha, kappa = self.concentration + data[..., 0], self.mean_weight + data
            nu, m = D - 1 + self.degrees + data, data / kappa * mu
            psi = 1 / (1 / self.precision + scatter + self.mean_weight * data / kappa * mu**2)
            log_pi = torch.digamma(alpha) - torch.digamma(alpha.sum(2, keepdim=True))
            digammas = torch.digamma((nu - torch.arange(D, device=nu.device)) / 2).sum(3)
            log_lambda = digammas + D * math.log(2) + psi.log().sum(3)
            entropy = D / 2 * math.log(2 * math.pi * math.e) - log_lambda / 2
            a = torch.sigmoid(bias - log_pi.exp() * entropy)
            if t < self.iterations - 1:
                distance = ((nu * psi)[:, :, None, None] * (V - m[:, :, None, None]) ** 2).sum(5)
                per_parent = log_pi + log_lambda / 2 - D / 2 * math.log(2 * math.pi) - D / (2 * kappa[..., 0])
                R = (per_parent[:, :, None, None] - distance / 2).softmax(4)
        return m, a, R


@dataclass(frozen=True)
class PlainHeinsenRouting(Windows):
    """Heinsen 2019, Algorithm 1, with the formulas of `heinsen_routing`; the types at one site compete."""

    name: ClassVar[str] = "plain-heinsen"

    iterations: int = 3
    epsilon: float = 1e-5

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """β_use and β_ign [i j], and B [i j d]."""
        return {"beta_use": (children, types), "beta_ignore": (children, types), "bias": (children, types, pose)}

    def _procedure(  # type: ignore[override]
        self, V: Tensor, a_in: Tensor, beta_use: Tensor, beta_ignore: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Votes [b s k m j d] → μ [b s j d], a [b s j], R [b s k m j]."""
        k, m = V.shape[2:4]
        beta_use, beta_ignore, bias = (x.unflatten(0, (k, m)) for x in (beta_use, beta_ignore, bias))
        V = V + bias
        R = torch.ones_like(V[..., 0]) / V.shape[4]
        for t in range(self.iterations):
            use = a_in[..., None] * R  # [b s k m j]
            ignore = a_in[..., None] - use
            score = (beta_use * use - beta_ignore * ignore).sum((2, 3))  # [b s j]
            data = use.sum((2, 3))[..., None] + self.epsilon
            mu = (use[..., None] * V).sum((2, 3)) / data
            deviation = (V - mu[:, :, None, None]) ** 2
            variance = (use[..., None] * deviation).sum((2, 3)) / data + self.epsilon
            if t < self.iterations - 1:
                log_p = -(deviation / (2 * variance[:, :, None, None])).sum(5)
                per_parent = torch.nn.functional.logsigmoid(score) - variance.sqrt().log().sum(3)
                R = (per_parent[:, :, None, None] + log_p).softmax(4)
        return mu, torch.sigmoid(score), R


TWINS: dict[type[Routing], type[Routing]] = {
    EMRouting: PlainEMRouting,
    DynamicRouting: PlainDynamicRouting,
    VariationalRouting: PlainVariationalRouting,
    HeinsenRouting: PlainHeinsenRouting,
    SelfRouting: PlainSelfRouting,
    SelfAttentionRouting: PlainSelfAttentionRouting,
    InvertedAttentionRouting: PlainInvertedAttentionRouting,
}


def plain(routing: Routing) -> Routing:
    """The plain port of a routing with the same options.

    Raises:
        ValueError: a method or an option that has no plain port.
    """
    if type(routing) not in TWINS:
        known = ", ".join(sorted(kind.name for kind in TWINS))
        raise ValueError(f"routing: must be one of {known} to have a plain port, got {routing.name!r}")
    twin = TWINS[type(routing)]
    shared = {field.name for field in dataclasses.fields(twin)} - {"epsilon"}
    if isinstance(routing, HeinsenRouting):
        shared |= {"epsilon"}  # the paper's own, not a port's
    rest = {field.name for field in dataclasses.fields(routing)} - shared - {"backend", "variance_floor"}
    defaults = type(routing)()
    if changed := sorted(name for name in rest if getattr(routing, name) != getattr(defaults, name)):
        raise ValueError(f"routing: a plain port has no {changed[0]}, got {getattr(routing, changed[0])!r}")
    return twin(**{name: getattr(routing, name) for name in shared})

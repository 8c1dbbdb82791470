"""Routings as a reader of the papers writes them in PyTorch: all votes in memory, sums by broadcasting.

The other side of the benchmarks' ratios. Nothing is guarded: a sum of zero is divided by, and the logarithm of zero is
taken, unless a port's `epsilon` is added.
"""

import dataclasses
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from capsella.routing import (
    DynamicRouting,
    EMRouting,
    HeinsenRouting,
    Routed,
    Routing,
    RoutingInputs,
    VariationalRouting,
)
from capsella.routing.convolution import gather_windows, slot_positions
from capsella.types import Capsules


def plain_votes(inputs: RoutingInputs) -> tuple[Tensor, Tensor]:
    """Return votes [b s k m j d] and the children's activations [b s k m] of every window.

    s: sites; k: slots of a window; m, j: child and parent types. V = M W by one einsum, without the copies of M for
    every parent and of W for every image and position that many ports make.
    """
    sizes, weight = inputs.shape, inputs.weight
    M = gather_windows(inputs.poses, inputs.geometry).reshape(sizes.batch, -1, sizes.k, sizes.c_in, sizes.r, sizes.q)
    W = weight.expand(*inputs.geometry.kernel, *weight.shape[2:]).reshape(sizes.k, *weight.shape[2:])
    V = torch.einsum("bskmrq,kmjqe->bskmjre", M, W).flatten(5)
    if inputs.vote_offset is not None:
        V = V + gather_windows(inputs.vote_offset[None], inputs.geometry).reshape(-1, sizes.k, 1, 1, sizes.d)
    return V, gather_windows(inputs.activations, inputs.geometry).reshape(sizes.batch, -1, sizes.k, sizes.c_in)


class Plain(Routing):
    """A routing by its paper's formulas."""

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """Route votes [b i j d] as those of one window."""
        poses, a, R = self._procedure(votes[:, None, None], activations[:, None, None], None, **parameters)
        return Routed(poses[:, 0], a[:, 0], R[:, 0, 0])

    def route_windows(self, inputs: RoutingInputs, **parameters: Tensor) -> Capsules:
        """Route all windows of a capsule convolution."""
        slots = slot_positions(inputs) if getattr(self, "competition", "types") == "all" else None
        poses, a, _ = self._procedure(*plain_votes(inputs), slots, **parameters)
        return inputs.parents(poses, a)

    @abstractmethod
    def _procedure(
        self, V: Tensor, a_in: Tensor, slots: Tensor | None, **parameters: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return poses [b s j d], a [b s j] and R [b s k m j] for votes [b s k m j d].

        slots: [s k], the position of each slot's child, if the parents at all sites compete for it.
        """


@dataclass(frozen=True)
class PlainEMRouting(Plain):
    """Hinton et al. 2018, Procedure 1, without `cost_scale` and standardised costs.

    M-step: r = R a; μ = Σ r V / Σ r; σ² = Σ r (V − μ)² / Σ r; cost = (β_u + ln σ) Σ r;
    a = logistic(λ (β_a − Σ_h cost)).
    E-step: ln p = −Σ_h (V − μ)² / 2σ² − Σ_h (ln σ + ½ ln 2π); R = softmax over the parents of ln a + ln p.
    """

    name: ClassVar[str] = "plain-em"

    iterations: int = 3
    inverse_temperature: float = 0.01
    inverse_temperature_decay: float = 0.95
    competition: Literal["all", "types"] = "all"
    epsilon: float = 0.0  # added to Σ r, to σ² and to a before its logarithm; public ports have 1e-9 to 1e-4

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of β_u and β_a, one of each per parent type."""
        return {"beta_u": (types,), "beta_a": (types,)}

    def _procedure(  # type: ignore[override]
        self, V: Tensor, a_in: Tensor, slots: Tensor | None, beta_u: Tensor, beta_a: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
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
            inverse_temperature = self.inverse_temperature * (1 - self.inverse_temperature_decay ** (t + 1))
            a = torch.sigmoid(inverse_temperature * (beta_a - cost.sum(3)))
            if t < self.iterations - 1:
                per_parent = (a + self.epsilon).log() - (variance.sqrt().log() + 0.5 * math.log(2 * math.pi)).sum(3)
                log_ap = per_parent[:, :, None, None] - (deviation / (2 * variance[:, :, None, None])).sum(5)
                R = log_ap.softmax(4) if slots is None else _softmax_everywhere(log_ap, slots)
        return mu, a, R


def _softmax_everywhere(log_ap: Tensor, slots: Tensor) -> Tensor:
    """Softmax over all types at all positions whose window holds the child.

    The table of every child and every parent's position is that of Gritzman 2019 (arXiv 1907.00652); other ports leave
    this competition out.
    """
    batch, sites, _, types, parents = log_ap.shape
    table = log_ap.new_full((batch, sites, int(slots.max()) + 1, types, parents), -math.inf)
    site = torch.arange(sites, device=slots.device)[:, None]
    table[:, site, slots] = log_ap
    log_sum = table.logsumexp((1, 4))  # [b children m]
    return (log_ap - log_sum[:, slots][..., None]).exp()


@dataclass(frozen=True)
class PlainDynamicRouting(Plain):
    """Sabour et al. 2017, Procedure 1: c = softmax of b over the parents; s = Σ c V; v = squash(s); b = b + V·v."""

    name: ClassVar[str] = "plain-dynamic"

    iterations: int = 3

    def _procedure(
        self, V: Tensor, a_in: Tensor, slots: Tensor | None, **parameters: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        b = torch.zeros_like(V[..., 0])
        for t in range(self.iterations):
            c = b.softmax(4)
            s = (c[..., None] * V).sum((2, 3))
            norm = s.norm(dim=3, keepdim=True)
            v = norm**2 / (1 + norm**2) * s / norm
            if t < self.iterations - 1:
                b = b + (V * v[:, :, None, None]).sum(5)
        return v, v.norm(dim=3), c


@dataclass(frozen=True)
class PlainVariationalRouting(Plain):
    """Ribeiro et al. 2020 with the formulas of `variational_routing`; the types at one site compete."""

    name: ClassVar[str] = "plain-variational"

    iterations: int = 3
    concentration: float = 1.0
    mean_weight: float = 1.0
    precision: float = 1.0
    degrees: float = 2.0

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of β, one per parent type."""
        return {"bias": (types,)}

    def _procedure(  # type: ignore[override]
        self, V: Tensor, a_in: Tensor, slots: Tensor | None, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
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
class PlainHeinsenRouting(Plain):
    """Heinsen 2019, Algorithm 1, with the formulas of `heinsen_routing`; the types at one site compete."""

    name: ClassVar[str] = "plain-heinsen"

    iterations: int = 3
    epsilon: float = 1e-5

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of β_use and β_ign [i j], and B [i j d]."""
        return {"beta_use": (children, types), "beta_ignore": (children, types), "bias": (children, types, pose)}

    def _procedure(  # type: ignore[override]
        self, V: Tensor, a_in: Tensor, slots: Tensor | None, beta_use: Tensor, beta_ignore: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        beta_use, beta_ignore, bias = (x.unflatten(0, V.shape[2:4]) for x in (beta_use, beta_ignore, bias))
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


PORTS: dict[type[Routing], type[Plain]] = {
    EMRouting: PlainEMRouting,
    DynamicRouting: PlainDynamicRouting,
    VariationalRouting: PlainVariationalRouting,
    HeinsenRouting: PlainHeinsenRouting,
}


def plain(routing: Routing) -> Routing:
    """Return the plain port of a routing with the same options.

    Raises:
        ValueError: a method or an option without a plain port ("routing: …").
    """
    if type(routing) not in PORTS:
        known = ", ".join(sorted(kind.name for kind in PORTS))
        raise ValueError(f"routing: must be one of {known} to have a plain port, got {routing.name!r}")
    port = PORTS[type(routing)]
    shared = {field.name for field in dataclasses.fields(port)} - {"epsilon"}
    if isinstance(routing, HeinsenRouting):
        shared |= {"epsilon"}  # the paper's own
    rest = {field.name for field in dataclasses.fields(routing)} - shared - {"backend", "variance_floor"}
    defaults = type(routing)()
    if changed := sorted(name for name in rest if getattr(routing, name) != getattr(defaults, name)):
        raise ValueError(f"routing: a plain port has no {changed[0]}, got {getattr(routing, changed[0])!r}")
    return port(**{name: getattr(routing, name) for name in shared})

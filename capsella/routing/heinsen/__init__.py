"""Heinsen routing (Heinsen 2019, "An Algorithm for Routing Capsules in All Domains", arXiv 1911.00792, Algorithm 1)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.routing.backends import Backend, choose_backend, choose_conv_backend
from capsella.routing.base import LogisticRouting, Routed, Scored, register_routing
from capsella.routing.checks import check_shape, check_votes
from capsella.routing.convolution import CapsuleConv, capsule_votes
from capsella.routing.heinsen.eager import heinsen_routing_eager
from capsella.routing.heinsen.reference import heinsen_routing_reference
from capsella.routing.heinsen.settings import HeinsenSettings
from capsella.types import ScoredCapsules

BACKENDS = {"eager": heinsen_routing_eager, "reference": heinsen_routing_reference}
SLOWER = "Heinsen routing runs in PyTorch, 10 to 20 times slower"


def heinsen_routing(
    votes: Float[Tensor, "b i j d"],
    activations: Float[Tensor, "b i"],
    beta_use: Float[Tensor, "#i j"],
    beta_ignore: Float[Tensor, "#i j"],
    bias: Float[Tensor, "#i j d"] | None = None,
    iterations: int = 3,
    *,
    epsilon: float = 1e-5,
    backend: str = "auto",
) -> Routed:
    """Fit a Gaussian per parent to the votes; a parent is as active as using its children gains, and ignoring costs.

    E-step: R_ij = softmax over the parents of ln f(a_j) − Σ_d (V_ij − μ_j)²/2σ²_j − Σ_d ln σ_j, even at first.
    D-step: use_ij = f_i R_ij, ignore_ij = f_i − use_ij. M-step: the score a_j = Σ_i β_use use_ij − β_ign ignore_ij, and
    μ_j, σ²_j the mean and variance of the votes weighed by use_ij. f is the logistic function: f_i of the child's
    score, f(a_j) of the parent's, which is its activation.

    Args:
        votes, activations: [b i j d], child i's prediction V_ij of parent j's pose, and [b i], f_i in [0, 1].
        beta_use, beta_ignore: [i j], what a child's use gains a parent, and what its being ignored costs; [1 j] for all
            children alike.
        bias: [i j d], or [1 j d] for all children, added to the votes (B of the paper); None is zero.
        iterations, epsilon: see the fields of `HeinsenSettings`.
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        poses μ [b j d], activations f(a) [b j], couplings R [b i j] of the last iteration; float32 at least.

    Raises:
        ValueError: shapes that disagree, a number out of its range, an unknown backend.

    >>> gain, cost = torch.ones(5, 3), torch.zeros(1, 3)
    >>> heinsen_routing(torch.randn(2, 5, 3, 16), torch.rand(2, 5), gain, cost).poses.shape
    torch.Size([2, 3, 16])
    """
    settings = HeinsenSettings(iterations, epsilon)
    return _score(votes, activations, beta_use, beta_ignore, bias, settings, backend).routed()


@register_routing
@dataclass(frozen=True)
class HeinsenRouting(HeinsenSettings, LogisticRouting):
    """Options of `heinsen_routing` for a capsule layer. In a convolution the types at one site compete."""

    name: ClassVar[str] = "heinsen"
    fused: ClassVar[tuple[str, ...]] = ("native",)
    compares_poses: ClassVar[bool] = True

    shared: bool = False
    """One β_use, β_ign and B of each parent type for all children of the window, whatever their number."""
    bias: bool = True
    """Learn B, which is added to the votes, from zero."""
    backend: Backend = "auto"
    """Which implementation runs: reference, eager or native."""

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """β_use and β_ign [i j], and B [i j d] where asked for; i = 1 where they are shared."""
        rows = 1 if self.shared else children
        betas: dict[str, tuple[int, ...]] = {"beta_use": (rows, types), "beta_ignore": (rows, types)}
        return {**betas, "bias": (rows, types, pose)} if self.bias else betas

    def once(self) -> LogisticRouting:
        """See `LogisticRouting`."""
        return replace(self, iterations=1)

    def score(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Scored:
        """`heinsen_routing`, with scores."""
        betas = parameters["beta_use"], parameters["beta_ignore"]
        return _score(votes, activations, *betas, parameters.get("bias"), self, self.backend)

    def score_conv(self, conv: CapsuleConv, **parameters: Tensor) -> ScoredCapsules:
        """See `LogisticRouting`."""
        backend = choose_conv_backend(self.backend, (*BACKENDS, *self.fused), conv, SLOWER)
        betas, bias = (parameters["beta_use"], parameters["beta_ignore"]), parameters.get("bias")
        if backend != "native":
            scored = _score(*capsule_votes(conv), *betas, bias, self, backend)
            return conv.scored_parents(scored.poses, scored.log_odds)
        from capsella.routing.heinsen.native import heinsen_capsule_conv_native

        sizes = conv.sizes
        _check_parameters(*betas, bias, (sizes.i, sizes.c_out, sizes.d))
        rows = max(len(tensor) for tensor in (*betas, bias) if tensor is not None)
        beta_use, beta_ignore = (beta.expand(rows, -1) for beta in betas)
        every = None if bias is None else bias.expand(rows, -1, -1)
        return heinsen_capsule_conv_native(conv, beta_use, beta_ignore, every, self)


def _score(
    votes: Tensor,
    activations: Tensor,
    beta_use: Tensor,
    beta_ignore: Tensor,
    bias: Tensor | None,
    settings: HeinsenSettings,
    backend: str,
) -> Scored:
    """`heinsen_routing` with its options in one value, and scores, which are the log-odds."""
    check_votes(votes)
    _, i, j, d = votes.shape
    check_shape("activations", activations, tuple(votes.shape[:2]), "[b i]")
    _check_parameters(beta_use, beta_ignore, bias, (i, j, d))
    if bias is not None:
        votes = votes + bias
    run = BACKENDS[choose_backend(backend, BACKENDS, auto="eager")]
    dtype = torch.promote_types(votes.dtype, torch.float32)
    with torch.autocast(votes.device.type, enabled=False):
        beta_use, beta_ignore = (beta.to(dtype).expand(i, j) for beta in (beta_use, beta_ignore))
        return run(votes.to(dtype), activations.to(dtype), beta_use, beta_ignore, settings)


def _check_parameters(beta_use: Tensor, beta_ignore: Tensor, bias: Tensor | None, sizes: tuple[int, int, int]) -> None:
    """For i children and j parents of d pose elements; one row serves all children."""
    i, j, d = sizes
    check_shape("beta_use", beta_use, (1 if len(beta_use) == 1 else i, j), "[i j]")
    check_shape("beta_ignore", beta_ignore, (1 if len(beta_ignore) == 1 else i, j), "[i j]")
    if bias is not None:
        check_shape("bias", bias, (1 if len(bias) == 1 else i, j, d), "[i j d]")

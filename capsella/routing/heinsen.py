"""Heinsen routing (Heinsen 2019, "An Algorithm for Routing Capsules in All Domains", arXiv 1911.00792, Algorithm 1).

Couplings are kept as logarithms, and gradients flow through every iteration. The C++ kernels of csrc/heinsen.h store no
votes.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import check_argument
from capsella.routing.backends import Backend, MixtureKernel, choose_backend, choose_layer_backend
from capsella.routing.base import LogisticRouting, Routed, RoutedLogits, register_routing, stack_images
from capsella.routing.convolution import RoutingInputs
from capsella.routing.functional import check_iterations, check_shape, check_votes, widened
from capsella.routing.recording import is_recording, new_trace
from capsella.routing.reference.gaussians import heinsen_routing_reference
from capsella.routing.votes import DenseVotes, distances_to, shares_of
from capsella.types import CapsuleLogits


def heinsen_routing(
    votes: Float[Tensor, "b i j d"],
    activations: Float[Tensor, "b i"],
    beta_use: Float[Tensor, "#i j"],
    beta_ignore: Float[Tensor, "#i j"],
    bias: Float[Tensor, "#i j d"] | None = None,
    iterations: int = 3,
    *,
    epsilon: float = 1e-5,
    backend: Backend = "auto",
) -> Routed:
    """Fit a Gaussian per parent to the votes; activate a parent by what using children gains and ignoring them costs.

    E-step: R_ij = softmax over the parents of ln f(a_j) − Σ_d (V_ij − μ_j)²/2σ²_j − Σ_d ln σ_j, uniform at first.
    D-step: use_ij = f_i R_ij, ignore_ij = f_i − use_ij. M-step: the score a_j = Σ_i β_use use_ij − β_ign ignore_ij, and
    μ_j, σ²_j the mean and variance of the votes weighed by use_ij. f is the logistic function: f_i of the child's
    score, f(a_j) of the parent's, which is its activation.

    Args:
        votes, activations: [b i j d], child i's prediction V_ij of parent j's pose, and [b i], f_i in [0, 1].
        beta_use, beta_ignore: [i j], what a parent gains by using a child, and what it pays for ignoring it; [1 j] is
            shared by all children.
        bias: [i j d], or [1 j d] for all children, added to the votes (B of the paper); None is zero.
        iterations, epsilon: fields of `HeinsenRouting`.
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        Poses μ [b j d], activations f(a) [b j], couplings R [b i j] of the last iteration; float32 at least.

    Raises:
        ArgumentError: shapes that disagree, a number out of its range, an unknown backend.

    >>> gain, cost = torch.ones(5, 3), torch.zeros(1, 3)
    >>> heinsen_routing(torch.randn(2, 5, 3, 16), torch.rand(2, 5), gain, cost).poses.shape
    torch.Size([2, 3, 16])
    """
    parameters = {"beta_use": beta_use, "beta_ignore": beta_ignore, **({} if bias is None else {"bias": bias})}
    return HeinsenRouting(iterations, epsilon, backend=backend).route(votes, activations, **parameters)


def _procedure(
    votes: DenseVotes, activations: Tensor, beta_use: Tensor, beta_ignore: Tensor, settings: "HeinsenRouting"
) -> RoutedLogits:
    """Run Algorithm 1 for the votes of i children with activations [n i]; both β are [i j]."""
    trace = new_trace("heinsen")
    f = activations.unsqueeze(1)  # [n 1 i]
    parents = beta_use.shape[1]
    log_R = f.new_full((f.shape[0], parents, f.shape[2]), -math.log(parents))
    for t in range(settings.iterations):
        R = log_R.exp()
        use = f * R  # D-step
        score = (beta_use.T * use).sum(2) - (beta_ignore.T * (f - use)).sum(2)  # M-step
        mean, variance = votes.moments(shares_of(log_R, f))
        # ε is added to the data, which pulls the mean towards zero.
        data = use.sum(2, keepdim=True)  # [n j 1]
        weight = data / (data + settings.epsilon)
        mu, variance = weight * mean, weight * (variance + ((1 - weight) * mean).square()) + settings.epsilon
        trace.add(R.transpose(1, 2), mu, score.sigmoid(), distances_to(mu, votes) if is_recording() else None)
        if t < settings.iterations - 1:  # E-step; after the last M-step its result would not be used
            log_p = -0.5 * (votes.distances(mu, 1 / variance) + variance.log().sum(2, keepdim=True))
            log_R = (torch.nn.functional.logsigmoid(score).unsqueeze(2) + log_p).log_softmax(1)
    return RoutedLogits(mu, score, R.transpose(1, 2))


KERNEL = MixtureKernel("heinsen", "HeinsenOptions", iterations="int", epsilon="float", shared="bool")


@register_routing
@dataclass(frozen=True)
class HeinsenRouting(LogisticRouting):
    """Options of `heinsen_routing` for a capsule layer. In a convolution the types at one site compete.

    Raises:
        ArgumentError: a number outside its range.
    """

    name: ClassVar[str] = "heinsen"
    fused: ClassVar[tuple[str, ...]] = ("native",)
    compares_poses: ClassVar[bool] = True

    iterations: int = 3
    """Routing iterations; 1 leaves every coupling uniform."""
    epsilon: float = 1e-5
    """ε, added to the variance, and to Σ_i use_ij where a parent's mean and variance divide by it (authors' code)."""
    shared: bool = False
    """Share β_use, β_ign and B of a parent type among all children of the window, however many there are."""
    bias: bool = True
    """Learn B, initially zero, which is added to the votes."""
    backend: Backend = "auto"
    """The implementation that runs: reference, eager or native."""

    def __post_init__(self) -> None:
        check_iterations(self.iterations)
        check_argument(self.epsilon > 0, "be above 0", epsilon=self.epsilon)

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of β_use and β_ign [i j], and of B [i j d] with `bias`; i = 1 with `shared`."""
        rows = 1 if self.shared else children
        betas: dict[str, tuple[int, ...]] = {"beta_use": (rows, types), "beta_ignore": (rows, types)}
        return {**betas, "bias": (rows, types, pose)} if self.bias else betas

    def with_uniform_couplings(self) -> LogisticRouting:
        """See `LogisticRouting`."""
        return replace(self, iterations=1)

    def route_logits(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> RoutedLogits:
        """See `LogisticRouting`; the log-odds are the scores."""
        check_votes(votes)
        _, i, j, d = votes.shape
        betas, bias = (parameters["beta_use"], parameters["beta_ignore"]), parameters.get("bias")
        _check_parameters(*betas, bias, (i, j, d))
        V, f, *betas_wide = widened(votes if bias is None else votes + bias, activations, *betas)
        use, ignore = (beta.expand(i, j) for beta in betas_wide)
        with torch.autocast(votes.device.type, enabled=False):
            if choose_backend(self.backend) == "reference":
                return stack_images(heinsen_routing_reference(V, f, use, ignore, self), V)
            return _procedure(DenseVotes(V), f, use, ignore, self)

    def route_window_logits(self, inputs: RoutingInputs, **parameters: Tensor) -> CapsuleLogits:
        """See `LogisticRouting`."""
        backend = choose_layer_backend(self, inputs)
        if backend != "native":
            return LogisticRouting.route_window_logits(replace(self, backend=backend), inputs, **parameters)
        betas, bias = (parameters["beta_use"], parameters["beta_ignore"]), parameters.get("bias")
        _check_parameters(*betas, bias, (inputs.shape.i, inputs.shape.c_out, inputs.shape.d))
        rows = max(len(tensor) for tensor in (*betas, bias) if tensor is not None)
        use, ignore = (beta.expand(rows, -1) for beta in betas)
        # β_use D_use − β_ign (f − D_use) = (β_use + β_ign) D_use − β_ign f
        return KERNEL.route(
            inputs,
            torch.cat([use + ignore, ignore]),
            bias=None if bias is None else bias.expand(rows, -1, -1),
            iterations=self.iterations,
            epsilon=self.epsilon,
            shared=rows == 1,
        )


def _check_parameters(beta_use: Tensor, beta_ignore: Tensor, bias: Tensor | None, sizes: tuple[int, int, int]) -> None:
    """Check shapes for `sizes` (i children, j parents, d pose elements); a single row is shared by all children."""
    i, j, d = sizes
    check_shape("beta_use", beta_use, (1 if len(beta_use) == 1 else i, j), "[i j]")
    check_shape("beta_ignore", beta_ignore, (1 if len(beta_ignore) == 1 else i, j), "[i j]")
    if bias is not None:
        check_shape("bias", bias, (1 if len(bias) == 1 else i, j, d), "[i j d]")

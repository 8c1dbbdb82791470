"""Dynamic routing between capsules (Sabour, Frosst, Hinton 2017, arXiv 1710.09829, Procedure 1).

Gradients flow through every iteration, as in the authors' code. The C++ kernels of csrc/dynamic.cpp store no votes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.routing.backends import FUSED, Backend, Call, Kernel, choose_backend, choose_layer_backend
from capsella.routing.base import Routed, Routing, register_routing
from capsella.routing.convolution import RoutingInputs, RoutingShape, gather_windows
from capsella.routing.functional import check_iterations, check_shape, check_votes, length, squash
from capsella.routing.recording import new_trace
from capsella.routing.reference import dynamic_routing_reference
from capsella.routing.votes import DenseVotes, Votes
from capsella.types import Capsules


def dynamic_routing(
    votes: Float[Tensor, "b i j d"],
    iterations: int = 3,
    *,
    bias: Float[Tensor, "j d"] | None = None,
    leaky: bool = False,
    backend: str = "auto",
) -> Routed:
    """Route votes by agreement (Sabour et al. 2017, Procedure 1).

    Args:
        votes: [b i j d], child i's prediction û of parent j's pose.
        iterations: routing iterations, at least 1; with one, every coupling is 1/j.
        bias: [j d], added to s_j before the squash (in the authors' code, not in the paper).
        leaky: add a parent for children that fit nowhere, and drop it; couplings then sum to less than 1 (in the
            authors' code, not in the paper).
        backend: "reference" (loops, for reading and tests), "eager", or "auto", which is eager.

    Returns:
        Poses v [b j d], activations ‖v‖ [b j], couplings [b i j] of the last iteration.

    Raises:
        ArgumentError: votes without the four axes, `iterations` < 1, a bias of another shape, an unknown backend.

    >>> import torch
    >>> routed = dynamic_routing(torch.randn(2, 5, 3, 8))
    >>> routed.poses.shape, routed.couplings.sum(2).allclose(torch.ones(2, 5))
    (torch.Size([2, 3, 8]), True)
    """
    check_votes(votes)
    check_iterations(iterations)
    if bias is not None:
        check_shape("bias", bias, tuple(votes.shape[2:]), "[j d]")
    if choose_backend(backend) == "reference":
        return Routed(*dynamic_routing_reference(votes, iterations, bias, leaky))
    dense = DenseVotes(votes)
    return dynamic_procedure(dense, votes.new_zeros(dense.by_parent.shape[:3]), iterations, bias, leaky)


def dynamic_procedure(votes: Votes, logits: Tensor, iterations: int, bias: Tensor | None, leaky: bool) -> Routed:
    """Run Procedure 1 from zero `logits` [b j i]."""
    trace = new_trace("dynamic")
    for iteration in range(iterations):
        couplings = _softmax_over_parents(logits, leaky)
        s = votes.sums(couplings)  # [b j d]
        v = squash(s if bias is None else s + bias)
        activations = length(v)
        trace.add(couplings.transpose(1, 2), v, activations)
        if iteration < iterations - 1:
            logits = logits + votes.agreements(v)
    return Routed(v, activations, couplings.transpose(1, 2))


def _softmax_over_parents(logits: Tensor, leaky: bool) -> Tensor:
    """Return couplings [b j i]; `leaky` adds a parent with logit 0, which takes its share and is dropped."""
    if not leaky:
        return logits.softmax(1)
    leak = torch.zeros_like(logits[:, :1])
    return torch.cat([leak, logits], 1).softmax(1)[:, 1:]


class TiedVotes:
    """The votes of a tied layer: their sums and agreements are exact, but no vote is ever made.

    The weight W of a pair of types does not depend on the slot k of a child, so it can be taken out of both sums of
    Procedure 1. With children i = (k, m) of type m in slot k:

        s_j       = Σ_km c_kmj (u_km W_mj + o_k)  = Σ_m (Σ_k c_kmj u_km) W_mj + Σ_k (Σ_m c_kmj) o_k
        û_kmj·v_j = (u_km W_mj + o_k)·v_j         = u_km·(v_j W_mjᵀ) + o_k·v_j

    W maps each row of a matrix pose separately, and the scalar product of two matrices is the sum of those of their
    rows. Gradients reach the vote offset, too.
    """

    def __init__(self, inputs: RoutingInputs) -> None:
        self.shape = inputs.shape
        n, k, m, j, q, e = self.shape.n, self.shape.k, self.shape.c_in, self.shape.c_out, self.shape.q, self.shape.e
        u = gather_windows(inputs.poses, inputs.geometry).reshape(n, k, m, self.shape.r * q)
        self.u = u.transpose(1, 2)  # [n m k p]
        self.W = inputs.weight[0, 0].transpose(0, 1).reshape(j, m * q, e)  # [j (m q) e]
        self.offset = None  # [n k d]
        if inputs.vote_offset is not None:
            o = gather_windows(inputs.vote_offset[None, :, :, None], inputs.geometry)  # [1 h' w' kh kw 1 d]
            self.offset = o.expand(self.shape.batch, *o.shape[1:]).reshape(n, k, self.shape.d)

    def sums(self, weights: Tensor) -> Tensor:
        """See `Votes`."""
        n, m, j, r, q = self.shape.n, self.shape.c_in, self.shape.c_out, self.shape.r, self.shape.q
        weights = weights.reshape(n, j, self.shape.k, m).transpose(2, 3)
        mean_pose = weights.transpose(1, 2) @ self.u  # [n m j p]
        mean_pose = mean_pose.reshape(n, m, j, r, q).permute(2, 0, 3, 1, 4)
        s = mean_pose.reshape(j, n * r, m * q) @ self.W  # [j (n r) e]
        s = s.reshape(j, n, self.shape.d).transpose(0, 1)
        return s if self.offset is None else s + weights.sum(2) @ self.offset

    def agreements(self, poses: Tensor) -> Tensor:
        """See `Votes`."""
        n, m, j, r, q = self.shape.n, self.shape.c_in, self.shape.c_out, self.shape.r, self.shape.q
        rows = poses.reshape(n, j, r, self.shape.e).transpose(0, 1)  # [j n r e]
        g = rows.reshape(j, n * r, self.shape.e) @ self.W.transpose(1, 2)  # [j (n r) (m q)]
        g = g.reshape(j, n, r, m, q).permute(1, 3, 0, 2, 4)  # [n m j r q]
        agreements = (g.reshape(n, m, j, r * q) @ self.u.transpose(2, 3)).permute(0, 2, 3, 1)  # [n j k m]
        if self.offset is not None:
            agreements = agreements + (poses @ self.offset.transpose(1, 2)).unsqueeze(3)
        return agreements.reshape(n, j, self.shape.i)


class _DynamicKernel(Kernel):
    """The kernels of dynamic routing. The vote offset gets no gradient, and a tied layer must have none."""

    family = "Dynamic"
    tensors: ClassVar[Mapping[str, str]] = {
        "poses": "Tensor", "weight": "Tensor", "vote_offset": "Tensor?", "bias": "Tensor?"
    }  # fmt: skip
    differentiable = ("poses", "weight", "bias")
    second = "activations"
    kept = ("sums",)

    def empty_results(self, call: Call) -> dict[str, Tensor]:
        """See `Kernel`; the backward pass starts from s of every iteration."""
        shape, new = RoutingShape._make(call["sizes"]), call["poses"].new_empty
        sums = new(shape.n, call["iterations"], shape.c_out, shape.d)
        return {"poses": new(*shape.grid, shape.d), "activations": new(shape.grid), "sums": sums}


KERNEL = _DynamicKernel("dynamic", "DynamicOptions", iterations="int", leaky="bool")


@register_routing
@dataclass(frozen=True)
class DynamicRouting(Routing):
    """Options of `dynamic_routing` for a capsule layer."""

    name: ClassVar[str] = "dynamic"
    fused: ClassVar[tuple[str, ...]] = FUSED

    iterations: int = 3
    """Routing iterations; Sabour et al. 2017 use 3, and 1 for comparison."""
    bias: bool = False
    """Learn a bias per parent, initially 0, added before the squash (authors' code: initially 0.1)."""
    leaky: bool = False
    """Add a parent for children that fit nowhere, and drop it (authors' code)."""
    backend: Backend = "auto"
    """The implementation that runs."""

    def __post_init__(self) -> None:
        check_iterations(self.iterations)

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Return the shape [j d] of the bias, if there is one."""
        return {"bias": (types, pose)} if self.bias else {}

    def route(self, votes: Tensor, activations: Tensor, **parameters: Tensor) -> Routed:
        """Route by `dynamic_routing`; the children's activations, lengths of their poses, are not used."""
        return dynamic_routing(
            votes, self.iterations, bias=parameters.get("bias"), leaky=self.leaky, backend=self.backend
        )

    def route_windows(self, inputs: RoutingInputs, **parameters: Tensor) -> Capsules:
        """Route every window of the grid. A tied layer needs no votes on any device; see `TiedVotes`."""
        offset = inputs.vote_offset
        no_native = "its tied layers take no vote_offset" if inputs.geometry.tied and offset is not None else None
        backend = choose_layer_backend(self, inputs, no_native)
        if (bias := parameters.get("bias")) is not None:
            check_shape("bias", bias, (inputs.shape.c_out, inputs.shape.d), "[j d]")
        if backend == "triton":
            from capsella.routing.triton import triton_votes

            votes, children = triton_votes(inputs)
            logits = children.new_zeros(inputs.shape.n, inputs.shape.c_out, inputs.shape.i)
            bias = None if bias is None else bias.to(children.dtype)
            with torch.autocast(inputs.poses.device.type, enabled=False):
                routed = dynamic_procedure(votes, logits, self.iterations, bias, self.leaky)
            return inputs.parents(routed.poses, routed.activations)
        if backend == "native":
            tensors = {"poses": inputs.poses, "weight": inputs.weight, "vote_offset": offset, "bias": bias}
            options = {"sizes": list(inputs.shape), "iterations": self.iterations, "leaky": self.leaky}
            return Capsules(*KERNEL({**tensors, **options}))
        if inputs.geometry.tied and backend == "eager":
            logits = inputs.poses.new_zeros(inputs.shape.n, inputs.shape.c_out, inputs.shape.i)
            routed = dynamic_procedure(TiedVotes(inputs), logits, self.iterations, bias, self.leaky)
            return inputs.parents(routed.poses, routed.activations)
        return Routing.route_windows(replace(self, backend=backend), inputs, **parameters)

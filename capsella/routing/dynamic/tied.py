"""Dynamic routing where one weight serves all positions of a window: exact, and without a single vote.

W does not depend on the position k of a child, so it can be taken out of both sums of Procedure 1. With children
i = (k, t) of type t at position k:

    s_j      = Σ_kt c_ktj (u_kt W_tj + o_k)  = Σ_t (Σ_k c_ktj u_kt) W_tj + Σ_k (Σ_t c_ktj) o_k
    û_ktj·v_j = (u_kt W_tj + o_k)·v_j        = u_kt·(v_j W_tjᵀ) + o_k·v_j

A matrix pose is its rows, each of which W maps alone, and the scalar product of two matrices is that of their rows.
"""

from torch import Tensor

from capsella.routing.convolution import Geometry, gather_windows
from capsella.routing.dynamic.eager import softmax_over_parents
from capsella.routing.recording import new_trace
from capsella.routing.squash import length, squash
from capsella.types import Capsules


def dynamic_capsule_conv_tied(
    poses: Tensor,
    weight: Tensor,
    geometry: Geometry,
    vote_offset: Tensor | None,
    iterations: int,
    bias: Tensor | None,
    leaky: bool,
) -> Capsules:
    """Sabour et al. 2017, Procedure 1, for every window of the grid.

    Shapes as in `Routing.capsule_conv`, and checked there; `geometry` must be tied. Differentiable, also in
    `vote_offset`; any device and floating-point type.
    """
    children = _Children(poses, weight, geometry, vote_offset)
    trace = new_trace("dynamic")
    logits = children.no_logits()  # [n j t k]
    for iteration in range(iterations):
        couplings = softmax_over_parents(logits, leaky)
        s = children.weighted_sum(couplings)  # [n j d]
        v = squash(s if bias is None else s + bias)
        a = length(v)
        trace.add(couplings.permute(0, 3, 2, 1).flatten(1, 2), v, a)
        if iteration < iterations - 1:
            logits = logits + children.agreement(v)
    grid = (poses.shape[0], *geometry.grid((poses.shape[1], poses.shape[2])), *v.shape[1:])
    return Capsules(v.reshape(grid), a.reshape(grid[:4]))


class _Children:
    """The two sums of Procedure 1 over n windows of t types at k positions, with poses of r rows of q elements."""

    def __init__(self, poses: Tensor, weight: Tensor, geometry: Geometry, vote_offset: Tensor | None) -> None:
        positions = geometry.kernel[0] * geometry.kernel[1]
        types, self.j, self.q, self.c = weight.shape[2:]
        p = poses.shape[4]
        self.rows = p // self.q
        u = gather_windows(poses, geometry).reshape(-1, positions, types, p)
        self.u = u.transpose(1, 2)  # [n t k p]
        self.n = u.shape[0]
        self.W = weight[0, 0].transpose(0, 1).reshape(self.j, types * self.q, self.c)  # [j (t q) c]
        self.offset = None  # [n k d]
        if vote_offset is not None:
            o = gather_windows(vote_offset[None, :, :, None], geometry)  # [1 h' w' kh kw 1 d]
            o = o.expand(poses.shape[0], *o.shape[1:])
            self.offset = o.reshape(self.n, positions, vote_offset.shape[2])

    def no_logits(self) -> Tensor:
        """Zeros [n j t k]."""
        types, positions = self.u.shape[1:3]
        return self.u.new_zeros(self.n, self.j, types, positions)

    def weighted_sum(self, couplings: Tensor) -> Tensor:
        """Σ_i c_ij û_j|i of couplings [n j t k]: [n j d]."""
        types = self.u.shape[1]
        mean_pose = couplings.transpose(1, 2) @ self.u  # [n t j p]
        mean_pose = mean_pose.reshape(self.n, types, self.j, self.rows, self.q).permute(2, 0, 3, 1, 4)
        s = mean_pose.reshape(self.j, self.n * self.rows, types * self.q) @ self.W  # [j (n r) c]
        s = s.reshape(self.j, self.n, self.rows * self.c).transpose(0, 1)
        return s if self.offset is None else s + couplings.sum(2) @ self.offset

    def agreement(self, v: Tensor) -> Tensor:
        """û_j|i · v_j of poses v [n j d]: [n j t k]."""
        types = self.u.shape[1]
        rows = v.reshape(self.n, self.j, self.rows, self.c).transpose(0, 1)  # [j n r c]
        g = rows.reshape(self.j, self.n * self.rows, self.c) @ self.W.transpose(1, 2)  # [j (n r) (t q)]
        g = g.reshape(self.j, self.n, self.rows, types, self.q).permute(1, 3, 0, 2, 4)  # [n t j r q]
        g = g.reshape(self.n, types, self.j, self.rows * self.q)
        logits = (g @ self.u.transpose(2, 3)).transpose(1, 2)  # [n j t k]
        return logits if self.offset is None else logits + (v @ self.offset.transpose(1, 2)).unsqueeze(2)

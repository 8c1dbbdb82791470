"""Dynamic routing where one weight serves all positions of a window: exact, and without a single vote.

W does not depend on the slot k of a child, so it can be taken out of both sums of Procedure 1. With children
i = (k, m) of type m in slot k:

    s_j      = Σ_km c_kmj (u_km W_mj + o_k)  = Σ_m (Σ_k c_kmj u_km) W_mj + Σ_k (Σ_m c_kmj) o_k
    û_kmj·v_j = (u_km W_mj + o_k)·v_j        = u_km·(v_j W_mjᵀ) + o_k·v_j

A matrix pose is its rows, each of which W maps alone, and the scalar product of two matrices is that of their rows.
"""

from torch import Tensor

from capsella.routing.convolution import CapsuleConv, gather_windows
from capsella.routing.dynamic.eager import dynamic_procedure
from capsella.types import Capsules


def dynamic_capsule_conv_tied(conv: CapsuleConv, iterations: int, bias: Tensor | None, leaky: bool) -> Capsules:
    """Sabour et al. 2017, Procedure 1, for every window of a tied convolution.

    Differentiable, also in its vote offset; any device and floating-point type.
    """
    children = _Children(conv)
    routed = dynamic_procedure(children, children.no_logits(), iterations, bias, leaky)
    return conv.parents(routed.poses, routed.activations)


class _Children:
    """`Votes` of m child types in k slots of n windows, i = (m, k) apart; letters as in README.md."""

    def __init__(self, conv: CapsuleConv) -> None:
        self.sizes = conv.sizes
        n, k, m, j, q, e = self.sizes.n, self.sizes.k, self.sizes.c_in, self.sizes.c_out, self.sizes.q, self.sizes.e
        u = gather_windows(conv.poses, conv.geometry).reshape(n, k, m, self.sizes.r * q)
        self.u = u.transpose(1, 2)  # [n m k p]
        self.W = conv.weight[0, 0].transpose(0, 1).reshape(j, m * q, e)  # [j (m q) e]
        self.offset = None  # [n k d]
        if conv.vote_offset is not None:
            o = gather_windows(conv.vote_offset[None, :, :, None], conv.geometry)  # [1 h' w' kh kw 1 d]
            self.offset = o.expand(self.sizes.batch, *o.shape[1:]).reshape(n, k, self.sizes.d)

    def no_logits(self) -> Tensor:
        """Zeros [n j m k]."""
        return self.u.new_zeros(self.sizes.n, self.sizes.c_out, self.sizes.c_in, self.sizes.k)

    def weighted_sum(self, couplings: Tensor) -> Tensor:
        """Σ_i c_ij û_j|i of couplings [n j m k]: [n j d]."""
        n, m, j, r, q = self.sizes.n, self.sizes.c_in, self.sizes.c_out, self.sizes.r, self.sizes.q
        mean_pose = couplings.transpose(1, 2) @ self.u  # [n m j p]
        mean_pose = mean_pose.reshape(n, m, j, r, q).permute(2, 0, 3, 1, 4)
        s = mean_pose.reshape(j, n * r, m * q) @ self.W  # [j (n r) e]
        s = s.reshape(j, n, self.sizes.d).transpose(0, 1)
        return s if self.offset is None else s + couplings.sum(2) @ self.offset

    def agreement(self, v: Tensor) -> Tensor:
        """û_j|i · v_j of poses v [n j d]: [n j m k]."""
        n, m, j, r, q = self.sizes.n, self.sizes.c_in, self.sizes.c_out, self.sizes.r, self.sizes.q
        rows = v.reshape(n, j, r, self.sizes.e).transpose(0, 1)  # [j n r e]
        g = rows.reshape(j, n * r, self.sizes.e) @ self.W.transpose(1, 2)  # [j (n r) (m q)]
        g = g.reshape(j, n, r, m, q).permute(1, 3, 0, 2, 4)  # [n m j r q]
        logits = (g.reshape(n, m, j, r * q) @ self.u.transpose(2, 3)).transpose(1, 2)  # [n j m k]
        return logits if self.offset is None else logits + (v @ self.offset.transpose(1, 2)).unsqueeze(2)

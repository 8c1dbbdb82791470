"""Dynamic routing in plain loops, line for line with Sabour et al. 2017, Procedure 1. Slow, and meant to be read."""

import torch
from torch import Tensor

from capsella.routing.base import Routed


def squash_reference(s: Tensor) -> Tensor:
    """Equation 1 for one vector s [d]: v = ‖s‖²/(1+‖s‖²) · s/‖s‖, and 0 for s = 0."""
    squared = (s * s).sum()
    if squared == 0:
        return s * 0.0
    return squared / (1 + squared) * s / squared.sqrt()


def dynamic_routing_reference(votes: Tensor, iterations: int, bias: Tensor | None, leaky: bool) -> Routed:
    """Procedure 1 for votes [b i j d]; `bias` [j d] and `leaky` as in the authors' code."""
    poses, couplings = torch.zeros_like(votes[:, 0]), torch.zeros_like(votes[..., 0])
    for image, u_hat in enumerate(votes):
        poses[image], couplings[image] = _route_one(u_hat, iterations, bias, leaky)
    return Routed(poses, (poses * poses).sum(-1).sqrt(), couplings)


def _route_one(u_hat: Tensor, iterations: int, bias: Tensor | None, leaky: bool) -> tuple[Tensor, Tensor]:
    """One image: û [i j d] → v [j d], c [i j]."""
    children, parents, _ = u_hat.shape
    zero = u_hat.new_zeros(())
    b = [[zero for _ in range(parents)] for _ in range(children)]  # line 2: b_ij ← 0
    for iteration in range(iterations):  # line 3
        c = [softmax_reference(b[i], leaky) for i in range(children)]  # line 4: c_i ← softmax(b_i), over the parents
        v = []
        for j in range(parents):
            s_j = zero if bias is None else bias[j]
            for i in range(children):
                s_j = s_j + c[i][j] * u_hat[i, j]  # line 5: s_j ← Σ_i c_ij û_j|i
            v.append(squash_reference(s_j))  # line 6: v_j ← squash(s_j)
        if iteration < iterations - 1:  # the last update would be used by nobody
            for i in range(children):
                for j in range(parents):
                    b[i][j] = b[i][j] + (u_hat[i, j] * v[j]).sum()  # line 7: b_ij ← b_ij + û_j|i · v_j
    return torch.stack(v), torch.stack([torch.stack(row) for row in c])  # line 8: return v_j


def softmax_reference(logits: list[Tensor], leaky: bool = False) -> list[Tensor]:
    """Equation 3 over the parents of one child; leaky adds a parent with logit 0 and drops its share."""
    largest = max([float(logit.detach()) for logit in logits] + ([0.0] if leaky else []))
    exponentials = [(logit - largest).exp() for logit in logits]
    total = sum(exponentials, start=torch.zeros_like(logits[0]))
    if leaky:
        total = total + torch.exp(torch.zeros_like(total) - largest)
    return [exponential / total for exponential in exponentials]

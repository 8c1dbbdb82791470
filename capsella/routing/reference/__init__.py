"""Every routing in plain loops, line for line with its paper: the references of all other backends, slow to run.

Here are the routings by agreement and attention; gaussians.py has those that fit a Gaussian per parent.

Each result is a tuple: poses [b j d], activations [b j] and couplings [b i j], as in `Routed`.
"""

import math

import torch
from torch import Tensor

LAYER_NORM_EPSILON = 1e-5  # added to the variance of a pose's elements, as in PyTorch's and the authors' normalisation
LEAST_SUM = 1e-6  # smaller sums of activations count as this: without any active child, they would make 0/0
VARIANCE_EPSILON = 1e-12  # added to the variance of a cluster: equal votes have a finite logarithm and slope
Results = tuple[Tensor, Tensor, Tensor]


def squash_reference(s: Tensor) -> Tensor:
    """Squash one vector s [d] by Equation 1: v = ‖s‖²/(1+‖s‖²) · s/‖s‖, and 0 for s = 0."""
    squared = (s * s).sum()
    if squared == 0:
        return s * 0.0
    return squared / (1 + squared) * s / squared.sqrt()


def dynamic_routing_reference(votes: Tensor, iterations: int, bias: Tensor | None, leaky: bool) -> Results:
    """Route votes [b i j d] by Procedure 1 of Sabour et al. 2017; `bias` [j d] and `leaky` as in the authors' code."""
    poses, couplings = torch.zeros_like(votes[:, 0]), torch.zeros_like(votes[..., 0])
    for image, u_hat in enumerate(votes):
        poses[image], couplings[image] = _dynamic_image(u_hat, iterations, bias, leaky)
    return poses, (poses * poses).sum(-1).sqrt(), couplings


def _dynamic_image(u_hat: Tensor, iterations: int, bias: Tensor | None, leaky: bool) -> tuple[Tensor, Tensor]:
    """Route one image: û [i j d] → v [j d], c [i j]."""
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
        if iteration < iterations - 1:  # the last update would not be used
            for i in range(children):
                for j in range(parents):
                    b[i][j] = b[i][j] + (u_hat[i, j] * v[j]).sum()  # line 7: b_ij ← b_ij + û_j|i · v_j
    return torch.stack(v), torch.stack([torch.stack(row) for row in c])  # line 8: return v_j


def softmax_reference(logits: list[Tensor], leaky: bool = False) -> list[Tensor]:
    """Return Equation 3's softmax over one child's parents; `leaky` adds a parent of logit 0 and drops its share."""
    largest = max([float(logit.detach()) for logit in logits] + ([0.0] if leaky else []))
    exponentials = [(logit - largest).exp() for logit in logits]
    total = sum(exponentials, start=torch.zeros_like(logits[0]))
    if leaky:
        total = total + torch.exp(torch.zeros_like(total) - largest)
    return [exponential / total for exponential in exponentials]


def squash_exponential_reference(s: Tensor) -> Tensor:
    """Squash one vector s [d] by Equation 3: (1 − 1/e^‖s‖) s/‖s‖, and 0 for s = 0."""
    squared = (s * s).sum()
    if squared == 0:
        return s * 0.0
    norm = squared.sqrt()
    return (1 - 1 / norm.exp()) * s / norm


def self_attention_routing_reference(votes: Tensor, prior: Tensor | None) -> Results:
    """Route votes [b i j d] with a prior [i j] by Equations 4 to 6 of Mazzia et al. 2021."""
    poses, couplings = torch.zeros_like(votes[:, 0]), torch.zeros_like(votes[..., 0])
    for image, u_hat in enumerate(votes):
        poses[image], couplings[image] = _self_attention_image(u_hat, prior)
    return poses, (poses * poses).sum(-1).sqrt(), couplings


def _self_attention_image(u_hat: Tensor, prior: Tensor | None) -> tuple[Tensor, Tensor]:
    """Route one image: û [i j d] → v [j d], c [i j]."""
    children, parents, d = u_hat.shape
    zero = u_hat.new_zeros(())
    a = [[zero for _ in range(parents)] for _ in range(children)]
    for j in range(parents):
        for i in range(children):
            for k in range(children):  # Eq. 5: A = Û Ûᵀ / √d, its row i added up; k = i is one of them
                a[i][j] = a[i][j] + (u_hat[i, j] * u_hat[k, j]).sum() / math.sqrt(d)
    c = [softmax_reference(a[i]) for i in range(children)]  # Eq. 6, over the parents
    v = []
    for j in range(parents):
        s_j = zero
        for i in range(children):
            b_ij = zero if prior is None else prior[i, j]
            s_j = s_j + (c[i][j] + b_ij) * u_hat[i, j]  # Eq. 4: S = Ûᵀ (C + B)
        v.append(squash_exponential_reference(s_j))
    return torch.stack(v), torch.stack([torch.stack(row) for row in c])


def attend_reference(votes: Tensor, poses: Tensor | None, scale: Tensor, shift: Tensor) -> Results:
    """Run one round of Tsai et al. 2020: votes [b i j d], the parents' poses [b j d] or None in the first round."""
    new, couplings = torch.zeros_like(votes[:, 0]), torch.zeros_like(votes[..., 0])
    for image, V in enumerate(votes):
        before = None if poses is None else poses[image]
        new[image], couplings[image] = _attend_image(V, before, scale, shift)
    return new, torch.ones_like(new[..., 0]), couplings


def _attend_image(V: Tensor, p: Tensor | None, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Attend in one image: V [i j d], p [j d] → new p [j d], R [i j]."""
    children, parents, d = V.shape
    zero = V.new_zeros(())
    R = []
    for i in range(children):
        agreement = [zero if p is None else (V[i, j] * p[j]).sum() / math.sqrt(d) for j in range(parents)]
        R.append(torch.stack(softmax_reference(agreement)))  # the parents compete for the child
    new = []
    for j in range(parents):
        s_j = torch.zeros_like(V[0, j])
        for i in range(children):
            s_j = s_j + R[i][j] * V[i, j]
        new.append(_layer_norm(s_j, scale, shift))
    return torch.stack(new), torch.stack(R)


def _layer_norm(s: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Normalise one vector s [d] to zero mean and, up to ε, unit variance; a single element stays as it is."""
    if len(s) == 1:
        return s
    mean = s.sum() / len(s)
    variance = ((s - mean) * (s - mean)).sum() / len(s)
    return scale * (s - mean) / (variance + LAYER_NORM_EPSILON).sqrt() + shift


def self_routing_reference(votes: Tensor, activations: Tensor, logits: Tensor) -> Results:
    """Route votes [b i j d] by activations [b i] and logits [b i j], as in Hahn et al. 2019."""
    poses, a = torch.zeros_like(votes[:, 0]), torch.zeros_like(votes[:, 0, :, 0])
    couplings = torch.zeros_like(logits)
    for image in range(len(votes)):
        poses[image], a[image], couplings[image] = _self_image(votes[image], activations[image], logits[image])
    return poses, a, couplings


def _self_image(V: Tensor, a: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Route one image: V [i j d], a [i], logits [i j] → poses [j d], activations [j], R [i j]."""
    children, parents = logits.shape
    zero = V.new_zeros(())
    R = [softmax_reference(list(logits[i])) for i in range(children)]  # over the parents
    total = zero
    for i in range(children):
        total = total + a[i]
    poses, activations = [], []
    for j in range(parents):
        received, pose = zero, zero
        for i in range(children):
            received = received + a[i] * R[i][j]
            pose = pose + a[i] * R[i][j] * V[i, j]
        activations.append(received / total.clamp(min=LEAST_SUM))
        poses.append(pose / received.clamp(min=LEAST_SUM))
    return torch.stack(poses), torch.stack(activations), torch.stack([torch.stack(list(row)) for row in R])


def cluster_routing_reference(votes: Tensor) -> tuple[Tensor, Tensor]:
    """Weigh clusters of votes [b g i j d], as in Zhao and Cheng 2021: poses [b j d] and weights [b i j d]."""
    poses, weights = torch.zeros_like(votes[:, 0, 0]), torch.zeros_like(votes[:, 0])
    for image, V in enumerate(votes):
        for j in range(V.shape[2]):
            for d in range(V.shape[3]):
                poses[image, j, d], weights[image, :, j, d] = _weigh_clusters(V[:, :, j, d])
    return poses, weights


def _weigh_clusters(V: Tensor) -> tuple[Tensor, Tensor]:
    """Weigh one element of one parent: all votes V [g i] for it → its value, and the weights [i]."""
    g, children = V.shape
    means, agreements = [], []
    for i in range(children):
        mean = V[:, i].sum() / g
        variance = ((V[:, i] - mean) * (V[:, i] - mean)).sum() / g
        means.append(mean)
        agreements.append(-(variance + VARIANCE_EPSILON).sqrt().log())
    weights = softmax_reference(agreements)  # the children compete for the parent
    value = V.new_zeros(())
    for i in range(children):
        value = value + weights[i] * means[i]
    return value, torch.stack(weights)

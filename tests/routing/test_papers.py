"""The later papers' equations once more in NumPy, and numbers by hand; other files have dynamic and EM routing."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import digamma as scipy_digamma

from capsella.routing import (
    Geometry,
    RoutingInputs,
    SelfRouting,
    attend,
    heinsen_routing,
    inverted_attention_routing,
    self_attention_routing,
    self_routing,
    squash_exponential,
    variational_routing,
)
from capsella.routing.variational import digamma
from tests.routing.cases import CASES
from tests.routing.helpers import Layer

every_backend = pytest.mark.parametrize("backend", ["reference", "eager"])
Results = tuple[np.ndarray, np.ndarray, np.ndarray]


def heinsen(
    votes: Any, activations: Any, beta_use: Any, beta_ignore: Any, bias: Any, epsilon: float, iterations: int = 3
) -> Results:
    """Heinsen 2019, Algorithm 1, for one image: densities, not logarithms."""
    V, f = votes + bias, activations
    R = np.full(V.shape[:2], 1 / V.shape[1])
    for t in range(iterations):
        if t:
            p = np.exp(-((V - mu) ** 2 / (2 * variance)).sum(2)) / np.sqrt(variance).prod(1)
            R = active * p / (active * p).sum(1, keepdims=True)
        use = f[:, None] * R
        a = (beta_use * use).sum(0) - (beta_ignore * (f[:, None] - use)).sum(0)
        active = 1 / (1 + np.exp(-a))
        shares = use / (use.sum(0) + epsilon)
        mu = np.einsum("ij,ijd->jd", shares, V)
        variance = np.einsum("ij,ijd->jd", shares, (V - mu) ** 2) + epsilon  # noqa: F841  used in the next round
    return mu, active, R


def inverted_attention(votes: Any, scale: Any, shift: Any, iterations: int = 2) -> Results:
    """Tsai et al. 2020, one layer and image."""
    R = np.full(votes.shape[:2], 1 / votes.shape[1])
    for n in range(iterations):
        if n:
            a = np.einsum("ijd,jd->ij", votes, p) / math.sqrt(votes.shape[2])
            R = np.exp(a) / np.exp(a).sum(1, keepdims=True)
        s = np.einsum("ij,ijd->jd", R, votes)
        p = scale * (s - s.mean(1, keepdims=True)) / np.sqrt(s.var(1, keepdims=True) + 1e-5) + shift
    return p, np.ones(p.shape[:1]), R


def self_attention(votes: Any, prior: Any = 0.0) -> Results:
    """Mazzia et al. 2021, Eq. 3 to 6, for one image."""
    a = np.einsum("ijd,kjd->jik", votes, votes) / math.sqrt(votes.shape[2])
    logits = a.sum(2).T
    c = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    s = np.einsum("ij,ijd->jd", c + prior, votes)
    norm = np.linalg.norm(s, axis=1, keepdims=True)
    return (1 - np.exp(-norm)) * s / norm, (1 - np.exp(-norm))[:, 0], c


def self_routed(votes: Any, activations: Any, logits: Any) -> Results:
    """Hahn et al. 2019, for one image."""
    R = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    received = activations @ R
    return np.einsum("i,ij,ijd->jd", activations, R, votes) / received[:, None], received / activations.sum(), R


def variational(
    votes: Any,
    activations: Any,
    bias: Any,
    iterations: int = 3,
    proportions: bool = True,
    concentration: float = 1.0,
    mean_weight: float = 1.0,
    precision: float = 1.0,
    degrees: float = 2.0,
) -> Results:
    """Ribeiro et al. 2020, for one image; densities, not logarithms. The prior's mean is zero."""
    _, parents, D = votes.shape
    nu0, kappa0 = D - 1 + degrees, mean_weight
    R = np.full(votes.shape[:2], 1 / parents)
    for t in range(iterations):
        if t:
            p = np.sqrt(det) * (2 * math.pi) ** (-D / 2) * np.exp(-0.5 * (D / kappa + nu * distance))
            R = p * (pi if proportions else 1) / (pi * p).sum(1, keepdims=True)
        r = R * activations[:, None]
        R_j = r.sum(0)
        alpha, kappa, nu = concentration + R_j, kappa0 + R_j, nu0 + R_j
        mu = (r[:, :, None] * votes).sum(0) / R_j[:, None]
        m = R_j[:, None] * mu / kappa[:, None]
        scatter = (r[:, :, None] * (votes - mu) ** 2).sum(0)
        psi = 1 / (1 / precision + scatter + (kappa0 * R_j / kappa)[:, None] * mu**2)
        pi = np.exp(scipy_digamma(alpha) - scipy_digamma(alpha.sum()))
        det = np.exp(sum(scipy_digamma((nu + 1 - d) / 2) for d in range(1, D + 1))) * 2**D * psi.prod(1)
        distance = (psi * (votes - m) ** 2).sum(2)  # noqa: F841  used in the next round
    entropy = D / 2 * math.log(2 * math.pi * math.e) - np.log(det) / 2
    return m, 1 / (1 + np.exp(pi * entropy - bias)), R


PAPERS: dict[Callable[..., Any], Callable[..., Results]] = {
    heinsen_routing: heinsen,
    inverted_attention_routing: inverted_attention,
    self_attention_routing: self_attention,
    self_routing: self_routed,
    variational_routing: variational,
}


@every_backend
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.route in PAPERS])
def test_the_equations(name: str, backend: str) -> None:
    case = CASES[name]
    tensors = case.inputs(2, 6, 3, 4)
    routed = case.run(tensors, backend=backend)
    for image in range(2):
        arrays = {key: x.detach().numpy() for key, x in case.moved(tensors, "b", [image]).items()}
        arrays = {key: x[0] if key == "votes" or "b" in case.axes[key] else x for key, x in arrays.items()}
        for ours, expected in zip(routed, PAPERS[case.route](**arrays, **case.options), strict=True):
            np.testing.assert_allclose(ours[image].detach().numpy(), expected, rtol=1e-6, atol=1e-8)


@every_backend
def test_use_and_ignore_by_hand(backend: str) -> None:
    """One child of activation ½ and two parents: each uses ¼ and ignores ¼."""
    gain, cost = torch.tensor([[8.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    routed = heinsen_routing(torch.zeros(1, 1, 2, 1), torch.tensor([[0.5]]), gain, cost, iterations=1, backend=backend)
    torch.testing.assert_close(routed.activations, torch.tensor([[2.0, -1.0]]).sigmoid())


@every_backend
def test_inverted_attention_has_a_softmax_over_parents(backend: str) -> None:
    """One child, two parents; a softmax over the single child would leave both couplings at 1."""
    votes = torch.tensor([[[[2.0, 0.0], [0.0, 2.0]]]], dtype=torch.float64)
    poses = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    ones, zeros = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    routed = attend(votes, poses, ones, zeros, backend=backend)
    c = math.exp(math.sqrt(2)) / (1 + math.exp(math.sqrt(2)))  # agreements 2·1/√2 and 0
    torch.testing.assert_close(routed.couplings, torch.tensor([[[c, 1 - c]]], dtype=torch.float64))
    expected = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]], dtype=torch.float64)  # [2c, 0] and [0, 2(1 − c)], normalised
    torch.testing.assert_close(routed.poses, expected, rtol=0, atol=1e-3)


@every_backend
def test_self_attention_has_a_softmax_over_parents(backend: str) -> None:
    """One child, two parents, votes 2 and 0; a softmax over the single child would leave both couplings at 1."""
    votes = torch.tensor([[[[2.0], [0.0]]]], dtype=torch.float64)
    routed = self_attention_routing(votes, backend=backend)
    c = math.exp(4) / (1 + math.exp(4))  # agreements 2·2 and 0
    torch.testing.assert_close(routed.couplings, torch.tensor([[[c, 1 - c]]], dtype=torch.float64))
    expected = torch.tensor([[[1 - math.exp(-2 * c)], [0.0]]], dtype=torch.float64)
    torch.testing.assert_close(routed.poses, expected)


def test_the_squash() -> None:
    """(1 − e^−‖s‖)·s/‖s‖; slope 1 at zero, never longer than 1, gradients finite."""
    s = torch.tensor([[0.3, -0.4], [3.0, 4.0]], dtype=torch.float64)
    lengths = torch.tensor([1 - math.exp(-0.5), 1 - math.exp(-5)], dtype=torch.float64)
    torch.testing.assert_close(squash_exponential(s).norm(dim=1), lengths)
    torch.testing.assert_close(torch.nn.functional.cosine_similarity(squash_exponential(s), s), torch.ones(2).double())
    zero = torch.zeros(3, requires_grad=True)
    jacobian = torch.autograd.functional.jacobian(squash_exponential, zero)
    torch.testing.assert_close(jacobian, torch.eye(3), rtol=0, atol=1e-5)


@every_backend
def test_softmax_is_over_parents_and_the_mean_over_children(backend: str) -> None:
    """Two children of activations 1 and ½; the first gives all to parent 0, the second is undecided."""
    votes = torch.tensor([[[[4.0], [4.0]], [[1.0], [1.0]]]], dtype=torch.float64)
    logits = torch.tensor([[[100.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    routed = self_routing(votes, torch.tensor([[1.0, 0.5]], dtype=torch.float64), logits, backend=backend)
    torch.testing.assert_close(routed.activations, torch.tensor([[1.25 / 1.5, 0.25 / 1.5]], dtype=torch.float64))
    expected = torch.tensor([[[(4 + 0.25) / 1.25], [1.0]]], dtype=torch.float64)
    torch.testing.assert_close(routed.poses, expected)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("matrix", [False, True])
def test_a_layer_reads_the_couplings_off_the_poses(tied: bool, matrix: bool) -> None:
    """Each child of each window, by hand: its logits are w·u + b at its slot and type."""
    children, parents = ((2, 4), (3, 4)) if matrix else ((2, 5), (3, 4))
    layer = Layer(2, (4, 3), Geometry((2, 2), (2, 1), tied=tied, matrix=matrix), children, parents)
    tensors = {
        **layer.tensors(),
        "of_poses": torch.randn(8, 3, children[1], dtype=torch.float64),
        "bias": torch.randn(8, 3, dtype=torch.float64),
    }
    conv = RoutingInputs(*(tensors[name] for name in layer.shapes() if name != "vote_offset"), geometry=layer.geometry)
    routed = SelfRouting().route_windows(conv, weight=tensors["of_poses"], bias=tensors["bias"])
    for b, y, x in [(0, 0, 0), (1, 1, 1)]:
        u = tensors["poses"][b, 2 * y : 2 * y + 2, x : x + 2].reshape(8, -1)
        a = tensors["activations"][b, 2 * y : 2 * y + 2, x : x + 2].reshape(1, 8)
        logits = torch.stack([tensors["of_poses"][i] @ u[i] + tensors["bias"][i] for i in range(8)])
        W = tensors["weight"].expand(2, 2, -1, -1, -1, -1).reshape(8, 3, *tensors["weight"].shape[4:])
        shape = (2, 2) if matrix else (1, 5)
        votes = torch.stack([torch.stack([(u[i].reshape(shape) @ W_ij).flatten() for W_ij in W[i]]) for i in range(8)])
        expected = self_routing(votes[None], a, logits[None], backend="reference")
        torch.testing.assert_close(routed.poses[b, y, x], expected.poses[0])
        torch.testing.assert_close(routed.activations[b, y, x], expected.activations[0])


def test_one_child_by_hand() -> None:
    """One active child, one parent, one element: a vote of 2 is pulled half way to zero, and so on."""
    routed = variational_routing(torch.full((1, 1, 1, 1), 2.0), torch.ones(1, 1), iterations=1)
    assert routed.poses.item() == pytest.approx(1.0)  # κ = 2
    log_lambda = scipy_digamma(1.5) + math.log(2) - math.log(1 + 0.5 * 2.0**2)  # ν = 3, Ψ⁻¹ = 1 + ½·4
    entropy = 0.5 * math.log(2 * math.pi * math.e) - 0.5 * log_lambda
    assert routed.activations.item() == pytest.approx(1 / (1 + math.exp(entropy)))  # the only parent has π = 1


def test_the_digamma_function() -> None:
    x = torch.logspace(-3, 5, 200, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(digamma(x), torch.digamma(x), rtol=1e-9, atol=1e-10)
    ours, exact = (torch.autograd.grad(f(x).sum(), x)[0] for f in (digamma, torch.digamma))
    torch.testing.assert_close(ours, exact, rtol=1e-8, atol=1e-9)

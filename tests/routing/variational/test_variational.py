"""Variational Bayes routing: against the equations in NumPy, eager against reference, and its properties."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import digamma as scipy_digamma
from torch import Tensor

from capsella.layers import CapsuleConv2d, DenseCapsules
from capsella.routing import VariationalRouting, record, routing_from_dict, variational_routing
from capsella.routing.variational import BACKENDS
from capsella.routing.variational.eager import digamma
from capsella.types import Capsules
from tests.routing.helpers import assert_close, gradients, same_bits

SIZES = [(1, 1, 1, 1), (2, 5, 3, 7), (1, 11, 2, 1), (1, 3, 1, 5), (2, 1, 5, 3)]  # b, i, j, d
OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "authors' code": {"proportions": False},
    "other priors": {"concentration": 0.5, "mean_weight": 3.0, "precision": 4.0, "degrees": 0.7},
}
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def equations(
    V: np.ndarray, a: np.ndarray, bias: np.ndarray, iterations: int, **options: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ribeiro et al. 2020, one image: V [i j d], a [i], β [j] → m, a_j, R; densities, not logarithms."""
    alpha0, kappa0 = options.get("concentration", 1.0), options.get("mean_weight", 1.0)
    psi0, (_, parents, D) = options.get("precision", 1.0), V.shape
    nu0 = D - 1 + options.get("degrees", 2.0)
    R = np.full(V.shape[:2], 1 / parents)
    for t in range(iterations):
        if t:
            p = np.sqrt(det) * (2 * math.pi) ** (-D / 2) * np.exp(-0.5 * (D / kappa + nu * distance))
            R = p * (pi if options.get("proportions", True) else 1) / (pi * p).sum(1, keepdims=True)
        r = R * a[:, None]
        R_j = r.sum(0)
        alpha, kappa, nu = alpha0 + R_j, kappa0 + R_j, nu0 + R_j
        mu = (r[:, :, None] * V).sum(0) / R_j[:, None]
        # The prior's mean is zero.
        m = (R_j[:, None] * mu + kappa0 * 0) / kappa[:, None]
        scatter = (r[:, :, None] * (V - mu) ** 2).sum(0)
        psi = 1 / (1 / psi0 + scatter + (kappa0 * R_j / kappa)[:, None] * (mu - 0) ** 2)
        pi = np.exp(scipy_digamma(alpha) - scipy_digamma(alpha.sum()))
        det = np.exp(sum(scipy_digamma((nu + 1 - d) / 2) for d in range(1, D + 1))) * 2**D * psi.prod(1)
        distance = (psi * (V - m) ** 2).sum(2)  # noqa: F841  used in the next round
    entropy = D / 2 * math.log(2 * math.pi * math.e) - np.log(det) / 2
    return m, 1 / (1 + np.exp(pi * entropy - bias)), R


def inputs(size: tuple[int, int, int, int]) -> list[Tensor]:
    """Votes, activations and bias in float64, all asking for gradients."""
    votes, bias = (torch.randn(shape, dtype=torch.float64) for shape in (size, size[2:3]))
    return [tensor.requires_grad_() for tensor in (votes, torch.rand(size[:2], dtype=torch.float64), bias)]


@every_backend
@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("options", OPTIONS)
def test_the_equations(backend: str, iterations: int, options: str) -> None:
    votes, a, bias = (tensor.detach() for tensor in inputs((2, 6, 3, 4)))
    routed = variational_routing(votes, a, bias, iterations, **OPTIONS[options], backend=backend)
    for image in range(2):
        expected = equations(votes[image].numpy(), a[image].numpy(), bias.numpy(), iterations, **OPTIONS[options])
        for ours, theirs in zip(routed, expected, strict=True):
            np.testing.assert_allclose(ours[image].numpy(), theirs, rtol=1e-9, atol=1e-9)


def test_one_child_by_hand() -> None:
    """One active child, one parent, one element: a vote of 2 is pulled half way to zero, and so on."""
    routed = variational_routing(torch.full((1, 1, 1, 1), 2.0), torch.ones(1, 1), iterations=1)
    assert routed.poses.item() == pytest.approx(1.0)  # κ = 2
    log_lambda = scipy_digamma(1.5) + math.log(2) - math.log(1 + 0.5 * 2.0**2)  # ν = 3, Ψ⁻¹ = 1 + ½·4
    entropy = 0.5 * math.log(2 * math.pi * math.e) - 0.5 * log_lambda
    assert routed.activations.item() == pytest.approx(1 / (1 + math.exp(entropy)))  # the only parent has π = 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", OPTIONS)
def test_eager_is_the_reference(size: tuple[int, int, int, int], options: str) -> None:
    tensors = inputs(size)
    ours, expected = (
        variational_routing(*tensors, **OPTIONS[options], backend=backend) for backend in ("eager", "reference")
    )
    assert_close(ours, expected, rtol=1e-8, atol=1e-9)
    assert_close(gradients(ours, tensors), gradients(expected, tensors), rtol=1e-7, atol=1e-8)


def test_auto_is_eager() -> None:
    tensors = inputs((2, 5, 3, 4))
    assert same_bits(variational_routing(*tensors), variational_routing(*tensors, backend="eager"))


@every_backend
def test_gradcheck(backend: str) -> None:
    tensors = inputs((1, 3, 2, 2))
    assert torch.autograd.gradcheck(lambda *given: tuple(variational_routing(*given, backend=backend)), tensors)


@every_backend
def test_properties(backend: str) -> None:
    """Couplings sum to 1 over the parents; the order of children is nothing; an image depends on no other."""
    votes, a, bias = (tensor.detach() for tensor in inputs((2, 5, 3, 4)))
    routed = variational_routing(votes, a, bias, backend=backend)
    torch.testing.assert_close(routed.couplings.sum(2), torch.ones(2, 5, dtype=torch.float64))
    order = torch.tensor([3, 0, 4, 2, 1])
    moved = variational_routing(votes[:, order], a[:, order], bias, backend=backend)
    assert_close(moved, [routed.poses, routed.activations, routed.couplings[:, order]])
    alone = variational_routing(votes[1:], a[1:], bias, backend=backend)
    assert_close(alone, [part[1:] for part in routed])


def test_any_batch_size() -> None:
    for batch in (0, 1):
        routed = variational_routing(torch.randn(batch, 5, 3, 4), torch.rand(batch, 5))
        assert [tuple(out.shape) for out in routed] == [(batch, 3, 4), (batch, 3), (batch, 5, 3)]


def test_the_couplings_of_the_authors_code_do_not_sum_to_one() -> None:
    """What they are weighed by does: Σ_j π_j R_ij = 1. With couplings of the paper, each child counts once."""
    votes = torch.randn(1, 6, 3, 4)
    couplings = variational_routing(votes, torch.ones(1, 6), proportions=False).couplings
    assert couplings.sum(2).min() > 2


def test_gradients_flow_through_every_iteration() -> None:
    """Couplings taken as constants give other gradients."""
    votes, a, bias = inputs((2, 5, 3, 4))
    routed = variational_routing(votes, a, bias)
    (ours,) = torch.autograd.grad(routed.poses.sum(), votes)
    r = routed.couplings.detach() * a.unsqueeze(2)
    stopped = torch.einsum("bij,bijd->bjd", r / (1 + r.sum(1, keepdim=True)), votes)
    torch.testing.assert_close(stopped, routed.poses)
    (detached,) = torch.autograd.grad(stopped.sum(), votes)
    assert (ours - detached).abs().max() > 0.01


def test_agreement_activates() -> None:
    """Of two parents of the same data, the one whose votes agree is the more active one."""
    near = torch.randn(1, 12, 1, 4) * torch.tensor([0.05, 2.0])[:, None]
    tight, loose = variational_routing(near.expand(1, 12, 2, 4), torch.ones(1, 12), iterations=1).activations[0]
    assert tight > loose


CASES = {
    "no child active": lambda: (torch.randn(2, 6, 3, 16), torch.zeros(2, 6)),
    "hardly active": lambda: (torch.randn(2, 6, 3, 16), torch.full((2, 6), 1e-30)),
    "zero votes": lambda: (torch.zeros(2, 6, 3, 16), torch.rand(2, 6)),
    "huge votes": lambda: (1e6 * torch.randn(2, 6, 3, 16), torch.rand(2, 6)),
    "tiny votes": lambda: (1e-20 * torch.randn(2, 6, 3, 16), torch.rand(2, 6)),
    "identical huge votes": lambda: (1e6 * torch.randn(1, 1, 3, 16).expand(2, 6, 3, 16), torch.rand(2, 6)),
    "no child active, huge votes": lambda: (1e6 * torch.randn(2, 6, 3, 16), torch.zeros(2, 6)),
    "one outlier": lambda: (torch.randn(2, 6, 3, 16) * (10.0 ** torch.arange(6))[:, None, None], torch.rand(2, 6)),
    "one of each": lambda: (torch.randn(2, 1, 1, 1), torch.ones(2, 1)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_finite_results_and_gradients(case: str, options: str, dtype: torch.dtype) -> None:
    votes, a = (tensor.to(dtype).clone().requires_grad_() for tensor in CASES[case]())
    bias = torch.randn(votes.shape[2], requires_grad=True)
    routed = variational_routing(votes, a, bias, 4, **OPTIONS[options])
    loss = torch.stack([(torch.randn_like(out) * out).sum() for out in routed]).sum()
    for tensor in (*routed, *torch.autograd.grad(loss, [votes, a, bias])):
        assert torch.isfinite(tensor).all()


def test_a_parent_without_data_is_the_prior() -> None:
    routed = variational_routing(torch.randn(1, 4, 2, 3), torch.zeros(1, 4))
    torch.testing.assert_close(routed.poses, torch.zeros(1, 2, 3))
    log_lambda = sum(scipy_digamma((4 - d) / 2) for d in range(3)) + 3 * math.log(2)
    pi = math.exp(scipy_digamma(1) - scipy_digamma(2))
    entropy = 1.5 * math.log(2 * math.pi * math.e) - log_lambda / 2
    torch.testing.assert_close(routed.activations, torch.full((1, 2), 1 / (1 + math.exp(pi * entropy))))


def test_the_digamma_function() -> None:
    x = torch.logspace(-3, 5, 200, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(digamma(x), torch.digamma(x), rtol=1e-9, atol=1e-10)
    ours, exact = (torch.autograd.grad(f(x).sum(), x)[0] for f in (digamma, torch.digamma))
    torch.testing.assert_close(ours, exact, rtol=1e-8, atol=1e-9)


def test_what_is_recorded() -> None:
    votes, a, bias = (tensor.detach() for tensor in inputs((2, 5, 3, 4)))
    with record() as traces:
        routed = variational_routing(votes, a, bias, 2)
    (trace,) = traces
    assert (trace.name, len(trace.couplings)) == ("variational", 2)
    torch.testing.assert_close(trace.couplings[0], torch.full((2, 5, 3), 1 / 3, dtype=torch.float64))
    assert same_bits([trace.poses[1], trace.activations[1], trace.couplings[1]], routed)
    torch.testing.assert_close(trace.distances[1], (votes - routed.poses.unsqueeze(1)).norm(dim=3))


def test_layers() -> None:
    """A convolution routes each window by itself; a dense layer has one window."""
    layer = CapsuleConv2d(2, 4, 3, 4, kernel=(2, 1), pose="matrix", routing=VariationalRouting())
    assert layer.routing_parameters["bias"].shape == (3,)
    children = Capsules(torch.randn(2, 3, 2, 2, 4), torch.rand(2, 3, 2, 2))
    out = layer(children)
    dense = DenseCapsules((2, 1), 2, 4, 3, 4, pose="matrix", routing=VariationalRouting())
    dense.load_state_dict(layer.state_dict())
    corner = dense(Capsules(children.poses[:, 1:, 1:], children.activations[:, 1:, 1:]))
    torch.testing.assert_close(corner.poses[:, 0, 0], out.poses[:, 1, 1])
    (out.poses.square().sum() + out.activations.sum()).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in layer.parameters())
    assert len(CapsuleConv2d(2, 4, 3, 4, 1, routing=VariationalRouting(bias=False)).routing_parameters) == 0


def test_a_wide_prior_leaves_couplings_soft() -> None:
    """Of votes with a variance of 1, where the paper's prior expects 1/17, a child goes to one parent alone."""
    torch.manual_seed(0)
    votes, activations = torch.randn(2, 72, 16, 16), torch.rand(2, 72)

    def entropy(precision: float) -> float:
        couplings = variational_routing(votes, activations, precision=precision).couplings
        return float(-(couplings * couplings.clamp(min=1e-30).log()).sum(2).mean()) / math.log(16)

    paper, middle, wide = entropy(1.0), entropy(0.1), entropy(0.01)
    assert paper < 0.2 < middle < 0.9 < wide


def test_options_survive_json() -> None:
    routing = VariationalRouting(2, proportions=False, mean_weight=0.5, bias=False)
    assert routing_from_dict(routing.to_dict()) == routing


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"votes": torch.randn(5, 3, 4)}, "votes: must have the four axes [b i j d], got 3 axes"),
        ({"activations": torch.rand(2, 3)}, "activations: must have shape [b i] = (2, 5), got (2, 3)"),
        ({"bias": torch.zeros(5)}, "bias: must have shape [j] = (3,), got (5,)"),
        ({"iterations": 0}, "iterations: must be a whole number of at least 1, got 0"),
        ({"concentration": 0.0}, "concentration: must be above 0, got 0.0"),
        ({"mean_weight": -1.0}, "mean_weight: must be above 0, got -1.0"),
        ({"precision": 0.0}, "precision: must be above 0, got 0.0"),
        ({"degrees": 0.0}, "degrees: must be above 0, got 0.0"),
        ({"backend": "native"}, "backend: must be 'auto' or one of ['eager', 'reference'] for this routing"),
    ],
)
def test_errors(change: dict[str, Any], message: str) -> None:
    good = {"votes": torch.randn(2, 5, 3, 4), "activations": torch.rand(2, 5)}
    with pytest.raises(ValueError, match=re.escape(message)):
        variational_routing(**(good | change))

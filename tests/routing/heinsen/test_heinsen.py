"""Heinsen routing: against Algorithm 1 in NumPy, eager against reference, and its properties."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from capsella.layers import CapsuleConv2d, DenseCapsules
from capsella.routing import HeinsenRouting, heinsen_routing, record, routing_from_dict
from capsella.routing.heinsen import BACKENDS
from capsella.types import Capsules
from tests.routing.helpers import assert_close, gradients, same_bits

SIZES = [(1, 1, 1, 1), (2, 5, 3, 7), (1, 11, 2, 1), (1, 3, 1, 5), (2, 1, 5, 3)]  # b, i, j, d
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def algorithm(
    V: np.ndarray, f: np.ndarray, use_beta: np.ndarray, ignore_beta: np.ndarray, iterations: int, epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Heinsen 2019, Algorithm 1, one image: V [i j d], f [i], β [i j] → μ, f(a), R; densities, not logarithms."""
    R = np.full(V.shape[:2], 1 / V.shape[1])
    for t in range(iterations):
        if t:
            p = np.exp(-((V - mu) ** 2 / (2 * variance)).sum(2)) / np.sqrt(variance).prod(1)
            R = active * p / (active * p).sum(1, keepdims=True)
        use = f[:, None] * R
        a = (use_beta * use).sum(0) - (ignore_beta * (f[:, None] - use)).sum(0)
        active = 1 / (1 + np.exp(-a))
        shares = use / (use.sum(0) + epsilon)
        mu = np.einsum("ij,ijd->jd", shares, V)
        variance = np.einsum("ij,ijd->jd", shares, (V - mu) ** 2) + epsilon  # noqa: F841  used in the next round
    return mu, active, R


def inputs(size: tuple[int, int, int, int]) -> list[Tensor]:
    """Votes, activations, both β and B in float64, all asking for gradients."""
    shapes = [size, size[:2], size[1:3], size[1:3], size[1:]]
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    tensors[1] = torch.rand(size[:2], dtype=torch.float64)
    return [tensor.requires_grad_() for tensor in tensors]


@every_backend
@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [1e-5, 0.1])
def test_the_algorithm(backend: str, iterations: int, epsilon: float) -> None:
    tensors = [tensor.detach() for tensor in inputs((2, 6, 3, 4))]
    routed = heinsen_routing(*tensors, iterations, epsilon=epsilon, backend=backend)
    votes, f, gain, cost, bias = (tensor.numpy() for tensor in tensors)
    for image in range(2):
        expected = algorithm(votes[image] + bias, f[image], gain, cost, iterations, epsilon)
        for ours, theirs in zip(routed, expected, strict=True):
            np.testing.assert_allclose(ours[image].numpy(), theirs, rtol=1e-9, atol=1e-9)


@every_backend
def test_use_and_ignore_by_hand(backend: str) -> None:
    """One child of activation ½ and two parents: each uses ¼ and ignores ¼."""
    gain, cost = torch.tensor([[8.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    routed = heinsen_routing(torch.zeros(1, 1, 2, 1), torch.tensor([[0.5]]), gain, cost, iterations=1, backend=backend)
    torch.testing.assert_close(routed.activations, torch.tensor([[2.0, -1.0]]).sigmoid())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shared", [False, True])
def test_eager_is_the_reference(size: tuple[int, int, int, int], shared: bool) -> None:
    tensors = inputs(size)
    if shared:
        tensors[2:] = [tensor[:1].detach().requires_grad_() for tensor in tensors[2:]]
    ours, expected = (heinsen_routing(*tensors, epsilon=0.01, backend=backend) for backend in ("eager", "reference"))
    assert_close(ours, expected, rtol=1e-8, atol=1e-9)
    assert_close(gradients(ours, tensors), gradients(expected, tensors), rtol=1e-6, atol=1e-8)


def test_auto_is_eager() -> None:
    tensors = inputs((2, 5, 3, 4))
    assert same_bits(heinsen_routing(*tensors), heinsen_routing(*tensors, backend="eager"))


@every_backend
def test_gradcheck(backend: str) -> None:
    tensors = inputs((1, 3, 2, 2))
    assert torch.autograd.gradcheck(
        lambda *given: tuple(heinsen_routing(*given, 2, epsilon=0.1, backend=backend)), tensors
    )


@every_backend
def test_properties(backend: str) -> None:
    """Couplings sum to 1 over the parents; children may change places with their β; an image depends on no other."""
    votes, f, *parameters = (tensor.detach() for tensor in inputs((2, 5, 3, 4)))
    routed = heinsen_routing(votes, f, *parameters, backend=backend)
    torch.testing.assert_close(routed.couplings.sum(2), torch.ones(2, 5, dtype=torch.float64))
    order = torch.tensor([3, 0, 4, 2, 1])
    moved = heinsen_routing(votes[:, order], f[:, order], *(p[order] for p in parameters), backend=backend)
    assert_close(moved, [routed.poses, routed.activations, routed.couplings[:, order]])
    assert_close(heinsen_routing(votes[1:], f[1:], *parameters, backend=backend), [part[1:] for part in routed])


def test_shared_parameters_are_those_of_every_child() -> None:
    votes, f, *parameters = (tensor.detach() for tensor in inputs((2, 5, 3, 4)))
    one = [parameter[:1] for parameter in parameters]
    copied = [parameter.repeat(5, *[1] * (parameter.ndim - 1)) for parameter in one]
    assert_close(heinsen_routing(votes, f, *one), heinsen_routing(votes, f, *copied))


CASES = {
    "no child active": lambda: (torch.randn(2, 6, 3, 16), torch.zeros(2, 6)),
    "hardly active": lambda: (torch.randn(2, 6, 3, 16), torch.full((2, 6), 1e-30)),
    "zero votes": lambda: (torch.zeros(2, 6, 3, 16), torch.rand(2, 6)),
    "huge votes": lambda: (1e6 * torch.randn(2, 6, 3, 16), torch.rand(2, 6)),
    "tiny votes": lambda: (1e-20 * torch.randn(2, 6, 3, 16), torch.rand(2, 6)),
    "identical huge votes": lambda: (1e6 * torch.randn(1, 1, 3, 16).expand(2, 6, 3, 16), torch.rand(2, 6)),
    "no child active, huge votes": lambda: (1e6 * torch.randn(2, 6, 3, 16), torch.zeros(2, 6)),
    "one of each": lambda: (torch.randn(2, 1, 1, 1), torch.ones(2, 1)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sd", [0.0, 1.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_finite_results_and_gradients(case: str, sd: float, dtype: torch.dtype) -> None:
    votes, f = (tensor.to(dtype).clone().requires_grad_() for tensor in CASES[case]())
    betas = [(sd * torch.randn(votes.shape[1:3])).requires_grad_() for _ in range(2)]
    routed = heinsen_routing(votes, f, *betas, iterations=4)
    loss = torch.stack([(torch.randn_like(out) * out).sum() for out in routed]).sum()
    for tensor in (*routed, *torch.autograd.grad(loss, [votes, f, *betas])):
        assert torch.isfinite(tensor).all()


def test_what_is_recorded() -> None:
    tensors = [tensor.detach() for tensor in inputs((2, 5, 3, 4))]
    with record() as traces:
        routed = heinsen_routing(*tensors, 2)
    (trace,) = traces
    assert (trace.name, len(trace.couplings)) == ("heinsen", 2)
    assert same_bits([trace.poses[1], trace.activations[1], trace.couplings[1]], routed)
    distances = (tensors[0] + tensors[4] - routed.poses.unsqueeze(1)).norm(dim=3)
    torch.testing.assert_close(trace.distances[1], distances)


def test_layers() -> None:
    """A convolution has parameters for each child of a window, or shared ones; a dense layer has one window."""
    layer = CapsuleConv2d(2, 4, 3, 4, kernel=(2, 1), pose="matrix", routing=HeinsenRouting())
    shapes = {name: tuple(parameter.shape) for name, parameter in layer.routing_parameters.items()}
    assert shapes == {"beta_use": (4, 3), "beta_ignore": (4, 3), "bias": (4, 3, 4)}
    for parameter in layer.routing_parameters.values():
        torch.nn.init.normal_(parameter)
    children = Capsules(torch.randn(2, 3, 2, 2, 4), torch.rand(2, 3, 2, 2))
    out = layer(children)
    dense = DenseCapsules((2, 1), 2, 4, 3, 4, pose="matrix", routing=HeinsenRouting())
    dense.load_state_dict(layer.state_dict())
    corner = dense(Capsules(children.poses[:, 1:, 1:], children.activations[:, 1:, 1:]))
    torch.testing.assert_close(corner.poses[:, 0, 0], out.poses[:, 1, 1])
    (out.poses.square().sum() + out.activations.sum()).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in layer.parameters())
    shared = CapsuleConv2d(2, 4, 3, 4, 2, routing=HeinsenRouting(shared=True, bias=False))
    assert [tuple(p.shape) for p in shared.routing_parameters.values()] == [(1, 3), (1, 3)]
    shared(children)


def test_options_survive_json() -> None:
    routing = HeinsenRouting(2, epsilon=1e-3, shared=True, bias=False)
    assert routing_from_dict(routing.to_dict()) == routing


def test_scores_are_log_odds() -> None:
    """Beyond what an activation of float32 can tell from 1."""
    layer = CapsuleConv2d(2, 4, 3, 4, 1, routing=HeinsenRouting())
    torch.nn.init.constant_(layer.routing_parameters["beta_use"], 300.0)
    scored = layer.score(Capsules(torch.randn(2, 1, 1, 2, 4), torch.full((2, 1, 1, 2), 0.9)))
    assert float(scored.log_odds.detach().sum(3).mean()) == pytest.approx(2 * 0.9 * 300, rel=1e-5)
    assert math.isclose(float(scored.log_odds.detach().sigmoid().min()), 1.0)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"votes": torch.randn(5, 3, 4)}, "votes: must have the four axes [b i j d], got 3 axes"),
        ({"activations": torch.rand(2, 3)}, "activations: must have shape [b i] = (2, 5), got (2, 3)"),
        ({"beta_use": torch.zeros(3, 3)}, "beta_use: must have shape [i j] = (5, 3), got (3, 3)"),
        ({"beta_ignore": torch.zeros(1, 4)}, "beta_ignore: must have shape [i j] = (1, 3), got (1, 4)"),
        ({"bias": torch.zeros(5, 3, 3)}, "bias: must have shape [i j d] = (5, 3, 4), got (5, 3, 3)"),
        ({"iterations": 0}, "iterations: must be a whole number of at least 1, got 0"),
        ({"epsilon": 0.0}, "epsilon: must be above 0, got 0.0"),
        ({"backend": "native"}, "backend: must be 'auto' or one of ['eager', 'reference'] for this routing"),
    ],
)
def test_errors(change: dict[str, Any], message: str) -> None:
    good = {
        "votes": torch.randn(2, 5, 3, 4),
        "activations": torch.rand(2, 5),
        "beta_use": torch.zeros(5, 3),
        "beta_ignore": torch.zeros(5, 3),
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        heinsen_routing(**(good | change))

"""Dynamic routing: the paper once more in NumPy, numbers worked out by hand, properties, and tied layers by algebra."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from capsella.routing import DynamicRouting, Geometry, RoutingInputs, capsule_votes, dynamic_routing, record, squash
from tests.routing.helpers import CONV, Layer, asking, assert_close, gradients, route

every_backend = pytest.mark.parametrize("backend", ["reference", "eager"])


def procedure_1(
    u_hat: np.ndarray, r: int, bias: np.ndarray | float = 0.0, leaky: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Sabour et al. 2017, Procedure 1, one image: û [i j d] → v [j d], c [i j]."""
    b = np.zeros(u_hat.shape[:2])
    for _ in range(r):
        c = np.exp(b) / (np.exp(b).sum(axis=1, keepdims=True) + leaky)  # Eq. 3; the leak is one more parent, logit 0
        s = np.einsum("ij,ijd->jd", c, u_hat) + bias  # Eq. 2
        norm = np.sqrt((s * s).sum(axis=1, keepdims=True))
        v = norm**2 / (1 + norm**2) * s / norm  # Eq. 1
        b = b + np.einsum("ijd,jd->ij", u_hat, v)
    return v, c


@every_backend
@pytest.mark.parametrize(
    ("iterations", "leaky", "with_bias"), [(1, False, True), (2, True, False), (3, False, False), (4, True, True)]
)
def test_procedure_1(backend: str, iterations: int, leaky: bool, with_bias: bool) -> None:
    votes = torch.randn(3, 7, 5, 3, dtype=torch.float64)
    bias = torch.randn(5, 3, dtype=torch.float64) if with_bias else None
    routed = dynamic_routing(votes, iterations, bias=bias, leaky=leaky, backend=backend)
    for image, u_hat in enumerate(votes.numpy()):
        v, c = procedure_1(u_hat, iterations, 0.0 if bias is None else bias.numpy(), leaky)
        np.testing.assert_allclose(routed.poses[image].numpy(), v, rtol=1e-9)
        np.testing.assert_allclose(routed.couplings[image].numpy(), c, rtol=1e-9)
        np.testing.assert_allclose(routed.activations[image].numpy(), np.linalg.norm(v, axis=1), rtol=1e-6)


@every_backend
def test_softmax_is_over_parents(backend: str) -> None:
    """One child, two parents, votes 2 and 0; a softmax over the single child would leave both couplings at 1."""
    votes = torch.tensor([[[[2.0], [0.0]]]], dtype=torch.float64)
    first = dynamic_routing(votes, iterations=1, backend=backend)
    # s = ½·2 = 1, v = 1/(1+1) = ½
    torch.testing.assert_close(first.couplings, _tensor([[[0.5, 0.5]]]))
    torch.testing.assert_close(first.poses, _tensor([[[0.5], [0.0]]]))
    second = dynamic_routing(votes, iterations=2, backend=backend)
    # b = (2·½, 0), c = (e/(1+e), 1/(1+e)), s = 2e/(1+e), v = s²/(1+s²)
    c = math.e / (1 + math.e)
    v = (2 * c) ** 2 / (1 + (2 * c) ** 2)
    torch.testing.assert_close(second.couplings, _tensor([[[c, 1 - c]]]))
    torch.testing.assert_close(second.poses, _tensor([[[v], [0.0]]]))


@every_backend
def test_gradients_flow_through_every_iteration(backend: str) -> None:
    """Couplings taken as constants give other gradients, so nothing here may detach them."""
    votes = torch.randn(2, 5, 3, 4, dtype=torch.float64, requires_grad=True)
    routed = dynamic_routing(votes, 3, backend=backend)
    (ours,) = torch.autograd.grad(routed.poses.sum(), votes)
    stopped = squash(torch.einsum("bij,bijd->bjd", routed.couplings.detach(), votes))
    torch.testing.assert_close(stopped, routed.poses)
    (detached,) = torch.autograd.grad(stopped.sum(), votes)
    assert (ours - detached).abs().max() > 0.01


@given(st.tuples(*(st.integers(1, most) for most in (3, 8, 5, 6))), st.floats(-4, 2), st.integers(1, 4), st.booleans())
def test_couplings_lengths_and_rotations(
    size: tuple[int, int, int, int], exponent: float, iterations: int, leaky: bool
) -> None:
    """For votes of any small size, from tiny to large. An orthogonal map of the pose space commutes with routing."""
    votes = torch.randn(size, dtype=torch.float64) * 10**exponent
    routed = dynamic_routing(votes, iterations, leaky=leaky)
    total = routed.couplings.sum(2)
    assert (routed.couplings >= 0).all()
    assert (total < 1 + 1e-12).all() if leaky else ((total - 1).abs() < 1e-12).all()
    assert (routed.activations <= 1 + 1e-9).all()
    torch.testing.assert_close(routed.activations, routed.poses.norm(dim=-1), rtol=1e-6, atol=2e-6)
    turn, _ = torch.linalg.qr(torch.randn(size[3], size[3], dtype=votes.dtype))
    turned = dynamic_routing(votes @ turn, iterations, leaky=leaky)
    assert_close(turned, routed._replace(poses=routed.poses @ turn), atol=1e-9)


@every_backend
@pytest.mark.parametrize("leaky", [False, True])
def test_zero_votes_give_zero_poses_and_finite_gradients(backend: str, leaky: bool) -> None:
    votes = torch.zeros(2, 3, 4, 5, requires_grad=True)
    routed = dynamic_routing(votes, 3, leaky=leaky, backend=backend)
    assert torch.equal(routed.poses, torch.zeros(2, 4, 5))
    (gradient,) = torch.autograd.grad(routed.poses.sum(), votes)
    assert gradient.isfinite().all()


TIED = {
    "dense": Layer(2, (3, 2), Geometry((3, 2), tied=True), (3, 4), (2, 5)),
    "overlapping windows": Layer(2, (4, 5), Geometry((3, 2), (1, 2), tied=True), (3, 4), (2, 5)),
    "1×1": Layer(2, (2, 3), Geometry((1, 1), tied=True), (3, 1), (2, 3)),
    "gaps between windows": Layer(2, (5, 5), Geometry((1, 2), (3, 3), tied=True), (3, 4), (2, 1)),
    "matrix poses": Layer(2, (4, 3), Geometry((2, 2), tied=True, matrix=True), (3, 9), (2, 9)),
}


@pytest.mark.parametrize("name", TIED)
@pytest.mark.parametrize(
    ("leaky", "without"), [(False, ()), (True, ("vote_offset",)), (False, ("vote_offset", "bias"))]
)
def test_tied_layers_are_their_votes_written_out(name: str, leaky: bool, without: tuple[str, ...]) -> None:
    """Outputs, all gradients and traces, in float64."""
    layer = TIED[name]
    drawn = {**layer.tensors(), "bias": torch.randn(layer.parents, dtype=torch.float64)}
    tensors = asking({key: x for key, x in drawn.items() if key not in without}, without=["activations"])
    conv = RoutingInputs(**{key: tensors[key] for key in CONV if key in tensors}, geometry=layer.geometry)
    with record() as traces:
        ours = route(DynamicRouting(bias="bias" in tensors, leaky=leaky), layer.geometry, tensors)
        votes, _ = capsule_votes(conv)
        routed = dynamic_routing(votes, bias=tensors.get("bias"), leaky=leaky, backend="eager")
    expected = list(conv.parents(routed.poses, routed.activations))
    asked = [tensor for tensor in tensors.values() if tensor.requires_grad]
    assert_close(ours, expected, rtol=1e-7, atol=1e-9)
    assert_close(gradients(ours, asked), gradients(expected, asked), rtol=1e-7, atol=1e-9)
    for part in ("couplings", "poses", "activations"):
        assert_close(*(getattr(trace, part) for trace in traces))


def test_tied_layers_make_nothing_as_large_as_the_votes() -> None:
    poses, weight = torch.randn(1, 5, 6, 4, 5), torch.randn(1, 1, 4, 3, 5, 10)
    conv = RoutingInputs(poses, torch.rand(1, 5, 6, 4), weight, Geometry((5, 6), tied=True))
    votes = 5 * 6 * 4 * 3 * 10
    largest = 0

    class Sizes(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                largest = max(largest, out.untyped_storage().nbytes() // out.element_size())
            return out

    with Sizes():
        DynamicRouting(backend="eager").route_windows(conv)
    assert 0 < largest <= max(poses.numel(), weight.numel()) < votes


def _tensor(values: list[list[list[float]]]) -> Tensor:
    """Nested lists as the [1 j d] or [1 i j] tensor they stand for."""
    return torch.tensor(values, dtype=torch.float64)

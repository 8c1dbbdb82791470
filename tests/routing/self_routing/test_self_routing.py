"""Self-routing: against the paper's equations in NumPy, eager against reference, and its properties."""

import numpy as np
import pytest
import torch

from capsella.layers import CapsuleConv2d
from capsella.routing import CapsuleConv, Geometry, SelfRouting, record, self_routing
from capsella.routing.self_routing import BACKENDS
from capsella.types import Capsules
from tests.routing.helpers import Layer, asking, assert_close, gradients, same_bits

SIZES = [(1, 1, 1, 1), (2, 5, 3, 7), (3, 7, 2, 1), (1, 3, 1, 5), (2, 1, 5, 3)]  # b, i, j, d
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def inputs(size: tuple[int, int, int, int], dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    return {
        "votes": torch.randn(size, dtype=dtype),
        "activations": torch.rand(size[:2], dtype=dtype),
        "logits": torch.randn(size[:3], dtype=dtype),
    }


def equations(V: np.ndarray, a: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hahn et al. 2019: V [b i j d], a [b i], logits [b i j] → poses, activations, R."""
    R = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    received = np.einsum("bi,bij->bj", a, R)
    poses = np.einsum("bi,bij,bijd->bjd", a, R, V) / received[..., None]
    return poses, received / a.sum(1)[:, None], R


@every_backend
def test_the_equations(backend: str) -> None:
    given = inputs((3, 7, 5, 4))
    routed = self_routing(**given, backend=backend)
    for ours, expected in zip(routed, equations(*(tensor.numpy() for tensor in given.values())), strict=True):
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-9, atol=1e-9)


@every_backend
def test_softmax_is_over_parents_and_the_mean_over_children(backend: str) -> None:
    """Two children of activations 1 and ½; the first gives all to parent 0, the second is undecided."""
    votes = torch.tensor([[[[4.0], [4.0]], [[1.0], [1.0]]]], dtype=torch.float64)
    logits = torch.tensor([[[100.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    routed = self_routing(votes, torch.tensor([[1.0, 0.5]], dtype=torch.float64), logits, backend=backend)
    torch.testing.assert_close(routed.activations, torch.tensor([[1.25 / 1.5, 0.25 / 1.5]], dtype=torch.float64))
    expected = torch.tensor([[[(4 + 0.25) / 1.25], [1.0]]], dtype=torch.float64)
    torch.testing.assert_close(routed.poses, expected)


@pytest.mark.parametrize("size", SIZES)
def test_eager_is_the_reference(size: tuple[int, int, int, int]) -> None:
    given = asking(inputs(size))
    ours, expected = (self_routing(**given, backend=backend) for backend in ("eager", "reference"))
    assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    of = list(given.values())
    assert_close(gradients(ours, of), gradients(expected, of), rtol=1e-9, atol=1e-9)


def test_auto_is_eager() -> None:
    given = inputs((2, 5, 3, 4), torch.float32)
    assert same_bits(self_routing(**given), self_routing(**given, backend="eager"))


@every_backend
def test_gradcheck(backend: str) -> None:
    given = asking(inputs((2, 3, 2, 3)))
    assert torch.autograd.gradcheck(lambda *x: tuple(self_routing(*x, backend=backend)), tuple(given.values()))


@every_backend
def test_properties(backend: str) -> None:
    """Couplings and activations sum to 1 over the parents; the order of children is nothing; images are alone."""
    given = inputs((2, 5, 3, 4))
    routed = self_routing(**given, backend=backend)
    torch.testing.assert_close(routed.couplings.sum(2), torch.ones(2, 5, dtype=torch.float64))
    torch.testing.assert_close(routed.activations.sum(1), torch.ones(2, dtype=torch.float64))
    order = torch.tensor([3, 0, 4, 2, 1])
    moved = self_routing(**{name: tensor[:, order] for name, tensor in given.items()}, backend=backend)
    torch.testing.assert_close(moved.poses, routed.poses)
    torch.testing.assert_close(moved.activations, routed.activations)
    torch.testing.assert_close(moved.couplings, routed.couplings[:, order])
    alone = self_routing(**{name: tensor[1:] for name, tensor in given.items()}, backend=backend)
    torch.testing.assert_close(alone.poses, routed.poses[1:])
    empty = self_routing(**{name: tensor[:0] for name, tensor in given.items()}, backend=backend)
    assert [tuple(out.shape) for out in empty] == [(0, 3, 4), (0, 3), (0, 5, 3)]


@every_backend
def test_agreement_counts_for_nothing(backend: str) -> None:
    given = inputs((2, 5, 3, 4))
    routed = self_routing(**given, backend=backend)
    other = self_routing(**{**given, "votes": torch.randn(2, 5, 3, 4, dtype=torch.float64)}, backend=backend)
    assert torch.equal(other.activations, routed.activations)
    assert torch.equal(other.couplings, routed.couplings)


@every_backend
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e6])
@pytest.mark.parametrize("active", [0.0, 1e-20, 1.0])
def test_zero_and_huge_values(backend: str, scale: float, active: float) -> None:
    given = inputs((2, 3, 4, 5), torch.float32)
    given = asking({name: scale * tensor for name, tensor in given.items()})
    with torch.no_grad():
        given["activations"].fill_(active)
    routed = self_routing(**given, backend=backend)
    assert all(out.isfinite().all() for out in routed)
    assert all(gradient.isfinite().all() for gradient in gradients(routed[:2], list(given.values())))
    assert routed.activations.max() <= 1 + 1e-6


@every_backend
def test_nobody_is_there(backend: str) -> None:
    given = inputs((1, 3, 2, 4))
    routed = self_routing(given["votes"], torch.zeros(1, 3).double(), given["logits"], backend=backend)
    assert not routed.activations.any()
    assert not routed.poses.any()


def test_what_is_recorded() -> None:
    with record() as traces:
        routed = self_routing(**inputs((2, 5, 3, 4)))
    (trace,) = traces
    assert trace.name == "self"
    for kept, given in zip((trace.poses, trace.activations, trace.couplings), routed, strict=True):
        assert torch.equal(kept[0], given)


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
    conv = CapsuleConv(*(tensors[name] for name in layer.shapes() if name != "vote_offset"), geometry=layer.geometry)
    routed = SelfRouting().capsule_conv(conv, weight=tensors["of_poses"], bias=tensors["bias"])
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


def test_votes_alone_are_those_of_poses_of_zero() -> None:
    layer = Layer(2, (3, 3), Geometry((2, 2)), (2, 5), (3, 4))
    tensors = layer.tensors()
    weight, bias = torch.randn(8, 3, 5, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    conv = {**tensors, "poses": torch.zeros_like(tensors["poses"])}
    del conv["vote_offset"]
    parents = SelfRouting().capsule_conv(CapsuleConv(**conv, geometry=layer.geometry), weight=weight, bias=bias)
    votes = torch.zeros(2, 8, 3, 4, dtype=torch.float64)
    activations = tensors["activations"][:, :2, :2].reshape(2, 8)
    alone = SelfRouting().route(votes, activations, weight=weight, bias=bias)
    torch.testing.assert_close(alone.activations, parents.activations[:, 0, 0])
    torch.testing.assert_close(alone.couplings[0], bias.softmax(1))


def test_a_layer_learns() -> None:
    layer = CapsuleConv2d(2, 5, 3, 4, kernel=(2, 1), routing=SelfRouting())
    parameters = layer.routing_parameters
    assert {name: tuple(tensor.shape) for name, tensor in parameters.items()} == {"weight": (4, 3, 5), "bias": (4, 3)}
    assert not any(tensor.any() for tensor in parameters.values())
    layer(Capsules(torch.randn(2, 3, 2, 2, 5), torch.rand(2, 3, 2, 2))).activations[..., 0].sum().backward()
    for tensor in parameters.values():
        assert tensor.grad is not None
        assert tensor.grad.abs().max() > 0


def test_backends_agree_in_a_layer() -> None:
    layer = Layer(2, (3, 3), Geometry((2, 2)), (2, 3), (3, 4))
    tensors = layer.tensors()
    of_routing = {"bias": torch.randn(8, 3, dtype=torch.float64)}
    results = []
    for backend in BACKENDS:
        given = asking({**tensors, **of_routing})
        weight = torch.ones(8, 3, 3, dtype=torch.float64)
        conv = CapsuleConv(*(given[name] for name in ("poses", "activations", "weight")), layer.geometry)
        out = SelfRouting(backend=backend).capsule_conv(conv, weight=weight, bias=given["bias"])
        results.append([*out, *gradients(out, [given[n] for n in ("poses", "activations", "weight", "bias")])])
    assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("shapes", "backend", "message"),
    [
        (((2, 3, 4), (2, 3), (2, 3, 4)), "auto", r"votes: must have the four axes \[b i j d\], got 3 axes"),
        (((2, 3, 4, 5), (2, 4), (2, 3, 4)), "auto", r"activations: must have shape \[b i\] = \(2, 3\), got \(2, 4\)"),
        (((2, 3, 4, 5), (2, 3), (3, 4)), "auto", r"logits: must have shape \[b i j\] = \(2, 3, 4\), got \(3, 4\)"),
        (((2, 3, 4, 5), (2, 3), (2, 3, 4)), "native", r"backend: must be 'auto' or one of \['eager', 'reference'\]"),
    ],
)
def test_errors(shapes: tuple[tuple[int, ...], ...], backend: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        self_routing(*(torch.rand(shape) for shape in shapes), backend=backend)


@pytest.mark.usefixtures("as_users_call")
def test_a_layer_s_parameters_of_another_shape() -> None:
    layer = Layer(2, (3, 3), Geometry((2, 2)), (2, 5), (3, 4))
    weight, bias = torch.zeros(8, 3, 5), torch.zeros(8, 3)
    poses, activations = torch.rand(2, 3, 3, 2, 5), torch.rand(2, 3, 3, 2)
    conv = CapsuleConv(poses, activations, torch.rand(2, 2, 2, 3, 5, 4), layer.geometry)
    with pytest.raises(ValueError, match=r"weight: must have shape \[i j p\] = \(8, 3, 5\), got \(8, 3, 4\)"):
        SelfRouting().capsule_conv(conv, weight=weight[..., 1:], bias=bias)
    with pytest.raises(ValueError, match=r"bias: must have shape \[i j\] = \(8, 3\), got \(7, 3\)"):
        SelfRouting().capsule_conv(conv, weight=weight, bias=bias[1:])

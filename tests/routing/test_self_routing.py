"""Self-routing: the paper's equations in NumPy, and layers; test_contract.py has the rest."""

import numpy as np
import pytest
import torch

from capsella.routing import Geometry, RoutingInputs, SelfRouting, self_routing
from tests.routing.helpers import Layer

every_backend = pytest.mark.parametrize("backend", ["reference", "eager"])


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


@every_backend
def test_agreement_counts_for_nothing(backend: str) -> None:
    given = inputs((2, 5, 3, 4))
    routed = self_routing(**given, backend=backend)
    other = self_routing(**{**given, "votes": torch.randn(2, 5, 3, 4, dtype=torch.float64)}, backend=backend)
    assert torch.equal(other.activations, routed.activations)
    assert torch.equal(other.couplings, routed.couplings)


@every_backend
def test_nobody_is_there(backend: str) -> None:
    given = inputs((1, 3, 2, 4))
    routed = self_routing(given["votes"], torch.zeros(1, 3).double(), given["logits"], backend=backend)
    assert not routed.activations.any()
    assert not routed.poses.any()


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

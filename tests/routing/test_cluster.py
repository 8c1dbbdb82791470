"""Cluster routing: against the paper's equations in NumPy, eager against reference, its properties and its layer."""

import numpy as np
import pytest
import torch

from capsella.layers import ClusterCapsules
from capsella.routing import cluster_routing
from capsella.types import Capsules
from tests.routing.helpers import assert_close, gradients

SIZES = [(1, 1, 1, 1, 1), (2, 4, 5, 3, 7), (3, 2, 7, 2, 1), (1, 3, 3, 1, 5), (2, 3, 1, 5, 3)]  # b, g, i, j, d
every_backend = pytest.mark.parametrize("backend", ["reference", "eager"])


def equations(V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Zhao and Cheng 2021: V [b g i j d] → poses [b j d], weights [b i j d]."""
    agreement = np.exp(-np.log(V.std(1)))
    weights = agreement / agreement.sum(1, keepdims=True)
    return (weights * V.mean(1)).sum(1), weights


@every_backend
def test_the_equations(backend: str) -> None:
    votes = torch.randn(3, 4, 7, 5, 2, dtype=torch.float64)
    for ours, expected in zip(cluster_routing(votes, backend=backend), equations(votes.numpy()), strict=True):
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-9, atol=1e-9)


@every_backend
def test_agreement_counts_as_one_over_the_deviation(backend: str) -> None:
    """Two children: votes 1 ± 1 and 10 ± 3. Deviations 1 and 3, weights ¾ and ¼."""
    votes = torch.tensor([[0.0, 2.0], [7.0, 13.0]], dtype=torch.float64).t().reshape(1, 2, 2, 1, 1)
    clustered = cluster_routing(votes, backend=backend)
    torch.testing.assert_close(clustered.weights.flatten(), torch.tensor([0.75, 0.25], dtype=torch.float64))
    torch.testing.assert_close(clustered.poses.flatten(), torch.tensor([0.75 * 1 + 0.25 * 10], dtype=torch.float64))


@pytest.mark.parametrize("size", SIZES)
def test_eager_is_the_reference(size: tuple[int, ...]) -> None:
    votes = torch.randn(size, dtype=torch.float64, requires_grad=True)
    ours, expected = (cluster_routing(votes, backend=backend) for backend in ("eager", "reference"))
    assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    assert_close(gradients(ours, [votes]), gradients(expected, [votes]), rtol=1e-8, atol=1e-9)


@every_backend
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e6])
def test_zero_equal_and_huge_votes(backend: str, scale: float) -> None:
    votes = scale * torch.randn(2, 3, 4, 2, 5)
    votes[:, :, 1] = scale  # a cluster of equal votes
    votes.requires_grad_()
    clustered = cluster_routing(votes, backend=backend)
    assert all(out.isfinite().all() for out in clustered)
    assert gradients(clustered, [votes])[0].isfinite().all()


def test_the_layer_by_hand() -> None:
    """Each child type's convolution, cluster routing at each site alone, then one normalisation of each type."""
    layer = ClusterCapsules(2, 3, 4, 5, 6, (3, 2), stride=2)
    torch.nn.init.normal_(layer.norm.weight)
    torch.nn.init.normal_(layer.norm.bias)
    children = Capsules(torch.randn(2, 6, 4, 2, 3), torch.ones(2, 6, 4, 2))
    votes = []
    for i in range(2):
        maps = children.poses[..., i, :].permute(0, 3, 1, 2)
        of_type = slice(i * 6 * 4 * 5, (i + 1) * 6 * 4 * 5)
        weight, bias = layer.conv.weight[of_type], layer.conv.bias[of_type]
        made = torch.nn.functional.conv2d(maps, weight, bias, stride=2, padding=1)
        votes.append(made.reshape(2, 6, 4, 5, 3, 2))  # [b g j d h' w']
    V = torch.stack(votes, 2).permute(0, 5, 6, 1, 2, 3, 4).reshape(2 * 3 * 2, 6, 2, 4, 5)
    poses = cluster_routing(V, backend="reference").poses.reshape(2, 3, 2, 4, 5)
    mean = poses.mean((1, 2, 4), keepdim=True)
    variance = (poses - mean).square().mean((1, 2, 4), keepdim=True)
    scale, shift = (tensor.permute(1, 2, 0).unsqueeze(2) for tensor in (layer.norm.weight, layer.norm.bias))
    expected = scale * (poses - mean) / (variance + 1e-5).sqrt() + shift
    parents = layer(children)
    torch.testing.assert_close(parents.poses, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(parents.activations, torch.ones(2, 3, 2, 4))

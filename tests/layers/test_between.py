"""What stands between capsule layers."""

import pytest
import torch

from capsella.layers import ClusterCapsules, NormalisedPrimaryCapsules, NormalisePoses, PadCapsules
from capsella.types import Capsules


def test_poses_are_normalised_element_by_element() -> None:
    capsules = Capsules(3 + 2 * torch.randn(4, 5, 6, 2, 3), torch.rand(4, 5, 6, 2))
    poses, activations = NormalisePoses(2, 3)(capsules)
    assert activations is capsules.activations
    expected = capsules.poses - capsules.poses.mean((0, 1, 2))
    expected = expected / (capsules.poses.var((0, 1, 2), correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(poses, expected)


def test_padding_is_nobody() -> None:
    capsules = Capsules(torch.randn(2, 3, 4, 2, 5), torch.rand(2, 3, 4, 2))
    poses, activations = PadCapsules(2)(capsules)
    assert poses.shape == (2, 7, 8, 2, 5)
    assert torch.equal(poses[:, 2:-2, 2:-2], capsules.poses)
    assert torch.equal(activations[:, 2:-2, 2:-2], capsules.activations)
    assert int((activations != 0).sum()) == capsules.activations.numel()
    assert int((poses != 0).sum()) == capsules.poses.numel()


def test_capsules_of_other_sizes_are_refused() -> None:
    capsules = Capsules(torch.randn(2, 3, 3, 4, 3), torch.rand(2, 3, 3, 4))
    for layer in (NormalisePoses(3, 4), ClusterCapsules(3, 4, 2, 4, 2, (3, 3))):
        with pytest.raises(
            ValueError, match=r"children: must have the layer's 3 types of 4 pose elements, got \(4, 3\)"
        ):
            layer(capsules)
    with pytest.raises(ValueError, match="kernel: must be an odd number, got 2"):
        NormalisedPrimaryCapsules(3, 2, 4, kernel=2)

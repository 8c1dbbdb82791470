"""Primary capsules: which channel is what, first weights, and types of numbers."""

import torch

from capsella.layers import MatrixPrimaryCapsules, PrimaryCapsules
from capsella.routing import dynamic_routing, squash


@torch.no_grad()
def copying_layer(types: int, pose: int) -> PrimaryCapsules:
    """A 1×1 layer that passes channel k on as channel k."""
    layer = PrimaryCapsules(types * pose, types, pose, kernel=1, stride=1)
    layer.conv.weight.copy_(torch.eye(types * pose)[:, :, None, None])
    layer.conv.bias.zero_()
    return layer


def test_a_capsule_is_made_of_channels_of_one_position() -> None:
    """Channel t·pose + k is element k of type t at the same pixel: cutting by `view` alone would mix pixels."""
    types, pose = 3, 2
    features = torch.randn(2, types * pose, 4, 5)
    poses, _ = copying_layer(types, pose)(features)
    assert poses.shape == (2, 4, 5, types, pose)
    for b, y, x, t in [(0, 0, 0, 0), (1, 3, 4, 2), (0, 1, 3, 1)]:
        torch.testing.assert_close(poses[b, y, x, t], squash(features[b, t * pose : (t + 1) * pose, y, x]))


def test_uniform_couplings_capsules_share_each_vote_among_the_types() -> None:
    """The same convolution, divided by the number of types before its bias: one iteration of dynamic routing."""
    features = torch.randn(2, 4, 7, 7)
    layer = PrimaryCapsules(4, types=5, pose=3, kernel=3, uniform_couplings=True)
    votes = (layer.conv(features) - layer.conv.bias[:, None, None]).unflatten(1, (1, 5, 3)).permute(0, 4, 5, 1, 2, 3)
    routed = dynamic_routing(votes.flatten(0, 2), iterations=1, bias=layer.conv.bias.unflatten(0, (5, 3)))
    torch.testing.assert_close(layer(features).poses.flatten(0, 2), routed.poses)


def test_channels_become_poses_and_activations_of_the_same_pixel() -> None:
    """A 1×1 convolution whose output channel k is 100·k + the pixel's number."""
    layer = MatrixPrimaryCapsules(1, types=2, pose=4)
    with torch.no_grad():
        layer.conv.weight.fill_(1.0)
        layer.conv.bias.copy_(100.0 * torch.arange(10))
    pixels = torch.arange(6.0).reshape(1, 1, 2, 3)
    poses, activations = layer(pixels)
    expected = 100.0 * torch.arange(8).reshape(2, 4) + pixels[0, 0, :, :, None, None]
    assert torch.equal(poses[0], expected)  # negative or large: no activation function
    torch.testing.assert_close(activations[0], (torch.tensor([800.0, 900.0]) + pixels[0, 0, :, :, None]).sigmoid())

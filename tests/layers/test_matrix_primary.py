"""Matrix primary capsules: which channel is what."""

import torch

from capsella.layers import MatrixPrimaryCapsules


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


def test_activation_is_the_sigmoid_of_its_channel() -> None:
    layer = MatrixPrimaryCapsules(3, types=2, pose=4)
    features = torch.randn(2, 3, 4, 5)
    poses, activations = layer(features)
    maps = layer.conv(features)
    assert poses.shape == (2, 4, 5, 2, 4)
    torch.testing.assert_close(activations[..., 1], maps[:, 9].sigmoid())
    torch.testing.assert_close(poses[..., 1, 2], maps[:, 6])
    assert poses.min() < 0

import pytest
import torch
from torch.nn import functional as F

from capsella.layers import ConvolutionalDecoder, UpsizedConv2d, mask_all_but
from capsella.types import Capsules


def class_capsules(batch: int = 3, classes: int = 4, d: int = 5) -> Capsules:
    poses = torch.randn(batch, 1, 1, classes, d, requires_grad=True)
    return Capsules(poses, poses.norm(dim=-1))


def test_all_but_the_target_are_masked() -> None:
    capsules, target = class_capsules(), torch.tensor([2, 0, 3])
    masked = mask_all_but(capsules, target)
    for b, t in enumerate(target.tolist()):
        assert torch.equal(masked[b, 0, 0, t], capsules.poses[b, 0, 0, t])
        others = [k for k in range(4) if k != t]
        assert torch.equal(masked[b, 0, 0, others], torch.zeros(3, 5))


def with_upsizings_apart(decoder: ConvolutionalDecoder) -> torch.nn.Sequential:
    """DECODER NET as Figure 30 draws it, with the same weights."""
    apart: list[torch.nn.Module] = []
    for layer in decoder.layers:
        if not isinstance(layer, UpsizedConv2d):
            apart.append(layer)
            continue
        convolution = torch.nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size)
        convolution.weight, convolution.bias = layer.weight, layer.bias
        apart += [torch.nn.Upsample(layer.size), torch.nn.ZeroPad2d((layer.before, layer.after) * 2), convolution]
    return torch.nn.Sequential(*apart)


@pytest.mark.parametrize("image", [(3, 64, 64), (1, 61, 130)])
def test_the_convolutional_decoder_is_the_figures(image: tuple[int, int, int]) -> None:
    decoder = ConvolutionalDecoder(5, image, hidden=(2, 3, 4)).double()
    poses = torch.randn(2, 1, 1, 4, 5).double()
    torch.testing.assert_close(decoder(poses), with_upsizings_apart(decoder)(poses.sum((1, 2, 3))))


@pytest.mark.parametrize(
    ("kernel", "small", "size"), [(6, (5, 7), (10, 14)), (7, (1, 2), (2, 4)), (3, (5, 7), (13, 14))]
)
def test_an_upsized_convolution_is_the_upsizing_and_the_convolution(kernel, small, size) -> None:
    layer = UpsizedConv2d(3, 4, kernel, size).double()
    maps = torch.randn(2, 3, *small, dtype=torch.float64, requires_grad=True)
    pull = torch.randn(2, 4, *size, dtype=torch.float64)
    zeros = (layer.before, layer.after) * 2
    plain = F.conv2d(F.pad(F.interpolate(maps, size), zeros), layer.weight, layer.bias)
    ours, inputs = layer(maps), (maps, layer.weight, layer.bias)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    gradients = zip(torch.autograd.grad(ours, inputs, pull), torch.autograd.grad(plain, inputs, pull), strict=True)
    for mine, theirs in gradients:
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)

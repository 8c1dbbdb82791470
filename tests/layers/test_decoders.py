import pytest
import torch

from capsella.layers import ConvolutionalDecoder, DenseDecoder, UpsizedConv2d, mask_all_but
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


def test_the_gradient_reaches_the_target_only() -> None:
    capsules, target = class_capsules(), torch.tensor([2, 0, 3])
    decoder = DenseDecoder(4, 5, (1, 6, 7))
    decoder(mask_all_but(capsules, target)).sum().backward()
    touched = capsules.poses.grad[:, 0, 0].abs().sum(2) > 0
    assert torch.equal(touched, torch.nn.functional.one_hot(target, 4).bool())


def test_figure_2() -> None:
    linear = [layer for layer in DenseDecoder(10, 16, (1, 28, 28)).layers if isinstance(layer, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(160, 512), (512, 1024), (1024, 784)]
    kinds = [type(layer).__name__ for layer in DenseDecoder(10, 16, (1, 28, 28)).layers]
    assert kinds == ["Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear", "Sigmoid", "Unflatten"]


def with_upsizings_apart(decoder: ConvolutionalDecoder) -> torch.nn.Sequential:
    """DECODER NET as Figure 30 draws it, with the same weights."""
    apart: list[torch.nn.Module] = []
    for layer in decoder.layers:
        if not isinstance(layer, UpsizedConv2d):
            apart.append(layer)
            continue
        convolution = torch.nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size)
        convolution.weight, convolution.bias = layer.weight, layer.bias
        apart += [torch.nn.Upsample(layer.size), torch.nn.ZeroPad2d(layer.zeros), convolution]
    return torch.nn.Sequential(*apart)


@pytest.mark.parametrize("image", [(3, 64, 64), (1, 61, 130)])
def test_the_convolutional_decoder_is_the_figures(image: tuple[int, int, int]) -> None:
    decoder = ConvolutionalDecoder(5, image, hidden=(2, 3, 4)).double()
    poses = torch.randn(2, 1, 1, 4, 5).double()
    torch.testing.assert_close(decoder(poses), with_upsizings_apart(decoder)(poses.sum((1, 2, 3))))

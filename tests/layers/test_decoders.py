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


def test_masking_keeps_the_dtype() -> None:
    poses = torch.randn(1, 1, 1, 2, 3, dtype=torch.bfloat16)
    assert mask_all_but(Capsules(poses, poses.norm(dim=-1)), torch.tensor([1])).dtype == torch.bfloat16


def test_images_lie_between_zero_and_one() -> None:
    images = DenseDecoder(4, 5, (3, 6, 7))(100 * torch.randn(2, 1, 1, 4, 5))
    assert images.shape == (2, 3, 6, 7)
    assert images.min() >= 0
    assert images.max() <= 1


def test_figure_2() -> None:
    linear = [layer for layer in DenseDecoder(10, 16, (1, 28, 28)).layers if isinstance(layer, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(160, 512), (512, 1024), (1024, 784)]
    kinds = [type(layer).__name__ for layer in DenseDecoder(10, 16, (1, 28, 28)).layers]
    assert kinds == ["Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear", "Sigmoid", "Unflatten"]


def test_other_widths() -> None:
    decoder = DenseDecoder(2, 3, (1, 4, 4), hidden=[7])
    assert [tuple(p.shape) for p in decoder.parameters()] == [(7, 6), (7,), (16, 7), (16,)]


@pytest.mark.parametrize("image", [(3, 64, 64), (1, 64, 70), (3, 224, 160), (3, 30, 31)])
def test_the_convolutional_decoder_makes_images_of_any_size(image: tuple[int, int, int]) -> None:
    images = ConvolutionalDecoder(5, image, hidden=(2, 3, 4))(10 * torch.randn(2, 1, 1, 4, 5))
    assert images.shape == (2, *image)
    assert 0 <= images.min() <= images.max() <= 1


def test_the_convolutional_decoder_upsizes_between_its_convolutions() -> None:
    """30×30 → 56 → 112 → 224."""
    layers = ConvolutionalDecoder(5, (3, 224, 224)).layers
    assert [layer.size for layer in layers if isinstance(layer, UpsizedConv2d)] == [(56, 56), (112, 112), (224, 224)]


def test_weights_keep_the_names_of_older_runs() -> None:
    names = [f"layers.{place}.{kind}" for place in (0, 2, 6, 10, 14, 17) for kind in ("weight", "bias")]
    assert list(ConvolutionalDecoder(5, (3, 64, 64), hidden=(2, 3, 4)).state_dict()) == names


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


def test_the_convolutional_decoder_sees_the_masked_capsule_alone() -> None:
    decoder = ConvolutionalDecoder(5, (3, 32, 32), hidden=(2, 3, 4))
    capsules, target = class_capsules(), torch.tensor([2, 0, 3])
    alone = torch.stack([capsules.poses[b, :, :, t : t + 1] for b, t in enumerate(target.tolist())])
    torch.testing.assert_close(decoder(mask_all_but(capsules, target)), decoder(alone))


def test_errors_of_the_convolutional_decoder() -> None:
    with pytest.raises(ValueError, match="image: must be at least 30×30 to decode to, got 29×40"):
        ConvolutionalDecoder(5, (3, 29, 40))
    with pytest.raises(ValueError, match=r"hidden: must be three numbers of channels, got \(64, 128\)"):
        ConvolutionalDecoder(5, (3, 64, 64), hidden=(64, 128))


@pytest.mark.usefixtures("as_users_call")
def test_one_target_would_be_broadcast_to_all_images() -> None:
    with pytest.raises(ValueError, match=r"target: must be one class an image \[b\] = \(3,\), got shape \(1,\)"):
        mask_all_but(class_capsules(), torch.tensor([2]))
    capsules, targets = class_capsules(), torch.tensor([2, 0, 1])
    for kind in (torch.uint8, torch.int32):
        assert torch.equal(mask_all_but(capsules, targets.to(kind)), mask_all_but(capsules, targets))

import torch

from capsella.layers import DenseDecoder, mask_all_but
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

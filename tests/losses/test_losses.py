import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from capsella.losses import (
    LossOptions,
    cross_entropy,
    margin_loss,
    multi_hot,
    reconstruction_loss,
    sigmoid_cross_entropy,
    spread_loss,
    total_loss,
)
from capsella.types import Output


def test_margin_loss_by_hand() -> None:
    # image 1: (0.9−0.8)² + 0.5·(0.3−0.1)² = 0.03; image 2: (0.9−0)² + 0.5·(1−0.1)² = 1.215
    activations = torch.tensor([[0.8, 0.3, 0.05], [0.02, 0.0, 1.0]])
    assert margin_loss(activations[:1], torch.tensor([0])).item() == pytest.approx(0.03)
    assert margin_loss(activations, torch.tensor([0, 1])).item() == pytest.approx((0.03 + 1.215) / 2)


def test_margins_are_squared() -> None:
    def miss(by: float) -> float:
        return margin_loss(torch.tensor([[0.9 - by, 0.1]]), torch.tensor([0])).item()

    assert miss(0.4) == pytest.approx(0.16)
    assert miss(0.2) == pytest.approx(0.04)


def test_nothing_is_lost_beyond_the_margins() -> None:
    activations = torch.tensor([[0.95, 0.05, 0.1]], requires_grad=True)
    loss = margin_loss(activations, torch.tensor([0]))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(activations.grad, torch.zeros(1, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_several_classes_may_be_present(dtype: torch.dtype) -> None:
    # (0.9−0.8)² + 0.5·(0.3−0.1)² + (0.9−0.05)²
    loss = margin_loss(torch.tensor([[0.8, 0.3, 0.05]]), torch.tensor([[1, 0, 1]]).to(dtype))
    assert loss.item() == pytest.approx(0.01 + 0.02 + 0.7225)


def test_class_numbers_and_one_hot_labels_agree() -> None:
    activations, labels = torch.rand(5, 4), torch.tensor([3, 0, 1, 1, 2])
    one_hot = torch.nn.functional.one_hot(labels, 4)
    torch.testing.assert_close(margin_loss(activations, labels), margin_loss(activations, one_hot))


def test_margin_constants() -> None:
    activations, labels = torch.tensor([[0.5, 0.5]]), torch.tensor([0])
    assert margin_loss(activations, labels, 0.6, 0.2, 0.25).item() == pytest.approx(0.1**2 + 0.25 * 0.3**2)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    "labels", [torch.tensor([0, 1, 2]), torch.zeros(2, 4), torch.tensor([0.0, 1.0]), torch.zeros(2, 1)]
)
def test_labels_that_would_broadcast(labels: Tensor) -> None:
    message = r"labels: must be class numbers \[b\] = \(2,\) or 0/1 \[b classes\] = \(2, 3\), got torch\.\w+ of shape"
    with pytest.raises(ValueError, match=message):
        margin_loss(torch.rand(2, 3), labels)


def test_reconstruction_is_summed_over_pixels_or_averaged() -> None:
    images, reconstruction = torch.zeros(2, 1, 2, 3), torch.tensor([0.1, 0.3])[:, None, None, None].expand(2, 1, 2, 3)
    # 6 pixels: 6·0.01 and 6·0.09
    assert reconstruction_loss(reconstruction, images).item() == pytest.approx(0.3)
    assert reconstruction_loss(reconstruction, images, "mean").item() == pytest.approx(0.05)


def test_weights_of_sum_and_mean() -> None:
    """0.0005 with the sum is 0.392 with the mean of 784 pixels; the one for the other is 784 times off."""
    images = torch.rand(3, 1, 28, 28)
    output = Output(torch.rand(3, 10), reconstruction=torch.rand(3, 1, 28, 28))
    labels = torch.tensor([1, 2, 3])
    summed = total_loss(output, images, labels, LossOptions())
    averaged = total_loss(output, images, labels, LossOptions(reconstruction="mean", reconstruction_weight=0.392))
    torch.testing.assert_close(summed.reconstruction, averaged.reconstruction)
    squares = (output.reconstruction - images).square()
    torch.testing.assert_close(summed.reconstruction, 0.0005 * squares.sum() / 3)


@pytest.mark.usefixtures("as_users_call")
def test_reconstruction_of_other_images() -> None:
    message = r"reconstruction: must have the images' shape \(2, 1, 4, 4\), got \(1, 1, 4, 4\)"
    with pytest.raises(ValueError, match=message):
        reconstruction_loss(torch.rand(1, 1, 4, 4), torch.rand(2, 1, 4, 4))
    with pytest.raises(ValueError, match="reduction: must be 'sum' or 'mean', got 'max'"):
        reconstruction_loss(torch.rand(2, 1, 4, 4), torch.rand(2, 1, 4, 4), "max")


def test_cross_entropy_takes_logits_where_there_are_any() -> None:
    logits = torch.tensor([[2.0, 0.0]])
    expected = math.log(1 + math.exp(-2))
    assert cross_entropy(Output(logits.softmax(1), logits=logits), torch.tensor([0])).item() == pytest.approx(expected)
    activations = torch.tensor([[0.9, 0.1]])
    expected = math.log(1 + math.exp(-0.8))
    assert cross_entropy(Output(activations), torch.tensor([0])).item() == pytest.approx(expected)


def test_total_is_the_sum_of_its_parts() -> None:
    images, labels = torch.rand(2, 1, 3, 3), torch.tensor([0, 2])
    output = Output(torch.rand(2, 4), reconstruction=torch.rand(2, 1, 3, 3))
    losses = total_loss(output, images, labels, LossOptions(positive_margin=0.8, reconstruction_weight=0.01))
    torch.testing.assert_close(losses.total, losses.classification + losses.reconstruction)
    torch.testing.assert_close(losses.classification, margin_loss(output.activations, labels, 0.8))
    torch.testing.assert_close(losses.reconstruction, 0.01 * reconstruction_loss(output.reconstruction, images))


def test_without_a_decoder_only_the_classification_counts() -> None:
    logits = torch.randn(2, 4)
    output = Output(logits.softmax(1), logits=logits)
    losses = total_loss(output, torch.rand(2, 1, 3, 3), torch.tensor([0, 2]), LossOptions("cross_entropy"))
    assert losses.reconstruction.item() == 0
    assert losses.total.item() == losses.classification.item()
    torch.testing.assert_close(losses.total, torch.nn.functional.cross_entropy(logits, torch.tensor([0, 2])))


def test_gradients() -> None:
    activations = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 3, 1])
    assert torch.autograd.gradcheck(lambda a: margin_loss(a, labels), activations)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("loss", [margin_loss, spread_loss, cross_entropy, sigmoid_cross_entropy])
def test_weights_that_would_broadcast(loss: Callable[..., Tensor]) -> None:
    activations = torch.rand(2, 3)
    answer = activations if loss in (margin_loss, spread_loss) else Output(activations, logits=activations)
    for shape in ((2, 1), (1,)):
        with pytest.raises(ValueError, match=r"image_weights: must be one number an image \[b\] = \(2,\), got shape"):
            loss(answer, torch.tensor([0, 2]), image_weights=torch.ones(shape))


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"spread_schedule": "stair"}, "loss spread_schedule: must be a registered name, got 'stair'; .*stairs"),
        ({"positive_margin": math.nan}, "positive_margin: must be at least 0 and finite, got nan"),
        ({"reconstruction_weight": -1.0}, "reconstruction_weight: must be at least 0 and finite, got -1.0"),
    ],
)
def test_options_that_could_not_be_meant(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LossOptions(**options)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_class_numbers_of_any_integer_type(dtype: torch.dtype) -> None:
    activations, labels = torch.rand(4, 3), torch.tensor([0, 2, 1, 1])
    output, other = Output(activations), labels.to(dtype)
    assert torch.equal(margin_loss(activations, other), margin_loss(activations, labels))
    assert torch.equal(spread_loss(activations, other), spread_loss(activations, labels))
    assert torch.equal(cross_entropy(output, other), cross_entropy(output, labels))
    images, weights = torch.zeros(4, 1, 2, 2), torch.tensor([1.0, 2.0, 4.0])
    ours, theirs = (total_loss(output, images, one, LossOptions(), class_weights=weights) for one in (other, labels))
    assert torch.equal(ours.total, theirs.total)
    pairs = torch.tensor([[0, 1], [1, 2], [0, 2], [2, 1]])
    assert torch.equal(multi_hot(pairs.to(dtype), 3), multi_hot(pairs, 3))
    for loss in (margin_loss, spread_loss):
        with pytest.raises(ValueError, match=r"labels: must be class numbers, of an integer type, got torch\.bool"):
            loss(activations, labels > 0)
    with pytest.raises(ValueError, match=r"labels: must be class numbers, of an integer type, got torch\.float32"):
        cross_entropy(output, labels.float())
    with pytest.raises(IndexError, match="Target -100 is out of bounds"):  # which PyTorch's own passes over
        cross_entropy(output, torch.tensor([0, -100, 1, 1]))

"""Every loss against numbers worked out by hand, for one class per image and two, its types and its refusals."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from capsella.losses import (
    LossOptions,
    count_errors,
    cross_entropy,
    margin_loss,
    predicted_classes,
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


def test_reconstruction_is_summed_over_pixels_or_averaged_and_added() -> None:
    images, reconstruction = torch.zeros(2, 1, 2, 3), torch.tensor([0.1, 0.3])[:, None, None, None].expand(2, 1, 2, 3)
    # 6 pixels: 6·0.01 and 6·0.09
    assert reconstruction_loss(reconstruction, images).item() == pytest.approx(0.3)
    assert reconstruction_loss(reconstruction, images, "mean").item() == pytest.approx(0.05)
    output, labels = Output(torch.rand(2, 4), reconstruction=reconstruction), torch.tensor([0, 2])
    losses = total_loss(output, images, labels, LossOptions(positive_margin=0.8, reconstruction_weight=0.01))
    assert losses.reconstruction.item() == pytest.approx(0.003)
    torch.testing.assert_close(losses.classification, margin_loss(output.activations, labels, 0.8))
    torch.testing.assert_close(losses.total, losses.classification + losses.reconstruction)


def test_cross_entropy_takes_logits_where_there_are_any() -> None:
    logits = torch.tensor([[2.0, 0.0]])
    expected = math.log(1 + math.exp(-2))
    assert cross_entropy(Output(logits.softmax(1), logits=logits), torch.tensor([0])).item() == pytest.approx(expected)
    activations = torch.tensor([[0.9, 0.1]])
    expected = math.log(1 + math.exp(-0.8))
    assert cross_entropy(Output(activations), torch.tensor([0])).item() == pytest.approx(expected)


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


def test_spread_loss_by_hand() -> None:
    """max(0, 0.5 − (0.9 − 0.1)) = 0, 0.5 − (0.9 − 0.6) = 0.2; then 0.5 − (0.2 − 0.3) = 0.6, 0.5 − 0 = 0.5."""
    activations = torch.tensor([[0.9, 0.1, 0.6], [0.3, 0.2, 0.2]])
    expected = (0.2**2 + 0.6**2 + 0.5**2) / 2
    torch.testing.assert_close(spread_loss(activations, torch.tensor([0, 1]), 0.5), torch.tensor(expected))


def test_gradient_raises_the_true_class_and_lowers_the_others() -> None:
    activations = torch.tensor([[0.5, 0.45, 0.1]], requires_grad=True)
    spread_loss(activations, torch.tensor([0]), 0.2).backward()
    # max(0, 0.2 − 0.05) = 0.15 for class 1; class 2 is beyond the margin
    torch.testing.assert_close(activations.grad, torch.tensor([[-0.3, 0.3, 0.0]]))


def test_linear_schedule_starts_and_ends_where_it_must() -> None:
    whole, part = LossOptions(), LossOptions(spread_steps=101)
    margins = [whole.spread_at(step, 8) for step in range(8)]
    assert margins[0] == 0.2
    assert margins[-1] == pytest.approx(0.9)
    assert margins == sorted(margins)
    assert part.spread_at(50, 1000) == pytest.approx(0.55)
    assert part.spread_at(100, 1000) == pytest.approx(0.9)
    assert part.spread_at(999, 1000) == pytest.approx(0.9)
    assert whole.spread_at(0, 1) == pytest.approx(0.9)


def test_total_loss_takes_the_margin_of_the_step_or_else_the_last() -> None:
    output, labels = Output(torch.tensor([[0.6, 0.5]])), torch.tensor([0])
    images, options = torch.zeros(1, 1, 2, 2), LossOptions(name="spread")
    torch.testing.assert_close(
        total_loss(output, images, labels, options, spread=0.3).total, torch.tensor((0.3 - 0.1) ** 2)
    )
    torch.testing.assert_close(total_loss(output, images, labels, options).total, torch.tensor((0.9 - 0.1) ** 2))


@pytest.mark.usefixtures("as_users_call")
def test_refusals_name_the_argument() -> None:
    """Above all shapes that broadcasting would hide."""
    activations, images = torch.rand(2, 3), torch.rand(2, 1, 4, 4)
    output, numbers = Output(activations, logits=activations), torch.tensor([0, 2])
    one, two = torch.ones(1), torch.ones(2, 1)
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("labels", lambda: margin_loss(activations, torch.tensor([0, 1, 2]))),
        ("labels", lambda: margin_loss(activations, torch.tensor([0.0, 1.0]))),
        ("labels", lambda: margin_loss(activations, torch.zeros(2, 1))),
        ("labels", lambda: spread_loss(activations, torch.tensor([0]))),
        ("image_weights", lambda: margin_loss(activations, numbers, image_weights=two)),
        ("image_weights", lambda: spread_loss(activations, numbers, image_weights=one)),
        ("image_weights", lambda: cross_entropy(output, numbers, one)),
        ("image_weights", lambda: sigmoid_cross_entropy(output, numbers, two)),
        ("output", lambda: sigmoid_cross_entropy(Output(activations), numbers)),
        ("reconstruction", lambda: reconstruction_loss(images[:1], images)),
        ("reduction", lambda: reconstruction_loss(images, images, "max")),  # type: ignore[arg-type]
        ("positive_margin", lambda: LossOptions(positive_margin=math.nan)),
        ("spread_first, spread_last", lambda: LossOptions(spread_last=0.1)),
    ]
    for argument, call in calls:
        with pytest.raises(ValueError, match=f"^{argument}: must"):
            call()


ACTIVATIONS = torch.tensor([[0.9, 0.3, 0.7, 0.1], [0.2, 0.9, 0.1, 0.95], [0.5, 0.1, 0.9, 0.2]])
LABELS = torch.tensor([[0, 2], [3, 0], [1, 3]])


def test_margin_loss_of_two_labels() -> None:
    """First image: (0.9 − 0.7)² for the short class 2 and 0.5 · 0.2² for class 1, which is not there."""
    loss = total_loss(Output(ACTIVATIONS[:1]), torch.zeros(1), LABELS[:1], LossOptions())
    assert loss.total.item() == pytest.approx(0.2**2 + 0.5 * 0.2**2)
    assert loss.reconstruction == 0
    every = total_loss(Output(ACTIVATIONS), torch.zeros(3), LABELS, LossOptions()).total
    torch.testing.assert_close(
        every, margin_loss(ACTIVATIONS, torch.tensor([[1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 0, 1]]))
    )


def test_with_two_classes_in_all_labels_are_still_class_numbers() -> None:
    """[b 2] could be taken for 0/1 of two classes: [0, 1] would then lack the first."""
    losses = total_loss(Output(torch.tensor([[0.9, 0.9]])), torch.zeros(1), torch.tensor([[0, 1]]), LossOptions())
    assert losses.total.item() == pytest.approx(0, abs=1e-12)


def test_sigmoid_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5]])

    def minus_log(present: float, logit: float) -> float:
        return math.log1p(math.exp(-logit if present else logit))

    expected = minus_log(1, 2.0) + minus_log(0, -1.0) + minus_log(1, 0.5)
    output = Output(logits.sigmoid(), logits=logits)
    assert sigmoid_cross_entropy(output, torch.tensor([[1, 0, 1]])).item() == pytest.approx(expected)
    options = LossOptions("sigmoid_cross_entropy")
    twice = Output(output.activations.repeat(2, 1), logits=logits.repeat(2, 1))
    loss = total_loss(twice, torch.zeros(2), torch.tensor([[0, 2], [2, 0]]), options).total
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["spread", "cross_entropy"])
def test_losses_for_one_class_refuse_two(name: str) -> None:
    with pytest.raises(ValueError, match=r"^loss: must"):
        total_loss(Output(ACTIVATIONS, logits=ACTIVATIONS), torch.zeros(3), LABELS, LossOptions(name))


@pytest.mark.usefixtures("as_users_call")
def test_each_capsule_is_to_draw_its_own_image() -> None:
    parts = torch.rand(3, 2, 1, 4, 4)
    images, options = parts.sum(1).clamp(max=1), LossOptions(reconstruction_weight=0.01)
    drawn = torch.rand(3, 2, 1, 4, 4)
    loss = total_loss(Output(ACTIVATIONS, reconstruction=drawn), images, LABELS, options, parts=parts)
    assert loss.reconstruction.item() == pytest.approx(0.01 * (drawn - parts).square().sum().item() / 3, rel=1e-5)
    swapped = total_loss(Output(ACTIVATIONS, reconstruction=parts.flip(1)), images, LABELS, options, parts=parts)
    assert swapped.reconstruction > 0
    perfect = total_loss(Output(ACTIVATIONS, reconstruction=parts), images, LABELS, options, parts=parts)
    assert perfect.reconstruction == 0
    with pytest.raises(ValueError, match=r"^reconstruction: must"):
        total_loss(Output(ACTIVATIONS, reconstruction=images), images, LABELS, options, parts=parts)


def test_strongest_stands_beside_its_label() -> None:
    assert predicted_classes(ACTIVATIONS, LABELS).tolist() == [[0, 2], [3, 1], [2, 0]]
    assert predicted_classes(ACTIVATIONS, LABELS.flip(1)).tolist() == [[2, 0], [1, 3], [2, 0]]
    assert predicted_classes(ACTIVATIONS, LABELS[:, 0]).tolist() == [0, 3, 2]


def test_a_pair_is_right_only_if_both_classes_are() -> None:
    assert count_errors(ACTIVATIONS, LABELS) == 2
    assert count_errors(ACTIVATIONS, LABELS.flip(1)) == 2
    assert count_errors(ACTIVATIONS, torch.tensor([[2, 0], [1, 3], [0, 2]])) == 0
    assert count_errors(ACTIVATIONS, LABELS[:, 0]) == 1

"""Losses and errors of images that show two classes, by hand."""

import math

import pytest
import torch

from capsella.losses import (
    LossOptions,
    count_errors,
    margin_loss,
    multi_hot,
    predicted_classes,
    sigmoid_cross_entropy,
    total_loss,
)
from capsella.types import Output

ACTIVATIONS = torch.tensor([[0.9, 0.3, 0.7, 0.1], [0.2, 0.9, 0.1, 0.95], [0.5, 0.1, 0.9, 0.2]])
LABELS = torch.tensor([[0, 2], [3, 0], [1, 3]])


def test_margin_loss_of_two_labels() -> None:
    """First image: (0.9 − 0.7)² for the short class 2 and 0.5 · 0.2² for class 1, which is not there."""
    loss = total_loss(Output(ACTIVATIONS[:1]), torch.zeros(1), LABELS[:1], LossOptions())
    assert loss.total.item() == pytest.approx(0.2**2 + 0.5 * 0.2**2)
    assert loss.reconstruction == 0
    every = total_loss(Output(ACTIVATIONS), torch.zeros(3), LABELS, LossOptions()).total
    torch.testing.assert_close(every, margin_loss(ACTIVATIONS, multi_hot(LABELS, 4)))


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

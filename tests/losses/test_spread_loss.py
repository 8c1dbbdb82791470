"""The spread loss against numbers worked out by hand, and its two margin schedules."""

import pytest
import torch

from capsella.losses import LossOptions, spread_loss, total_loss
from capsella.types import Output


def test_by_hand() -> None:
    """max(0, 0.5 − (0.9 − 0.1)) = 0, 0.5 − (0.9 − 0.6) = 0.2; then 0.5 − (0.2 − 0.3) = 0.6, 0.5 − 0 = 0.5."""
    activations = torch.tensor([[0.9, 0.1, 0.6], [0.3, 0.2, 0.2]])
    expected = (0.2**2 + 0.6**2 + 0.5**2) / 2
    torch.testing.assert_close(spread_loss(activations, torch.tensor([0, 1]), 0.5), torch.tensor(expected))


def test_the_true_class_is_left_out() -> None:
    """Were it in the sum, it would add m² to every image."""
    assert spread_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), 0.9) == 0.0


def test_gradient_raises_the_true_class_and_lowers_the_others() -> None:
    activations = torch.tensor([[0.5, 0.45, 0.1]], requires_grad=True)
    spread_loss(activations, torch.tensor([0]), 0.2).backward()
    # max(0, 0.2 − 0.05) = 0.15 for class 1; class 2 is beyond the margin
    torch.testing.assert_close(activations.grad, torch.tensor([[-0.3, 0.3, 0.0]]))


@pytest.mark.parametrize(
    "labels", [torch.tensor([0]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0.0, 1.0])]
)
@pytest.mark.usefixtures("as_users_call")
def test_labels_that_are_not_class_numbers(labels: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"labels: must be class numbers \[b\] = \(2,\) for the spread loss, got"):
        spread_loss(torch.rand(2, 2), labels)


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


def test_stairs_of_the_thesis() -> None:
    """0.2, and 0.1 more every 3,000 steps until 0.9."""
    options = LossOptions(spread_schedule="stairs")
    margins = [round(options.spread_at(step, 100_000), 6) for step in range(0, 30_000, 1_500)]
    assert margins[:6] == [0.2, 0.2, 0.3, 0.3, 0.4, 0.4]
    assert margins[14:] == [0.9] * 6
    assert LossOptions(spread_schedule="stairs", spread_steps=10).spread_at(25, 100) == pytest.approx(0.4)


def test_total_loss_takes_the_margin_of_the_step_or_else_the_last() -> None:
    output, labels = Output(torch.tensor([[0.6, 0.5]])), torch.tensor([0])
    images, options = torch.zeros(1, 1, 2, 2), LossOptions(name="spread")
    torch.testing.assert_close(
        total_loss(output, images, labels, options, spread=0.3).total, torch.tensor((0.3 - 0.1) ** 2)
    )
    torch.testing.assert_close(total_loss(output, images, labels, options).total, torch.tensor((0.9 - 0.1) ** 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spread_first": 0.0}, r"spread_first, spread_last: must rise within \(0, 1\], got 0.0, 0.9"),
        ({"spread_last": 0.1}, r"spread_first, spread_last: must rise within \(0, 1\], got 0.2, 0.1"),
        ({"spread_steps": 0}, "spread_steps: must be at least 1 or None, got 0"),
    ],
)
def test_options_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LossOptions(**options)

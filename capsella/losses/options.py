"""Options of the losses: their names and constants."""

from dataclasses import dataclass
from typing import Literal, get_args

from capsella.errors import check_argument, unknown_name

Classification = Literal["margin", "spread", "cross_entropy", "sigmoid_cross_entropy"]
FOR_TWO_CLASSES: tuple[Classification, ...] = ("margin", "sigmoid_cross_entropy")  # for images that show two classes
Reduction = Literal["sum", "mean"]
Schedule = Literal["linear", "stairs"]
STAIR = 3000  # steps of one stair of the spread loss's margin in Forslöv's thesis


@dataclass(frozen=True)
class LossOptions:
    """A classification loss and a reconstruction loss. Defaults: Sabour et al. 2017, sections 3 and 4.1."""

    name: Classification = "margin"
    """Classification loss, on class activations, or for both cross-entropies on logits. Images of two classes need
    margin or sigmoid_cross_entropy."""
    positive_margin: float = 0.9
    """m⁺ of the margin loss: a present class whose activation is larger has no loss."""
    negative_margin: float = 0.1
    """m⁻ of the margin loss: an absent class whose activation is smaller has no loss."""
    absent_weight: float = 0.5
    """λ of the margin loss: weight of the absent classes."""
    spread_schedule: Schedule = "linear"
    """Rise of the spread loss's margin: linear (Hinton et al. 2018), or in stairs of 0.1 (Forslöv's thesis)."""
    spread_first: float = 0.2
    """Margin of the spread loss at the first step."""
    spread_last: float = 0.9
    """Last margin of the spread loss. Validation always uses it, so that the losses of epochs can be compared."""
    spread_steps: int | None = None
    """Linear schedule: steps until the last margin (None: the whole training). Stairs: steps per stair (None: 3,000, as
    in the thesis)."""
    reconstruction: Reduction = "sum"
    """Sum of squared errors over an image's pixels (Sabour et al. 2017), or their mean (Forslöv's thesis)."""
    reconstruction_weight: float = 0.0005
    """Weight of the reconstruction loss: 0.0005 with sum, as published; 0.392 with mean is the same for 784 pixels."""

    def __post_init__(self) -> None:
        choices = {"name": Classification, "reconstruction": Reduction, "spread_schedule": Schedule}
        for field, allowed in choices.items():
            if getattr(self, field) not in get_args(allowed):
                raise unknown_name(f"loss {field}", getattr(self, field), get_args(allowed))
        for field in ("positive_margin", "negative_margin", "absent_weight", "reconstruction_weight"):
            number = getattr(self, field)
            check_argument(0 <= number < float("inf"), "be at least 0 and finite", **{field: number})
        first, last, steps = self.spread_first, self.spread_last, self.spread_steps
        check_argument(0 < first <= last <= 1, "rise within (0, 1]", spread_first=first, spread_last=last)
        check_argument(steps is None or steps >= 1, "be at least 1 or None", spread_steps=steps)

    def spread_at(self, step: int | float, total_steps: int) -> float:
        """Return the spread loss's margin at `step`, counted from 0, of a training of `total_steps`.

        >>> options = LossOptions(spread_schedule="stairs")
        >>> [round(options.spread_at(step, 100_000), 1) for step in (0, 2_999, 3_000, 21_000, 99_999)]
        [0.2, 0.2, 0.3, 0.9, 0.9]
        """
        if self.spread_schedule == "stairs":
            risen = 0.1 * (step // (self.spread_steps or STAIR))
        else:
            last_step = (self.spread_steps or total_steps) - 1
            risen = (self.spread_last - self.spread_first) * (step / last_step if last_step else 1.0)
        return min(self.spread_first + risen, self.spread_last)

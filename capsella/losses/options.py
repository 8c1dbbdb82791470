"""Options of the losses: their names and constants."""

from dataclasses import dataclass
from typing import Literal

from capsella.errors import bounded, check_argument, check_fields

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
    positive_margin: float = bounded(0.9, 0)
    """m⁺ of the margin loss: a present class whose activation is larger has no loss."""
    negative_margin: float = bounded(0.1, 0)
    """m⁻ of the margin loss: an absent class whose activation is smaller has no loss."""
    absent_weight: float = bounded(0.5, 0)
    """λ of the margin loss: weight of the absent classes."""
    spread_schedule: Schedule = "linear"
    """Rise of the spread loss's margin: linear (Hinton et al. 2018), or in stairs of 0.1 (Forslöv's thesis)."""
    spread_first: float = 0.2
    """Margin of the spread loss at the first step."""
    spread_last: float = 0.9
    """Last margin of the spread loss. Validation always uses it, so that the losses of epochs can be compared."""
    spread_steps: int | None = bounded(None, 1)
    """Linear schedule: steps until the last margin (None: the whole training). Stairs: steps per stair (None: 3,000, as
    in the thesis)."""
    reconstruction: Reduction = "sum"
    """Sum of squared errors over an image's pixels (Sabour et al. 2017), or their mean (Forslöv's thesis)."""
    reconstruction_weight: float = bounded(0.0005, 0)
    """Weight of the reconstruction loss: 0.0005 with sum, as published; 0.392 with mean is the same for 784 pixels."""

    def __post_init__(self) -> None:
        check_fields(self)
        first, last = self.spread_first, self.spread_last
        check_argument(0 < first <= last <= 1, "rise within (0, 1]", spread_first=first, spread_last=last)

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

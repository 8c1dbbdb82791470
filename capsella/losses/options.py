"""Options of the losses: which are added up, and their constants."""

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
    """The losses that are added up, and their constants. Defaults: Sabour et al. 2017, section 3 and 4.1."""

    name: Classification = "margin"
    """The loss on the class activations (or the logits of a CNN, for both cross-entropies). Images of two classes need
    margin or sigmoid_cross_entropy."""
    positive_margin: float = 0.9
    """m⁺: no loss for a present class that is longer."""
    negative_margin: float = 0.1
    """m⁻: no loss for an absent class that is shorter."""
    absent_weight: float = 0.5
    """λ: weight of the classes that are absent."""
    spread_schedule: Schedule = "linear"
    """Rise of the spread loss's margin: linear (Hinton et al. 2018), or by 0.1 at a time (Forslöv's thesis)."""
    spread_first: float = 0.2
    """The spread loss's margin at the first step."""
    spread_last: float = 0.9
    """The margin that it reaches and keeps; validation always uses it, so that epochs compare."""
    spread_steps: int | None = None
    """Steps until the last margin (linear; None: the whole training), or of one stair (None: 3,000, the thesis's)."""
    reconstruction: Reduction = "sum"
    """Add up squared differences over an image's pixels (Sabour et al. 2017), or average them (Forslöv's thesis)."""
    reconstruction_weight: float = 0.0005
    """Weight of the reconstruction: 0.0005 with sum, as published; 0.392 with mean is the same for 784 pixels."""

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
        """Return the spread loss's margin at a step, counted from 0, of a training of `total_steps`.

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

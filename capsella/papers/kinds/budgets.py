"""The budgets that several papers' tables share."""

from capsella.grid import Budget, BudgetName, Budgets
from capsella.training import OptimizerOptions

SMALL = Budget(per_class=100, validation_per_class=20, test_per_class=100, epochs=4, batch_size=32)
NIGHT = Budget(
    epochs=20, epoch_images=20_000, batch_size=64, validation_per_class=100, cosine=True, ema=0.999, precision="auto"
)
PHOTOGRAPHS = Budgets(SMALL, NIGHT, OptimizerOptions(learning_rate=1e-3, warmup_steps=10))
"""Of tables with CIFAR-10 whose recipes train by gradient descent; the small budget has Adam, which begins sooner."""


def few_images(budget: BudgetName) -> str:
    """What stands behind every number of a table whose nights see a tenth of the paper's images or fewer."""
    return "few images" if budget == "night" else ""

"""Heinsen 2019, "An Algorithm for Routing Capsules in All Domains": the recipe for smallNORB and its table."""

from capsella.data import NamedData
from capsella.losses import LossOptions
from capsella.papers.budget import BudgetName, Budgets, images, medium
from capsella.papers.table_types import ErrorTable, RowSpec, error_table
from capsella.routing import HeinsenRouting
from capsella.training import AugmentOptions, ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import register_recipe


@register_recipe
def heinsen2019_smallnorb() -> Recipe:
    """Heinsen routing on smallNORB, both cameras at 96×96, nearly as its author trained it (his code).

    The author uses RAdam and validates on the test toys; here Adam is used, one in twenty training images of each class
    is held out, and the last epoch is kept.
    """
    return Recipe(
        model=ModelOptions("heinsen2019_capsnet", {"routing": HeinsenRouting()}),
        data=NamedData("smallnorb", camera="both", validation=0.05),
        augment=AugmentOptions(shift=16, padding_mode="border", mixup=0.2),
        loss=LossOptions(name="cross_entropy"),
        optimizer=OptimizerOptions(learning_rate=5e-4, schedule="cosine", warmup_steps=5770),
        epochs=50,
        batch_size=20,
        keep="last",
    )


# The small budget has its own optimizer, since the recipe's warm-up takes more steps than that whole budget.
BUDGETS = Budgets(
    images(200, 50, 200, 4, 20),
    medium(10_000, 20),
    OptimizerOptions(learning_rate=5e-4, schedule="cosine", warmup_steps=10),
)
RECIPE = "heinsen2019-smallnorb"
# The published error in per cent is that of the best of ten trainings (by test error), each at its last epoch.
ROWS = (
    RowSpec("3-iterations", RECIPE, ("3",), 0.9, None, {"model.routing.iterations": 3}),
    RowSpec("uniform", RECIPE, ("1",), overrides={"model.routing.iterations": 1}),
)


def table(budget: BudgetName) -> ErrorTable:
    """Return the table of the 272 K network on smallNORB, routed and, which the paper lacks, with uniform couplings."""
    note = "The paper's error is of the best of ten trainings, chosen by the test's toys."
    return error_table("Heinsen 2019, smallNORB", note, ("iterations",), ROWS, BUDGETS, budget)

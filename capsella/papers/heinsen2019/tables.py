"""What Heinsen 2019 prints of smallNORB, as a table: three iterations of routing, and even couplings."""

from dataclasses import replace

from capsella.grid import Budget, BudgetName, Budgets
from capsella.papers.heinsen2019 import paper
from capsella.papers.kinds.error_table import ErrorRow, ErrorTable
from capsella.training import OptimizerOptions
from capsella.training.registry import get_recipe

RECIPE = "heinsen2019-smallnorb"
SMALL = Budget(per_class=200, validation_per_class=50, test_per_class=200, epochs=4, batch_size=20)
NIGHT = Budget(
    epochs=20, epoch_images=10_000, batch_size=20, validation_per_class=100, cosine=True, ema=0.999, precision="auto"
)
BUDGETS = Budgets(SMALL, NIGHT, OptimizerOptions(learning_rate=5e-4, schedule="cosine", warmup_steps=10))
# The recipe's warm-up takes more steps than the small budget has.


def table(budget: BudgetName) -> ErrorTable:
    """The network of 272 K parameters, and beside it one whose couplings stay even, which the paper does not have."""
    rows = []
    for iterations in (3, 1):
        recipe = get_recipe(RECIPE)
        routing = replace(recipe.model.options["routing"], iterations=iterations)
        recipe = recipe.with_model(routing=routing)
        rows.append(
            ErrorRow(
                slug=f"{iterations}-iterations" if iterations > 1 else "even",
                recipe_name=RECIPE,
                recipe=BUDGETS.limit(recipe, budget),
                label=(str(iterations),),
                paper=paper.SMALLNORB if iterations == 3 else None,
            )
        )
    note = (
        "The paper's error is of the best of ten trainings, chosen by the test's toys; ours are not chosen. Both are "
        "of the last epoch."
    )
    return ErrorTable("Heinsen 2019, smallNORB", BUDGETS.note(budget) + note, ("iterations",), tuple(rows))

"""The table of Zhao, Cheng 2021: test errors by data set."""

from dataclasses import replace

from capsella.grid import Budget, BudgetName
from capsella.papers.kinds.error_table import ErrorRow, ErrorTable
from capsella.papers.zhao2021 import paper
from capsella.training import OptimizerOptions
from capsella.training.registry import get_recipe

SMALL = Budget(per_class=100, validation_per_class=20, test_per_class=100, epochs=4, batch_size=32)
NIGHT = Budget(
    epochs=20, epoch_images=20_000, batch_size=64, validation_per_class=100, cosine=True, ema=0.999, precision="auto"
)
LIMITS = {"small": f"{SMALL}, Adam. ", "night": f"{NIGHT}. ", "full": ""}
SMALL_OPTIMIZER = OptimizerOptions(learning_rate=1e-3, warmup_steps=10)
NOTE = "Numbers beside the authors' code, which keeps the epoch that is best on the test images."


def errors(budget: BudgetName) -> ErrorTable:
    """SmallNORB and CIFAR-10; SVHN is not among the sources."""
    rows = []
    for slug, label in (("smallnorb", "smallNORB"), ("cifar10", "CIFAR-10")):
        name = f"zhao2021-{slug}"
        recipe = get_recipe(name)
        if budget != "full":
            optimizer = SMALL_OPTIMIZER if budget == "small" else recipe.optimizer
            recipe = {"small": SMALL, "night": NIGHT}[budget].limit(replace(recipe, optimizer=optimizer))
        rows.append(ErrorRow(slug=slug, recipe_name=name, recipe=recipe, label=(label,), paper=paper.ERRORS[label]))
    return ErrorTable("Zhao and Cheng 2021: test errors", LIMITS[budget] + NOTE, ("data",), tuple(rows))

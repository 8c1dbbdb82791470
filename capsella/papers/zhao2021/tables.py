"""The table of Zhao, Cheng 2021: test errors by data set."""

from capsella.grid import BudgetName
from capsella.papers.kinds.budgets import PHOTOGRAPHS, few_images
from capsella.papers.kinds.error_table import ErrorRow, ErrorTable
from capsella.papers.zhao2021 import paper
from capsella.training.registry import get_recipe

NOTE = "Numbers beside the authors' code, which keeps the epoch that is best on the test images. "
HELD_OUT = "Here one in five of smallNORB's toys is held out to choose it."


def errors(budget: BudgetName) -> ErrorTable:
    """SmallNORB and CIFAR-10; SVHN is not among the sources."""
    rows = []
    for slug, label in (("smallnorb", "smallNORB"), ("cifar10", "CIFAR-10")):
        name = f"zhao2021-{slug}"
        recipe = PHOTOGRAPHS.limit(get_recipe(name), budget)
        rows.append(ErrorRow(slug=slug, recipe_name=name, recipe=recipe, label=(label,), paper=paper.ERRORS[label]))
    return ErrorTable(
        "Zhao and Cheng 2021: test errors",
        PHOTOGRAPHS.note(budget) + NOTE + ("" if budget == "night" else HELD_OUT),
        ("data",),
        tuple(rows),
        mark=few_images(budget),
    )

"""The tables of Hahn, Pyeon, Kim 2019, "Self-Routing Capsule Networks"."""

from dataclasses import replace

from capsella.grid import BudgetName
from capsella.papers.hahn2019 import paper
from capsella.papers.kinds.budgets import PHOTOGRAPHS, few_images
from capsella.papers.kinds.error_table import ErrorRow, ErrorTable
from capsella.routing import ROUTINGS
from capsella.training import OptimizerOptions, Recipe
from capsella.training.registry import get_recipe

BASELINES = (
    "Dynamic and EM routing stand in the network of self-routing here: its primary capsules are not squashed, and "
    "poses are normalised by batch behind each layer. The authors' dynamic network squashes and does not normalise; "
    "their EM network has matrices. "
)
BUDGETS = replace(PHOTOGRAPHS, small_optimizer=OptimizerOptions(learning_rate=3e-3, warmup_steps=10))
"""Gradient descent leaves even couplings in hundreds of steps only."""
ROWS = {"self": "", "dynamic": "-dynamic", "em": "-em", paper.POOLING: "-cnn"}


def cifar10(budget: BudgetName) -> ErrorTable:
    """CIFAR-10: ResNet-20 with capsules of each routing, or with its pooling."""
    rows = tuple(
        _row(get_recipe(name), name, (kind,), error, budget)
        for kind, error in paper.CIFAR10.items()
        for name in [f"hahn2019-cifar10{ROWS[kind]}"]
    )
    note = BASELINES + "Numbers of the poster, of two capsule layers."
    return ErrorTable(
        "Hahn et al. 2019: CIFAR-10", BUDGETS.note(budget) + note, ("routing",), rows, mark=few_images(budget)
    )


def viewpoints(budget: BudgetName) -> ErrorTable:
    """smallNORB: trained on a third of the azimuths or elevations, tested on the others."""
    rows = []
    for (by, kind), error in paper.VIEWPOINTS.items():
        name = f"hahn2019-{by}" + ("-cnn" if kind == paper.POOLING else "")
        recipe = get_recipe(name)
        recipe = recipe.with_model(routing=ROUTINGS[kind]()) if kind in ROUTINGS else recipe
        rows.append(_row(recipe, name, (by, kind), error, budget))
    note = (
        f"{BASELINES}All rows have the cross-entropy; the authors train dynamic routing with the margin loss and EM "
        "with the spread loss. Errors on novel viewpoints, of the poster. The authors keep the epoch that is best on "
        "those very images."
    )
    heads = ("viewpoints by", "routing")
    return ErrorTable(
        "Hahn et al. 2019: novel viewpoints", BUDGETS.note(budget) + note, heads, tuple(rows), mark=few_images(budget)
    )


def _row(recipe: Recipe, name: str, label: tuple[str, ...], error: float, budget: BudgetName) -> ErrorRow:
    slug = "-".join(label).replace(" ", "-")
    return ErrorRow(slug=slug, recipe_name=name, recipe=BUDGETS.limit(recipe, budget), label=label, paper=error)

"""The tables of Hahn, Pyeon, Kim 2019, "Self-Routing Capsule Networks"."""

from dataclasses import replace

from capsella.grid import Budget, BudgetName
from capsella.papers.hahn2019 import paper
from capsella.papers.kinds.error_table import ErrorRow, ErrorTable
from capsella.routing import ROUTINGS
from capsella.training import Recipe
from capsella.training.registry import get_recipe

SMALL = Budget(per_class=100, validation_per_class=20, test_per_class=100, epochs=4, batch_size=32)
NIGHT = Budget(
    epochs=20, epoch_images=20_000, batch_size=64, validation_per_class=100, cosine=True, ema=0.999, precision="auto"
)
LIMITS = {"small": f"{SMALL}. ", "night": f"{NIGHT}. ", "full": ""}
SUFFIXES = {"self": "", "dynamic": "-dynamic", "em": "-em"}


def cifar10(budget: BudgetName) -> ErrorTable:
    """CIFAR-10: ResNet-20 with capsules of each routing in place of its pooling."""
    rows = tuple(
        _row(routing, f"hahn2019-cifar10{SUFFIXES[routing]}", None, (routing,), error, budget)
        for routing, error in paper.CIFAR10.items()
    )
    note = "Numbers of the poster, of two capsule layers; with average pooling 7.94. EM routes vectors here."
    return ErrorTable("Hahn et al. 2019: CIFAR-10", LIMITS[budget] + note, ("routing",), rows)


def viewpoints(budget: BudgetName) -> ErrorTable:
    """smallNORB: trained on a third of the azimuths or elevations, tested on the others."""
    rows = tuple(
        _row(f"{by}-{routing}", f"hahn2019-{by}", routing, (by, routing), error, budget)
        for (by, routing), error in paper.VIEWPOINTS.items()
    )
    note = (
        "Errors on novel viewpoints, of the poster; with average pooling 21.8 (azimuths) and 17.7 (elevations). The "
        "authors keep the epoch that is best on those very images."
    )
    return ErrorTable("Hahn et al. 2019: novel viewpoints", LIMITS[budget] + note, ("viewpoints by", "routing"), rows)


def _row(
    slug: str, name: str, routing: str | None, label: tuple[str, ...], error: float, budget: BudgetName
) -> ErrorRow:
    """`routing`: in place of the recipe's, where it has no recipe of its own."""
    recipe = get_recipe(name)
    if routing is not None:
        recipe = replace(recipe, model=recipe.model.replace(routing=ROUTINGS[routing]()))
    return ErrorRow(slug=slug, recipe_name=name, recipe=_limited(recipe, budget), label=label, paper=error)


def _limited(recipe: Recipe, budget: BudgetName) -> Recipe:
    return recipe if budget == "full" else {"small": SMALL, "night": NIGHT}[budget].limit(recipe)

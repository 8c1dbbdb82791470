"""The table of Tsai, Srivastava, Goh, Salakhutdinov 2020: CIFAR-10, by rounds and order of routing."""

from capsella.grid import BudgetName
from capsella.papers.kinds.budgets import PHOTOGRAPHS, few_images
from capsella.papers.kinds.error_table import ErrorRow, ErrorTable
from capsella.papers.tsai2020 import paper
from capsella.routing import InvertedAttentionRouting
from capsella.training.registry import get_recipe

NOTE = (
    f"Numbers beside the authors' code, means of trainings whose best epoch on the test images was kept; the best one "
    f"of two rounds has {paper.BEST:g} %. One after the other: each layer makes all its rounds before the next."
)


def cifar10(budget: BudgetName) -> ErrorTable:
    """One round, whose couplings are even, and two of all layers at once; and two of one layer after the other."""
    rows = (_row(1, True, budget), _row(2, True, budget), _row(2, False, budget))
    return ErrorTable(
        "Tsai et al. 2020: CIFAR-10",
        PHOTOGRAPHS.note(budget) + NOTE,
        ("rounds", "layers"),
        rows,
        mark=few_images(budget),
    )


def _row(rounds: int, concurrent: bool, budget: BudgetName) -> ErrorRow:
    name = "tsai2020-cifar10"
    routing = InvertedAttentionRouting(iterations=rounds)
    recipe = get_recipe(name).with_model(routing=routing, concurrent=concurrent)
    return ErrorRow(
        slug=f"{rounds}-{'concurrent' if concurrent else 'sequential'}",
        recipe_name=name,
        recipe=PHOTOGRAPHS.limit(recipe, budget),
        label=(str(rounds), "at once" if concurrent else "one after the other"),
        paper=paper.CIFAR10[rounds] if concurrent else None,
    )

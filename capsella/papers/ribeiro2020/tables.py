"""What Ribeiro, Leontidis, Kollias 2020 state of smallNORB, as a table: both readings of their couplings, and EM."""

from capsella.grid import Budget, BudgetName, Budgets
from capsella.papers.kinds.budgets import few_images
from capsella.papers.kinds.error_table import ErrorRow, ErrorTable
from capsella.papers.ribeiro2020 import paper
from capsella.papers.ribeiro2020.recipes import WIDE
from capsella.routing import EMRouting, Routing, VariationalRouting
from capsella.training.registry import get_recipe

RECIPE = "ribeiro2020-smallnorb"
SMALL = Budget(per_class=400, validation_per_class=100, test_per_class=400, epochs=8, batch_size=32)
NIGHT = Budget(
    epochs=20, epoch_images=24_000, batch_size=32, validation_per_class=100, cosine=True, ema=0.999, precision="auto"
)
BUDGETS = Budgets(SMALL, NIGHT)
ROUTINGS: dict[str, tuple[tuple[str, str], Routing]] = {
    "code": (("variational", "authors' code"), VariationalRouting(proportions=False, bias=False)),
    "paper": (("variational", "paper"), VariationalRouting(bias=False)),
    "wide": (
        ("variational, wide prior", "authors' code"),
        VariationalRouting(proportions=False, bias=False, precision=WIDE),
    ),
    "even": (("variational", "even"), VariationalRouting(iterations=1, bias=False)),
    "wide-even": (("variational, wide prior", "even"), VariationalRouting(iterations=1, bias=False, precision=WIDE)),
    "em": (("EM", "paper"), EMRouting(competition="types")),
}
"""By slug: what a row says of its routing and its couplings, and the routing."""


def table(budget: BudgetName) -> ErrorTable:
    """The network of 69 K parameters on smallNORB, and beside it what the paper does not have."""
    rows = tuple(_row(slug, label, routing, budget) for slug, (label, routing) in ROUTINGS.items())
    note = (
        "All rows are the network of 69 K parameters, with batch normalisation of all capsules. The authors' error is "
        "that of their read-me. Couplings: R = p/Σπp in the authors' code and πp/Σπp in the paper; 'even' leaves them "
        "as they start; the prior shapes activations still. "
        f"The wide prior has a precision of {WIDE:g} an element, the paper's 1. EM is in the place of "
        "variational Bayes, types competing in each window."
    )
    return ErrorTable(
        "Ribeiro et al. 2020, smallNORB",
        BUDGETS.note(budget) + note,
        ("routing", "couplings"),
        rows,
        mark=few_images(budget),
    )


def _row(slug: str, label: tuple[str, str], routing: Routing, budget: BudgetName) -> ErrorRow:
    recipe = get_recipe(RECIPE).with_model(routing=routing)
    return ErrorRow(
        slug=slug,
        recipe_name=RECIPE,
        recipe=BUDGETS.limit(recipe, budget),
        label=label,
        paper=paper.SMALLNORB if slug == "code" else None,
    )

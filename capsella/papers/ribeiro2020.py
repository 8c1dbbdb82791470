"""Ribeiro, Leontidis, Kollias 2020, "Capsule Routing via Variational Bayes": recipes for smallNORB and a table."""

from dataclasses import replace

from capsella.data import NamedData
from capsella.losses import LossOptions
from capsella.papers.budget import BudgetName, Budgets, images, medium
from capsella.papers.hinton2018.recipes import MOVED_AND_MIXED
from capsella.papers.table_types import ErrorTable, RowSpec, error_table
from capsella.routing import EMRouting, VariationalRouting
from capsella.training import ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import register_recipe

# Ψ₀ of the wide prior. It expects votes with a standard deviation of 2.4 per element (of 16); the paper's expects 0.24.
WIDE = 0.01


@register_recipe
def ribeiro2020_smallnorb() -> Recipe:
    """Variational Bayes routing on smallNORB, both cameras, as its authors trained it (their code).

    The cameras are standardised together; the authors standardise each by itself.
    """
    options = {"routing": VariationalRouting(proportions=False, bias=False), "crop": 32}
    return Recipe(
        model=ModelOptions("ribeiro2020_capsnet", options),
        data=NamedData("smallnorb", size=48, camera="both", validation=0.2),
        loss=LossOptions(name="cross_entropy"),
        optimizer=OptimizerOptions(learning_rate=1e-3, decay=1.0),
        epochs=300,
        batch_size=128,
    )


@register_recipe
def ribeiro2020_smallnorb_wide_prior() -> Recipe:
    """Variational Bayes routing on smallNORB in an hour on one core; our recipe.

    A wide prior keeps couplings from peaking before the votes are informative.
    """
    authors = ribeiro2020_smallnorb()
    return replace(
        authors.with_model(routing=VariationalRouting(proportions=False, bias=False, precision=WIDE)),
        data=replace(authors.data, group=None, validation=0.02),
        augment=MOVED_AND_MIXED,
        optimizer=replace(authors.optimizer, learning_rate=3e-3, schedule="cosine", ema=0.999),
        epochs=12,
        batch_size=32,
        keep="last",
    )


BUDGETS = Budgets(images(400, 100, 400, 8, 32), medium(24_000, 32))
RECIPE, CODE, WIDE_PRIOR = "ribeiro2020-smallnorb", "authors' code", "variational, wide prior"
_CODE = {"model.routing": VariationalRouting(proportions=False, bias=False)}
_PAPER = {"model.routing": VariationalRouting(bias=False)}
_WIDE = {"model.routing": VariationalRouting(proportions=False, bias=False, precision=WIDE)}
_UNIFORM = {"model.routing": VariationalRouting(iterations=1, bias=False)}
_WIDE_UNIFORM = {"model.routing": VariationalRouting(iterations=1, bias=False, precision=WIDE)}
# The published error in per cent is from the README of the authors' code.
ROWS = (
    RowSpec("code", RECIPE, ("variational", CODE), 1.3, None, _CODE),
    RowSpec("paper", RECIPE, ("variational", "paper"), overrides=_PAPER),
    RowSpec("wide", RECIPE, (WIDE_PRIOR, CODE), overrides=_WIDE),
    RowSpec("uniform", RECIPE, ("variational", "uniform"), overrides=_UNIFORM),
    RowSpec("wide-uniform", RECIPE, (WIDE_PRIOR, "uniform"), overrides=_WIDE_UNIFORM),
    RowSpec("em", RECIPE, ("EM", "paper"), overrides={"model.routing": EMRouting(competition="types")}),
)


def table(budget: BudgetName) -> ErrorTable:
    """Return the smallNORB table: couplings as in the code and in the paper, and rows that the paper lacks."""
    note = "Couplings: p/Σπp in the authors' code, πp/Σπp in the paper; 'uniform' leaves them as they start."
    return error_table("Ribeiro et al. 2020, smallNORB", note, ("routing", "couplings"), ROWS, BUDGETS, budget)
